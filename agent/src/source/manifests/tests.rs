//! From text to objects and problems.

mod flaws;
mod reading;
mod watching;

use super::{files::Text, parse::Parsed, *};
use crate::{
    model::ServiceName,
    source::{Objects, Problem},
};
use std::sync::Arc;

/// A Service of `shop` with a port.
pub(super) fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: shop\nspec:\n  type: LoadBalancer\n  ports:\n  - port: {port}\n"
    )
}

/// The name of a Service of `shop`.
pub(super) fn shop(name: &str) -> ServiceName {
    ServiceName { namespace: "shop".to_owned(), name: name.to_owned() }
}

/// The number of a Service's first port.
pub(super) fn port_of(objects: &Objects, name: &str) -> Option<i32> {
    let service = objects.services.get(&shop(name))?;
    Some(service.spec.as_ref()?.ports.as_ref()?.first()?.port)
}

/// What one file with this text comes to.
fn objects(text: &str) -> Objects {
    objects_of(&[("a.yaml", text)])
}

/// What these files come to.
fn objects_of(files: &[(&str, &str)]) -> Objects {
    let mut store = Store::default();
    for (file, parsed) in parsed(files) {
        store.put(&file, parsed);
    }
    store.snapshot()
}

fn parsed(files: &[(&str, &str)]) -> Vec<(Arc<Path>, Parsed)> {
    let text = |(file, text): &(&str, &str)| Text { file: Arc::from(Path::new(file)), text: Ok((*text).to_owned()) };
    parse::all(files.iter().map(text).collect())
}
