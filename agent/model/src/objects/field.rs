//! Describes the place of a field in a document: its path and its line.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// One step from a value to a value inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FieldStep {
    Key(String),
    Index(usize),
}

/// The path from a document's root to a field; displays as `spec.ports[0].port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPath(Vec<FieldStep>);

impl FieldPath {
    /// Returns the path of this field's child `name`.
    pub fn key(mut self, name: &str) -> Self {
        self.0.push(FieldStep::Key(name.to_owned()));
        self
    }

    /// Returns the path of this field's element `index`, from 0.
    pub fn index(mut self, index: usize) -> Self {
        self.0.push(FieldStep::Index(index));
        self
    }

    /// Returns the path of the field at `path` below this one.
    pub fn join(mut self, path: Self) -> Self {
        self.0.extend(path.0);
        self
    }

    /// Returns the path with these keys from the root.
    pub fn of(keys: &[&str]) -> Self {
        keys.iter().fold(Self::default(), |path, key| path.key(key))
    }
}

impl FieldPath {
    /// Whether the path starts with this key of the root.
    pub fn begins_with(&self, key: &str) -> bool {
        matches!(self.0.first(), Some(FieldStep::Key(first)) if first == key)
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
                FieldStep::Key(key) if i == 0 => f.write_str(key)?,
                FieldStep::Key(key) => write!(f, ".{key}")?,
                FieldStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Returns the lines, from 1, of `paths` in the YAML or JSON document `text`. For a field that does
/// not exist, it is the line of the nearest field around it. This takes one pass, and only runs if
/// there is a problem to report.
pub fn lines(text: &str, paths: &[&FieldPath], options: serde_saphyr::Options) -> Vec<Option<usize>> {
    let mut lines = vec![None; paths.len()];
    let wanted: Vec<Wanted> = paths.iter().enumerate().map(|(id, path)| (id, path.0.as_slice())).collect();
    // An error ends the search where the document is broken. Lines found before that are valid.
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        Locator { wanted, lines: &mut lines }.deserialize(deserializer)
    });
    lines
}

/// An index into the lines, and the rest of the path from here.
type Wanted<'a> = (usize, &'a [FieldStep]);

struct Locator<'a, 'l> {
    wanted: Vec<Wanted<'a>>,
    lines: &'l mut [Option<usize>],
}

impl<'a> Locator<'a, '_> {
    /// Returns the wanted paths that start with `segment`, without that segment.
    fn through(&self, matches: impl Fn(&FieldStep) -> bool) -> Vec<Wanted<'a>> {
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
            let wanted = self.through(|segment| matches!(segment, FieldStep::Key(name) if *name == key.value));
            self.found(&wanted, line_of(&key));
            map.next_value_seed(Locator { wanted, lines: self.lines })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        for index in 0.. {
            let wanted = self.through(|segment| *segment == FieldStep::Index(index));
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
    fn a_missing_field_has_the_line_of_the_nearest_one_around_it() {
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
