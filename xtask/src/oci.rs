//! Writes archives of container images without a container engine, in the layout of the OCI image
//! specification v1.1. Shared with the tests.
//!
//! ```text
//! index.json ─► the image's index ─► a manifest for each platform ─► configuration
//!                                                                 └► one layer
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::archive;

/// An image of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// Its full name. An archive is imported under exactly this name.
    pub name: &'a str,
    /// Its tag.
    pub tag: &'a str,
    /// The program that its containers run.
    pub entrypoint: &'a [&'a str],
    /// The program's arguments if nobody gives others.
    pub arguments: &'a [&'a str],
    /// When it was made (RFC 3339); the time of all its files.
    pub created: &'a str,
    /// What it says about itself, by the specification's keys.
    pub annotations: &'a [(&'a str, &'a str)],
    /// Whether its layers are compressed, which takes time.
    pub compress: bool,
}

/// The files of an image for one platform.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// Go's name of the platform's processors.
    pub architecture: &'a str,
    /// The folder that becomes the root folder.
    pub root: &'a Path,
}

impl Image<'_> {
    /// Writes an archive of the image for these platforms. It replaces a file of that name. `draft` is a folder
    /// for what becomes the archive; it is replaced too, and removed at the end.
    pub fn write(&self, platforms: &[Files<'_>], draft: PathBuf, archive: &Path) -> Result<()> {
        let layout = Layout::new(draft)?;
        let manifests = platforms.iter().map(|files| self.manifest(&layout, files)).collect::<Result<Vec<_>>>()?;
        let index = json!({
            "schemaVersion": 2, "mediaType": media_type("index.v1+json"), "manifests": manifests,
            "annotations": self.annotations(),
        });
        let mut index = layout.add("index.v1+json", &index)?;
        // containerd and podman import the image under the first name.
        index["annotations"] = json!({
            "io.containerd.image.name": format!("{}:{}", self.name, self.tag),
            "org.opencontainers.image.ref.name": self.tag,
        });
        layout.write("oci-layout", &json!({ "imageLayoutVersion": "1.0.0" }))?;
        let top = json!({ "schemaVersion": 2, "mediaType": media_type("index.v1+json"), "manifests": [index] });
        layout.write("index.json", &top)?;
        archive::tar(&layout.folder, &["oci-layout", "index.json", "blobs"], self.created, archive)?;
        fs::remove_dir_all(&layout.folder).with_context(|| format!("cannot remove {}", layout.folder.display()))
    }

    /// Adds a platform's layer, configuration and manifest. Returns the manifest's descriptor.
    fn manifest(&self, layout: &Layout, files: &Files<'_>) -> Result<Value> {
        let (layer, difference) = self.layer(layout, files.root)?;
        let config = json!({
            "architecture": files.architecture,
            "os": "linux",
            "created": self.created,
            "config": {
                "Entrypoint": self.entrypoint,
                "Cmd": self.arguments,
                "Env": ["PATH=/usr/bin:/bin:/usr/sbin:/sbin"],
                "Labels": self.annotations(),
            },
            "rootfs": { "type": "layers", "diff_ids": [difference] },
            "history": [{ "created": self.created, "created_by": "cargo xtask" }],
        });
        let config = layout.add("config.v1+json", &config)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": media_type("manifest.v1+json"), "config": config, "layers": [layer],
            "annotations": self.annotations(),
        });
        let mut manifest = layout.add("manifest.v1+json", &manifest)?;
        manifest["platform"] = json!({ "architecture": files.architecture, "os": "linux" });
        Ok(manifest)
    }

    /// Adds the layer. Returns its descriptor, and the digest of its uncompressed archive.
    fn layer(&self, layout: &Layout, root: &Path) -> Result<(Value, String)> {
        let tar = layout.folder.join("layer.tar");
        archive::tar(root, &["."], self.created, &tar)?;
        let difference = format!("sha256:{}", archive::sha256(&tar)?);
        let layer = if self.compress {
            layout.take("layer.v1.tar+gzip", &archive::gzip(&tar)?)?
        } else {
            layout.take("layer.v1.tar", &tar)?
        };
        Ok((layer, difference))
    }

    fn annotations(&self) -> Map<String, Value> {
        self.annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect()
    }
}

