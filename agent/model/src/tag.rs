//! Parses service tags: named sets of source ranges from the configuration, which Services ask for
//! by name.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use crate::{
    dialects::listed,
    prefix::{NotAPrefix, Prefix},
    reason::quoted,
};

/// The tag that lets in all clients. It always exists.
const INTERNET: &str = "Internet";
/// The source ranges of that tag.
const EVERYONE: [&str; 2] = ["0.0.0.0/0", "::/0"];
/// The maximum length of a tag's name, bytes.
const MAX_NAME: usize = 80;
/// The maximum number of known tags in a message.
const NAMED: usize = 8;

/// A named set of source ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTag {
    name: String,
    ranges: BTreeSet<Prefix>,
}

/// The text is not `NAME=CIDR,CIDR`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotATag {
    /// There is no `=`, or no name before it.
    #[error("{} is no service tag such as office=192.0.2.0/24,2001:db8::/32", quoted(.0))]
    Form(String),
    /// The text before `=` is not a valid name.
    #[error("{} is no name of a service tag: at most {MAX_NAME} letters, digits, hyphens, underscores and dots", quoted(.0))]
    Name(String),
    /// The name has a fixed meaning.
    #[error("the service tag {INTERNET} always lets everyone in: choose another name")]
    Internet,
    /// One of the ranges is not valid.
    #[error("service tag {name}: {range}")]
    Range {
        /// The tag.
        name: String,
        /// The range.
        range: NotAPrefix,
    },
}

impl FromStr for ServiceTag {
    type Err = NotATag;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, ranges) = text.split_once('=').ok_or_else(|| NotATag::Form(text.to_owned()))?;
        let name = name.trim();
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(known) {
            return Err(NotATag::Name(name.to_owned()));
        }
        if name.eq_ignore_ascii_case(INTERNET) {
            return Err(NotATag::Internet);
        }
        let range = |range| NotATag::Range { name: name.to_owned(), range };
        let parse = |item: &str| listed(item, ranges).parse();
        let ranges = ranges.split(',').map(parse).collect::<Result<_, _>>().map_err(range)?;
        Ok(Self { name: name.to_owned(), ranges })
    }
}

/// All service tags. Their names ignore case, as Azure's do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTags(BTreeMap<String, ServiceTag>);

/// No tag has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnknownTag<'a>(pub(super) &'a str);

impl Default for ServiceTags {
    fn default() -> Self {
        let ranges = EVERYONE.iter().filter_map(|range| range.parse().ok()).collect();
        let everyone = ServiceTag { name: INTERNET.to_owned(), ranges };
        Self([(INTERNET.to_ascii_lowercase(), everyone)].into())
    }
}

impl FromIterator<ServiceTag> for ServiceTags {
    /// Merges the ranges of tags with the same name.
    fn from_iter<T: IntoIterator<Item = ServiceTag>>(tags: T) -> Self {
        let mut all = Self::default();
        for tag in tags {
            let known = all.0.entry(tag.name.to_ascii_lowercase());
            known.and_modify(|known| known.ranges.extend(&tag.ranges)).or_insert(tag);
        }
        all
    }
}

impl ServiceTags {
    /// Returns the ranges of all of these tags together.
    pub(super) fn ranges<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<BTreeSet<Prefix>, UnknownTag<'a>> {
        let mut ranges = BTreeSet::new();
        for name in names {
            let tag = self.0.get(&name.to_ascii_lowercase()).ok_or(UnknownTag(name))?;
            ranges.extend(&tag.ranges);
        }
        Ok(ranges)
    }

    /// Returns the tags' names, for messages.
    pub(super) fn known(&self) -> String {
        let names: Vec<&str> = self.0.values().take(NAMED).map(|tag| tag.name.as_str()).collect();
        match self.0.len().saturating_sub(NAMED) {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(texts: &[&str]) -> ServiceTags {
        texts.iter().map(|text| text.parse::<ServiceTag>().unwrap()).collect()
    }

    fn ranges(tags: &ServiceTags, names: &[&'static str]) -> Result<String, UnknownTag<'static>> {
        let ranges = tags.ranges(names.iter().copied())?;
        Ok(ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_tag_stands_for_its_ranges_in_either_case() {
        let tags = tags(&["office=192.0.2.0/24,2001:db8::/32", "Cloud.West=198.51.100.7/24", "OFFICE=203.0.113.0/24"]);
        assert_eq!(ranges(&tags, &["Office"]).unwrap(), "192.0.2.0/24 203.0.113.0/24 2001:db8::/32");
        assert_eq!(ranges(&tags, &["cloud.west"]).unwrap(), "198.51.100.0/24");
        assert_eq!(ranges(&tags, &["cloud.west", "INTERNET"]).unwrap(), "0.0.0.0/0 198.51.100.0/24 ::/0");
        assert_eq!(ranges(&tags, &["office", "cloud"]), Err(UnknownTag("cloud")));
        assert_eq!(tags.known(), "Cloud.West, Internet, office");
    }

    #[test]
    fn a_long_list_of_tags_is_cut() {
        let many: Vec<String> = (0..20).map(|number| format!("a{number:02}=192.0.2.0/24")).collect();
        let many = tags(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(many.known(), "a00, a01, a02, a03, a04, a05, a06, a07 and 13 more");
    }

    #[test]
    fn a_malformed_tag_is_reported() {
        let long = format!("{}=192.0.2.0/24", "a".repeat(81));
        for (text, message) in [
            ("office", "\"office\" is no service tag such as"),
            ("=192.0.2.0/24", "\"\" is no name of a service tag"),
            ("our office=192.0.2.0/24", "\"our office\" is no name"),
            (&long, "is no name of a service tag: at most 80"),
            ("office=192.0.2.0/24,", "service tag office: \"192.0.2.0/24,\" is no CIDR"),
            ("internet=192.0.2.0/24", "the service tag Internet always lets everyone in"),
        ] {
            let error = text.parse::<ServiceTag>().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        for text in ["office=", "office=192.0.2.1", "office=192.0.2.0/24,"] {
            let error = text.parse::<ServiceTag>().unwrap_err().to_string();
            assert!(error.starts_with("service tag office: \"") && error.contains("is no CIDR"), "{error}");
        }
    }
}
