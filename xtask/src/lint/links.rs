//! Checks that the relative links in Markdown files lead to files and headings that exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::workspace;

/// The links of a Markdown file, and the anchors of its headings.
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

/// Checks all links, and prints each broken one.
pub(super) fn check() -> Result<()> {
    let mut files = Vec::new();
    markdown_files(&workspace::root(), &mut files)?;
    let mut pages = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        pages.insert(file, Page::parse(&text));
    }
    let broken = broken_links(&pages);
    for (file, link) in &broken {
        eprintln!("{}: {link} leads nowhere", file.display());
    }
    if broken.is_empty() { Ok(()) } else { bail!("{} broken links", broken.len()) }
}

fn markdown_files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                markdown_files(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(())
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self { links: Vec::new(), anchors: BTreeSet::new() };
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    page.add_anchor(&anchor);
                }
                _ => {}
            }
        }
        page
    }

    /// Adds a heading's anchor. A second heading with the same text gets a number.
    fn add_anchor(&mut self, anchor: &str) {
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.to_owned()].into_iter().chain(numbered).find(|anchor| !self.anchors.contains(anchor));
        self.anchors.extend(free);
    }
}

/// Returns the anchor that forges make from a heading's text.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|char| if char == ' ' { '-' } else { char }).collect()
}

/// Returns the broken links, each with its file. Links with a scheme are not checked.
fn broken_links(pages: &BTreeMap<PathBuf, Page>) -> Vec<(&Path, &str)> {
    let mut broken = Vec::new();
    for (file, page) in pages {
        for link in page.links.iter().filter(|link| !link.contains(':')) {
            let (path, anchor) = link.split_once('#').map_or((link.as_str(), None), |(path, at)| (path, Some(at)));
            let target = if path.is_empty() { file.clone() } else { normalized(file, path) };
            let leads = match (pages.get(&target), anchor) {
                (Some(page), Some(anchor)) => page.anchors.contains(anchor),
                (Some(_), None) => true,
                (None, _) => target.exists(),
            };
            if !leads {
                broken.push((file.as_path(), link.as_str()));
            }
        }
    }
    broken
}

/// Returns the target of a relative link, without `..`.
fn normalized(file: &Path, link: &str) -> PathBuf {
    let mut target = file.parent().unwrap_or(file).to_owned();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => {
                target.pop();
            }
            part => target.push(part),
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_missing_file_or_heading_is_broken() {
        let page = |text: &str| Page::parse(text);
        let index = "[a](guide.md) [b](guide.md#first-steps) [c](guide.md#last) [d](gone.md) [e](#here) [f](#there)\n\n\
                     # Here\n\n[g](https://example.com/x#y) [h](sub/../guide.md#the---level-flag-1)";
        let guide = "# First steps\n\n## The `--level` flag\n\n## The `--level` flag\n\n[up](../gone/README.md)";
        let pages = BTreeMap::from([("/docs/README.md".into(), page(index)), ("/docs/guide.md".into(), page(guide))]);
        let broken: Vec<_> = broken_links(&pages).into_iter().map(|(_, link)| link).collect();
        assert_eq!(broken, ["guide.md#last", "gone.md", "#there", "../gone/README.md"]);
    }
}
