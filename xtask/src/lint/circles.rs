//! Checks that no files of a crate import each other in a circle.
//!
//! A file imports another one by each path that begins with `crate`, `self` or `super`. If the path leads to a
//! re-export, it leads on to the file that is re-exported. Imports between a module and a module inside it do not
//! count. Folders are no units: files of two folders may import each other, if no file comes back to itself. Code
//! for tests is not read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use syn::{
    Attribute, File, ImplItem, Item, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

use super::layers;
use crate::workspace;

/// The path of a module, or of a name in it, from the crate's root.
type Names = Vec<String>;

/// Most re-exports from a path to its file.
const MOST_REEXPORTS: usize = 8;

/// Checks all crates, and prints each circle.
pub(super) fn check() -> Result<()> {
    let mut circles = 0;
    for folder in layers::folders()?.into_iter().chain([workspace::root().join("ebpf")]) {
        let roots = ["src/lib.rs", "src/main.rs"].map(|name| folder.join(name));
        let Some(root) = roots.iter().find(|root| root.exists()) else { continue };
        for circle in Modules::read(root)?.circles() {
            circles += 1;
            eprintln!("{} has a circle:\n{}", folder.display(), circle.join("\n"));
        }
    }
    if circles > 0 {
        bail!("{circles} circles: move the names that tie files together to where both may import them");
    }
    Ok(())
}

/// The modules of a crate that are files, with the paths that each names.
#[derive(Default)]
struct Modules {
    paths: BTreeMap<Names, BTreeSet<Names>>,
    /// Re-exported names, and what they stand for.
    reexports: BTreeMap<Names, Names>,
}

impl Modules {
    /// Reads the files of the crate with this root.
    fn read(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let mut files = vec![(Names::new(), root.to_owned())];
        while let Some((module, file)) = files.pop() {
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
            let inner = if module.is_empty() { file.with_file_name("") } else { file.with_extension("") };
            let names = modules.add(&module, &parsed);
            files.extend(names.into_iter().map(|name| {
                let file = inner.join(&name).with_extension("rs");
                (child(&module, &name), file)
            }));
        }
        Ok(modules)
    }

    /// Adds a file. Returns its modules that are files.
    fn add(&mut self, module: &[String], file: &File) -> Vec<String> {
        let mut visitor = Visitor { module: module.to_vec(), ..Visitor::default() };
        visitor.visit_file(file);
        self.paths.insert(module.to_vec(), visitor.paths);
        self.reexports.extend(visitor.reexports);
        visitor.files
    }

    /// Returns the module that has the name, by its longest beginning that is a file.
    fn file_of<'a>(&'a self, path: &'a [String]) -> &'a [String] {
        let mut path = path;
        for _ in 0..MOST_REEXPORTS {
            match (0..=path.len()).rev().find_map(|length| self.reexports.get(&path[..length])) {
                Some(target) => path = target,
                None => break,
            }
        }
        (0..=path.len()).rev().map(|length| &path[..length]).find(|name| self.paths.contains_key(*name)).unwrap_or(&[])
    }

    /// Returns the imports between files, each with the names.
    fn imports(&self) -> BTreeMap<&[String], BTreeMap<&[String], BTreeSet<&str>>> {
        let mut imports: BTreeMap<_, BTreeMap<_, BTreeSet<&str>>> = BTreeMap::new();
        for (from, paths) in &self.paths {
            for path in paths {
                let to = self.file_of(path);
                if !from.starts_with(to) && !to.starts_with(from) {
                    let name = path.last().map_or("", String::as_str);
                    imports.entry(from.as_slice()).or_default().entry(to).or_default().insert(name);
                }
            }
        }
        imports
    }

    /// Returns the circles: for each the imports that tie it.
    fn circles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let reached: BTreeMap<_, _> = imports.keys().map(|from| (*from, reachable(&imports, from))).collect();
        let tied = |from: &[String], to: &[String]| reached.get(to).is_some_and(|reached| reached.contains(from));
        let mut circles: BTreeMap<&[String], Vec<String>> = BTreeMap::new();
        for (from, targets) in &imports {
            for (to, names) in targets.iter().filter(|(to, _)| tied(from, to)) {
                let names = names.iter().copied().collect::<Vec<_>>().join(", ");
                let first = reached[from].iter().copied().find(|other| tied(from, other)).unwrap_or(from);
                circles.entry(first).or_default().push(format!("  {} -> {}: {names}", from.join("::"), to.join("::")));
            }
        }
        circles.into_values().collect()
    }
}

