//! Where in a document a field is: its path, and the line that it is on.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// One step from a value to a value inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Key(String),
    Index(usize),
}

/// The way from a document's root to a field; displays as `spec.ports[0].port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldPath(Vec<Segment>);

impl FieldPath {
    /// The field `name` of this one.
    pub(super) fn key(mut self, name: &str) -> Self {
        self.0.push(Segment::Key(name.to_owned()));
        self
    }

    /// The element `index`, from 0, of this one.
    pub(super) fn index(mut self, index: usize) -> Self {
        self.0.push(Segment::Index(index));
        self
    }

    /// The field that is at `path` from this one.
    pub(super) fn join(mut self, path: Self) -> Self {
        self.0.extend(path.0);
        self
    }

    /// The field at these keys from the root.
    pub(super) fn of(keys: &[&str]) -> Self {
        keys.iter().fold(Self::default(), |path, key| path.key(key))
    }
}

impl FieldPath {
    /// Whether it leads through this key of the root.
    pub(super) fn begins_with(&self, key: &str) -> bool {
        matches!(self.0.first(), Some(Segment::Key(first)) if first == key)
    }
}

impl From<&serde_ignored::Path<'_>> for FieldPath {
    fn from(path: &serde_ignored::Path<'_>) -> Self {
        use serde_ignored::Path as From;
        match path {
            From::Root => Self::default(),
            From::Seq { parent, index } => Self::from(*parent).index(*index),
            From::Map { parent, key } => Self::from(*parent).key(key),
            From::Some { parent } | From::NewtypeStruct { parent } | From::NewtypeVariant { parent } => {
                Self::from(*parent)
            }
        }
    }
}

impl From<&serde_path_to_error::Path> for FieldPath {
    fn from(path: &serde_path_to_error::Path) -> Self {
        use serde_path_to_error::Segment as From;
        path.iter().fold(Self::default(), |path, segment| match segment {
            From::Seq { index } => path.index(*index),
            From::Map { key } => path.key(key),
            From::Enum { variant } => path.key(variant),
            From::Unknown => path,
        })
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Key(key) if i == 0 => f.write_str(key)?,
                Segment::Key(key) => write!(f, ".{key}")?,
                Segment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// The lines, from 1, that `paths` are on in the YAML or JSON document `text`; of a field that is not there, the line of the
/// nearest one around it. One pass, made only where there is a problem to report.
pub(super) fn lines(text: &str, paths: &[&FieldPath], options: serde_saphyr::Options) -> Vec<Option<usize>> {
    let mut lines = vec![None; paths.len()];
    let wanted: Vec<Wanted> = paths.iter().enumerate().map(|(id, path)| (id, path.0.as_slice())).collect();
    // An error ends the search where the document is broken; what was found before that stands.
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        Locator { wanted, lines: &mut lines }.deserialize(deserializer)
    });
    lines
}

/// An index into the lines, and the rest of the path from here.
type Wanted<'a> = (usize, &'a [Segment]);

struct Locator<'a, 'l> {
    wanted: Vec<Wanted<'a>>,
    lines: &'l mut [Option<usize>],
}

impl<'a> Locator<'a, '_> {
    /// Those that lead through `segment`, less that segment.
    fn through(&self, matches: impl Fn(&Segment) -> bool) -> Vec<Wanted<'a>> {
        self.wanted
            .iter()
            .filter_map(|(id, path)| path.split_first().filter(|(head, _)| matches(head)).map(|(_, rest)| (*id, rest)))
            .collect()
    }

    fn found(&mut self, wanted: &[Wanted<'a>], line: Option<usize>) {
        for (id, _) in wanted {
            self.lines[*id] = line.or(self.lines[*id]);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Locator<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.wanted.iter().all(|(_, path)| path.is_empty()) {
            return IgnoredAny::deserialize(deserializer).map(drop);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Locator<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping or a sequence")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let wanted = self.through(|segment| matches!(segment, Segment::Key(name) if *name == key.value));
            self.found(&wanted, line_of(&key));
            map.next_value_seed(Locator { wanted, lines: self.lines })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        for index in 0.. {
            let wanted = self.through(|segment| *segment == Segment::Index(index));
            let more = if wanted.iter().all(|(_, path)| path.is_empty()) {
                let element = seq.next_element::<Spanned<IgnoredAny>>()?;
                element.map(|element| self.found(&wanted, line_of(&element)))
            } else {
                seq.next_element_seed(Locator { wanted, lines: self.lines })?
            };
            if more.is_none() {
                break;
            }
        }
        Ok(())
    }
}

fn line_of<T>(spanned: &Spanned<T>) -> Option<usize> {
    usize::try_from(spanned.referenced.line()).ok().filter(|line| *line > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\nspec:\n  ports:\n  - name: a\n    port: 80\n  -\n    name: b\n    port: 0\n  ranges: [1,\n    2]\n";

    fn line(path: &FieldPath) -> Option<usize> {
        lines(TEXT, &[path], serde_saphyr::Options::default())[0]
    }

    #[test]
    fn a_path_displays_as_kubernetes_writes_it() {
        let path = FieldPath::of(&["items"]).index(3).join(FieldPath::of(&["spec", "ports"]).index(0).key("port"));
        assert_eq!(path.to_string(), "items[3].spec.ports[0].port");
        assert_eq!(FieldPath::default().to_string(), "");
    }

    #[test]
    fn a_field_is_on_the_line_of_its_key() {
        assert_eq!(line(&FieldPath::of(&["spec"])), Some(2));
        assert_eq!(line(&FieldPath::of(&["spec", "ports"]).index(0).key("port")), Some(5));
        assert_eq!(line(&FieldPath::of(&["spec", "ports"]).index(1).key("port")), Some(8));
    }

    #[test]
    fn an_element_is_on_its_own_line() {
        assert_eq!(line(&FieldPath::of(&["spec", "ranges"]).index(1)), Some(10));
        assert_eq!(line(&FieldPath::of(&["spec", "ports"]).index(0)), Some(4));
    }

    #[test]
    fn a_missing_field_is_told_by_what_is_around_it() {
        assert_eq!(line(&FieldPath::of(&["spec", "ports"]).index(1).key("protocol")), Some(3));
        assert_eq!(line(&FieldPath::of(&["spec", "ports"]).index(7)), Some(3));
        assert_eq!(line(&FieldPath::of(&["metadata", "name"])), None);
        assert_eq!(line(&FieldPath::of(&["spec", "ports"]).index(1).key("port").key("x")), Some(8));
    }

    #[test]
    fn many_fields_are_found_in_one_pass() {
        let paths =
            [FieldPath::of(&["spec", "ports"]).index(1).key("name"), FieldPath::of(&["spec"]), FieldPath::of(&["x"])];
        assert_eq!(
            lines(TEXT, &paths.iter().collect::<Vec<_>>(), serde_saphyr::Options::default()),
            [Some(7), Some(2), None]
        );
    }
}
