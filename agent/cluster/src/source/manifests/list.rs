//! Parses long lists on all processors.
//!
//! `kubectl get -o yaml` prints thousands of objects as one document, and YAML is slow to parse.
//! Lines alone separate the items: in a block mapping at column 0, only a new item or a new key can
//! start there.

use serde_json::Value;

use super::parallel;

/// A text with fewer bytes is not worth the threads.
const MIN_SPLIT_SIZE: usize = 128 << 10;
/// Parts, at most. Each may use up the limits that one document has for aliases, so they are few.
const MAX_PARTS: usize = 8;

/// A mapping, split from its `items`.
#[derive(Debug, PartialEq, Eq)]
struct SplitList<'a> {
    /// The mapping without its items.
    frame: String,
    /// YAML sequences. Their elements together are the items.
    parts: Vec<&'a str>,
}

/// Parses a long list in parts with `read`. Returns `None` if the text has not kubectl's form or
/// must be read as a whole, for errors or aliases to other items.
pub(super) fn parse_long<E>(text: &str, read: impl Fn(&str) -> Result<Value, E> + Sync) -> Option<Value> {
    let split = (text.len() >= MIN_SPLIT_SIZE).then(|| split(text))??;
    let Value::Object(mut list) = read(&split.frame).ok()? else { return None };
    let mut items = Vec::new();
    for part in parallel::map(&split.parts, 1, |part| read(part).ok()) {
        let Some(Value::Array(more)) = part else { return None };
        items.extend(more);
    }
    list.insert("items".to_owned(), Value::Array(items)).is_none().then_some(Value::Object(list))
}

fn split(text: &str) -> Option<SplitList<'_>> {
    let mut lines = LineOffsets { text, at: 0 };
    let key = lines.find(|(_, line)| line.trim_end() == "items:")?.0;
    let (first, line) = lines.next()?;
    if !starts_item(line) {
        return None;
    }
    let size = (text.len() / MAX_PARTS).max(1);
    let mut cuts = vec![first];
    let mut end = text.len();
    for (at, line) in lines {
        match line.chars().next() {
            Some('-') if starts_item(line) => {
                if at - cuts.last()? >= size {
                    cuts.push(at);
                }
            }
            Some(' ' | '#' | '\r' | '\n') => {}
            _ => {
                end = at;
                break;
            }
        }
    }
    cuts.push(end);
    let parts = cuts.windows(2).map(|cut| text.get(cut[0]..cut[1])).collect::<Option<_>>()?;
    Some(SplitList { frame: format!("{}{}", text.get(..key)?, text.get(end..)?), parts })
}

fn starts_item(line: &str) -> bool {
    line.strip_prefix('-').is_some_and(|rest| rest.starts_with([' ', '\r', '\n']))
}

/// Iterates over lines with their offset in bytes and their line end.
struct LineOffsets<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for LineOffsets<'a> {
    type Item = (usize, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at;
        let line = self.text.get(at..)?.split_inclusive('\n').next()?;
        self.at += line.len();
        Some((at, line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, serde_saphyr::Error> {
        serde_saphyr::from_str(text)
    }

    fn item(i: usize) -> String {
        format!("- apiVersion: v1\n  data:\n    text: |\n      items:\n\n      - {i}\n# comment\n  kind: ConfigMap\n")
    }

    fn list(items: &str) -> String {
        format!("---\napiVersion: v1\nitems:\n{items}kind: List\nmetadata:\n  resourceVersion: \"\"\n")
    }

    #[test]
    fn a_long_list_has_the_same_content_as_in_one_piece() {
        let text = list(&(0..2_000).map(item).collect::<String>());
        let split = split(&text).unwrap();
        assert!((2..=MAX_PARTS).contains(&split.parts.len()), "{}", split.parts.len());
        assert_eq!(parse_long(&text, read).unwrap(), read(&text).unwrap());
        let windows = text.replace('\n', "\r\n");
        assert_eq!(parse_long(&windows, read).unwrap(), read(&windows).unwrap());
    }

    #[test]
    fn a_text_that_must_be_read_as_a_whole_is_not_split() {
        let many = (0..4_000).map(item).collect::<String>();
        assert!(parse_long(&list(&many), read).is_some());
        for (text, why) in [
            (list(&item(1)), "short"),
            (list(&format!("{many}- [\n")), "an error"),
            (list(&format!("- &a x\n{many}- *a\n")), "an alias to another item"),
            (format!("{}items: []\n", list(&many)), "a key twice"),
            (list(&many).replace("items:\n-", "items: # some\n-"), "another form"),
            (many, "no mapping"),
        ] {
            assert!(parse_long(&text, read).is_none(), "{why}");
        }
    }

    #[test]
    fn only_items_at_the_column_of_the_list_split_it() {
        let text = "items:\n- a: |\n    - x\n\n- - b\n-\n  c: 1\nkind: List\n";
        let split = split(text).unwrap();
        assert_eq!((split.frame.as_str(), split.parts.concat().as_str()), ("kind: List\n", &text[7..text.len() - 11]));
        assert!(split.parts.iter().all(|part| starts_item(part)));
    }
}