/// Returns the files that a file imports, and what those import.
fn reachable<'a, N>(
    imports: &BTreeMap<&'a [String], BTreeMap<&'a [String], N>>,
    from: &'a [String],
) -> BTreeSet<&'a [String]> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        open.extend(imports.get(file).into_iter().flat_map(BTreeMap::keys).filter(|to| reached.insert(**to)));
    }
    reached
}

fn child(module: &[String], name: &str) -> Names {
    module.iter().map(String::as_str).chain([name]).map(str::to_owned).collect()
}

/// Collects the paths of one file.
#[derive(Default)]
struct Visitor {
    module: Names,
    paths: BTreeSet<Names>,
    reexports: BTreeMap<Names, Names>,
    files: Vec<String>,
}

impl Visitor {
    /// Returns the path from the crate's root; `None`: it leads to another crate, or is a local name.
    fn resolve(&self, path: &[String]) -> Option<Names> {
        let mut module = match path.first()?.as_str() {
            "crate" => Names::new(),
            "self" | "super" => self.module.clone(),
            _ => return None,
        };
        for name in path {
            match name.as_str() {
                "crate" | "self" => {}
                "super" => drop(module.pop()),
                name => module.push(name.to_owned()),
            }
        }
        Some(module)
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String], public: bool) {
        let (path, name) = match tree {
            UseTree::Path(path) => return self.add_use(&path.tree, &child(before, &path.ident.to_string()), public),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.add_use(tree, before, public)),
            UseTree::Name(name) => (child(before, &name.ident.to_string()), Some(name.ident.to_string())),
            UseTree::Rename(rename) => (child(before, &rename.ident.to_string()), Some(rename.rename.to_string())),
            UseTree::Glob(_) => (before.to_vec(), None),
        };
        if let Some(path) = self.resolve(&path) {
            if let (true, Some(name)) = (public, name) {
                self.reexports.insert(child(&self.module, &name), path.clone());
            }
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item(&mut self, item: &'ast Item) {
        if !for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_none() {
            // A file that another crate owns is read there.
            if !item.attrs.iter().any(|attribute| attribute.path().is_ident("path")) {
                self.files.push(item.ident.to_string());
            }
        } else {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_use(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.paths.extend(self.resolve(&names));
        visit::visit_path(self, path);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(function) if for_tests(&function.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }
}

/// Returns the attributes of an item that tests alone may need.
fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether `cfg(test)`, or another condition with tests, applies to the item.
fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let condition = list.tokens.to_string();
                condition.contains("test") && !condition.contains("not")
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let mut modules = Modules::default();
        for (module, text) in files {
            let module: Names = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
            modules.add(&module, &syn::parse_str(text).unwrap());
        }
        modules.circles()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let found = circles(&[
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b::{Less, More as Most}; fn a() -> crate::c::C { todo() }"),
            ("b", "struct Less; fn b() { super::a::a() }"),
            ("c", "struct C;"),
        ]);
        assert_eq!(found, [["  a -> b: Less, More", "  b -> a: a"]]);
    }

    #[test]
    fn a_circle_by_a_reexport_is_found() {
        let found =
            circles(&[("", "mod a; mod b; pub use self::b::B;"), ("a", "use crate::B;"), ("b", "use super::a;")]);
        assert_eq!(found, [["  a -> b: B", "  b -> a: a"]]);
    }

    #[test]
    fn parents_and_tests_make_no_circle() {
        let found = circles(&[
            ("", "mod a; mod b;"),
            ("a", "mod inside; use self::inside::I; struct A;"),
            ("a::inside", "use super::A; struct I;"),
            ("b", "use crate::a::A; #[cfg(test)] mod tests { use crate::a; }"),
            (
                "c",
                "#[cfg(any(test, feature = \"testing\"))] use crate::b; #[cfg(test)] impl C { fn c() -> crate::b::B {} }",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
