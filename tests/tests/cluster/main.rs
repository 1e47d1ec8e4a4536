//! Tests in a real Kubernetes cluster, with the image as it is deployed: `cargo xtask cluster test`.

mod guides;
mod migrating;
mod networks;
