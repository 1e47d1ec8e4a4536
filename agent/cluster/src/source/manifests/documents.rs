//! Splits a file into its YAML documents, and these into JSON objects that follow one another.

use super::json;

/// A document of a YAML stream that has content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct YamlDocument<'a> {
    /// The number, from 1, among the documents that are not empty.
    pub(super) number: usize,
    /// The line of the file, from 1, where `text` starts.
    pub(super) line: usize,
    /// The first line of the file that has any of its content.
    pub(super) content: usize,
    /// The document with its `---` line.
    pub(super) text: &'a str,
}

/// Splits a YAML stream into its documents. Documents without content are left out.
///
/// It looks at lines alone, before any parsing, so invalid YAML costs only its own document.
/// Wherever `---` or `...` stands at the start of a line and before a blank, it *is* the marker
/// (YAML 1.2.2, 9.1.2: `c-forbidden`).
pub(super) fn split(text: &str) -> Vec<YamlDocument<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut content) = (0, 1, None);
    let mut offset = 0;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let end = offset + line.len();
        // The cut is before this line for `---`, which belongs to what follows, and after it for
        // `...`.
        let cut = if is_marker(line, "---") {
            Some((offset, number))
        } else {
            is_marker(line, "...").then_some((end, number + 1))
        };
        if let Some((cut, cut_line)) = cut {
            documents.extend(content.map(|content| (start_line, content, &text[start..cut])));
            (start, start_line, content) = (cut, cut_line, None);
        }
        content = content.or_else(|| has_content(line).then_some(number));
        offset = end;
    }
    documents.extend(content.map(|content| (start_line, content, &text[start..])));
    let documents = documents.into_iter().flat_map(|(line, content, text)| split_json(line, content, text));
    let document = |(number, (line, content, text))| YamlDocument { number, line, content, text };
    (1..).zip(documents).map(document).collect()
}

/// Splits a document of one or more JSON objects. Returns the line and the first line with content
/// of each.
fn split_json(line: usize, content: usize, text: &str) -> Vec<(usize, usize, &str)> {
    let lines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
    let (mut documents, mut line, mut content) = (Vec::new(), line, Some(content));
    for piece in json::split(text) {
        let blank = &piece[..piece.len() - piece.trim_start().len()];
        documents.push((line, content.take().unwrap_or_else(|| line + lines(blank)), piece));
        line += lines(piece);
    }
    documents
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.chars().next().is_none_or(char::is_whitespace))
}

/// Returns whether a line has anything but blanks, a comment, a marker or a directive.
fn has_content(line: &str) -> bool {
    let line = line.strip_prefix('\u{feff}').unwrap_or(line);
    let rest = if is_marker(line, "---") || is_marker(line, "...") { &line[3..] } else { line }.trim();
    !(rest.is_empty() || rest.starts_with('#') || line.starts_with('%'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<(usize, usize, &str)> {
        split(text).into_iter().map(|d| (d.number, d.line, d.text)).collect()
    }

    #[test]
    fn content_begins_behind_markers_and_comments() {
        let content = |text| split(text).into_iter().map(|d| d.content).collect::<Vec<_>>();
        assert_eq!(content("---\n# a\n\na: 1\n--- {b: 2}\n"), [4, 5]);
    }

    #[test]
    fn documents_are_numbered_and_know_their_line() {
        assert_eq!(parts("a: 1\n---\nb: 2\n"), [(1, 1, "a: 1\n"), (2, 2, "---\nb: 2\n")]);
        assert_eq!(parts("---\na: 1\n---\r\nb: 2"), [(1, 1, "---\na: 1\n"), (2, 3, "---\r\nb: 2")]);
    }

    #[test]
    fn documents_without_content_are_left_out() {
        assert_eq!(parts(""), []);
        assert_eq!(parts("\u{feff}# nothing\n\n---\n---   # still nothing\n...\n"), []);
        assert_eq!(parts("%YAML 1.2\n---\na: 1\n...\n---\n"), [(1, 2, "---\na: 1\n...\n")]);
    }

    #[test]
    fn a_document_may_begin_on_the_line_of_its_marker() {
        assert_eq!(parts("--- {a: 1}\n--- # b\nb: 1"), [(1, 1, "--- {a: 1}\n"), (2, 2, "--- # b\nb: 1")]);
    }

    #[test]
    fn json_objects_that_follow_one_another_are_documents() {
        let text = "# a\n{}\n{\n}{}\n---\nb: 1\n";
        assert_eq!(parts(text), [(1, 1, "# a\n{}\n{\n}{}\n"), (2, 5, "---\nb: 1\n")]);
        let text = "{}\n\n{\n}{}\n---\nb: 1\n";
        let documents = [(1, 1, "{}"), (2, 1, "\n\n{\n}"), (3, 4, "{}\n"), (4, 5, "---\nb: 1\n")];
        assert_eq!(parts(text), documents);
        assert_eq!(split(text).iter().map(|it| it.content).collect::<Vec<_>>(), [1, 3, 4, 6]);
    }

    #[test]
    fn a_line_that_only_looks_like_a_marker_is_content() {
        assert_eq!(parts("---a\n ---\n----\n").len(), 1);
        assert_eq!(parts("a: |\n  ---\n  ...\n").len(), 1);
    }
}