/// Returns the media type of a kind of the image specification.
fn media_type(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

/// The folder that becomes the archive.
struct Layout {
    folder: PathBuf,
}

impl Layout {
    fn new(folder: PathBuf) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).with_context(|| format!("cannot make {}", blobs.display()))?;
        Ok(Self { folder })
    }

    /// Adds a document. Returns its descriptor.
    fn add(&self, kind: &str, document: &Value) -> Result<Value> {
        let text = document.to_string();
        let digest = archive::sha256_of(text.as_bytes());
        self.write(&format!("blobs/sha256/{digest}"), document)?;
        Ok(descriptor(kind, &digest, text.len() as u64))
    }

    /// Moves a file into the layout. Returns its descriptor.
    fn take(&self, kind: &str, file: &Path) -> Result<Value> {
        let digest = archive::sha256(file)?;
        let moved = || {
            fs::rename(file, self.folder.join("blobs/sha256").join(&digest))?;
            fs::metadata(self.folder.join("blobs/sha256").join(&digest))
        };
        let size = moved().with_context(|| format!("cannot move {}", file.display()))?.len();
        Ok(descriptor(kind, &digest, size))
    }

    fn write(&self, name: &str, document: &Value) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, document.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn descriptor(kind: &str, digest: &str, size: u64) -> Value {
    json!({ "mediaType": media_type(kind), "digest": format!("sha256:{digest}"), "size": size })
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    fn extract(archive: &Path, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let mut tar = Command::new("tar");
        let status = tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(folder).status();
        assert!(status.unwrap().success());
    }

    /// Returns the blob that a descriptor names, after a look at its size and digest.
    fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = layout.join("blobs/sha256").join(digest);
        assert_eq!(archive::sha256(&path).unwrap(), digest);
        assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
        path
    }

    fn document(layout: &Path, descriptor: &Value) -> Value {
        serde_json::from_slice(&fs::read(blob(layout, descriptor)).unwrap()).unwrap()
    }

    #[test]
    fn an_archive_leads_from_its_name_to_the_files_of_each_platform() {
        let folder = env::temp_dir().join(format!("vipmux-xtask-oci-{}", std::process::id()));
        let roots = ["amd64", "arm64"].map(|architecture| {
            fs::create_dir_all(folder.join(architecture)).unwrap();
            fs::write(folder.join(architecture).join("program"), architecture).unwrap();
            (architecture, folder.join(architecture))
        });
        let files = roots.each_ref().map(|(architecture, root)| Files { architecture, root });
        let image = Image {
            name: "registry.example/x",
            tag: "1",
            entrypoint: &["/program"],
            arguments: &["--help"],
            created: "2026-01-02T03:04:05Z",
            annotations: &[("org.opencontainers.image.version", "1")],
            compress: true,
        };
        let (archive, draft, layout) = (folder.join("dist/x.tar"), folder.join("draft"), folder.join("out"));
        fs::create_dir(folder.join("dist")).unwrap();
        image.write(&files, draft.clone(), &archive).unwrap();
        let first = fs::read(&archive).unwrap();
        // As if tar had failed.
        fs::create_dir_all(draft.join("blobs/sha256/old")).unwrap();
        image.write(&files, draft.clone(), &archive).unwrap();
        assert_eq!(fs::read_dir(folder.join("dist")).unwrap().count(), 1, "more than the archive");
        assert!(!draft.exists());
        assert_eq!(fs::read(&archive).unwrap(), first, "the second archive differs");

        extract(&archive, &layout);
        let top: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
        assert_eq!(top["manifests"][0]["annotations"]["io.containerd.image.name"], "registry.example/x:1");
        let index = document(&layout, &top["manifests"][0]);
        for (number, (architecture, _)) in roots.iter().enumerate() {
            let descriptor = &index["manifests"][number];
            assert_eq!(descriptor["platform"]["architecture"], *architecture);
            let manifest = document(&layout, descriptor);
            assert_eq!(manifest["annotations"]["org.opencontainers.image.version"], "1");
            let config = document(&layout, &manifest["config"]);
            assert_eq!(config["architecture"], *architecture);
            assert_eq!(config["config"]["Cmd"], json!(["--help"]));
            let out = folder.join("layer").join(architecture);
            let layer = blob(&layout, &manifest["layers"][0]);
            extract(&layer, &out);
            assert_eq!(fs::read_to_string(out.join("program")).unwrap(), *architecture);
            let plain = folder.join("plain.tar");
            archive::tar(&out, &["."], image.created, &plain).unwrap();
            let difference = format!("sha256:{}", archive::sha256(&plain).unwrap());
            assert_eq!(config["rootfs"]["diff_ids"][0], difference);
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
