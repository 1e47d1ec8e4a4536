//! Tests from text to objects and problems.

mod problems;
mod reading;
mod watching;

use super::{files::FileText, parse::ParsedFile, *};
use std::sync::Arc;
use vipmux_model::{
    ServiceName,
    objects::{Objects, Problem},
};
use vipmux_testing::names::service_name;

/// Returns a Service of `shop` with a port.
pub(super) fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: shop\nspec:\n  type: LoadBalancer\n  ports:\n  - port: {port}\n"
    )
}

/// Returns the number of a Service's first port.
pub(super) fn port_of(objects: &Objects, name: &str) -> Option<i32> {
    let service = objects.services.get(&service_name(name))?;
    Some(service.spec.as_ref()?.ports.as_ref()?.first()?.port)
}

/// Returns the objects of one file with this text.
fn objects(text: &str) -> Objects {
    objects_of(&[("a.yaml", text)])
}

/// Returns the objects of these files.
fn objects_of(files: &[(&str, &str)]) -> Objects {
    let mut store = ObjectStore::default();
    for (file, parsed) in parsed(files) {
        store.put(&file, parsed);
    }
    store.snapshot()
}

fn parsed(files: &[(&str, &str)]) -> Vec<(Arc<Path>, ParsedFile)> {
    modified(&files.iter().map(|(file, text)| (*file, 0, *text)).collect::<Vec<_>>())
}

/// Parses files with the seconds of their modification times.
fn modified(files: &[(&str, i64, &str)]) -> Vec<(Arc<Path>, ParsedFile)> {
    let text = |(file, modified, text): &(&str, i64, &str)| FileText {
        file: Arc::from(Path::new(file)),
        modified: (*modified, 0),
        text: Ok((*text).to_owned()),
    };
    parse::all(files.iter().map(text).collect())
}
