//! From a file's text to objects and to what is wrong with the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use serde_json::Value;
use serde_saphyr::MessageFormatter as _;

use super::{
    documents::{self, Document},
    files::Text,
    list, parallel,
};
use crate::source::{
    Problem,
    field::{self, FieldPath},
    object::{Class, Identity, Kind, Object},
    validate::Flaw,
};

/// Problems of one document that are told with their line; the others have their field alone.
const LINES_MAX: usize = 1_000;
/// Malformed objects of one document that are told one by one; the rest is counted.
const MALFORMED_MAX: usize = 1_000;
/// YAML nodes of one document; 10,000 Services as `kubectl get -o yaml` prints them have a third of it.
const NODES_MAX: usize = 8 << 20;

/// Documents below which a thread costs more than it saves.
const WORTHWHILE: usize = 32;

/// Where an object stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The file; `-` for standard input.
    pub(super) file: Arc<Path>,
    /// The document, from 1.
    pub(super) document: usize,
    /// Where a list holds it: its number among the objects of the document, from 0.
    pub(super) item: usize,
}

/// A good object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) identity: Identity,
    pub(super) place: Place,
    pub(super) object: Object,
    /// The first line of its document.
    pub(super) line: usize,
    /// Where in the document it is: empty, or `items[3]`.
    pub(super) path: FieldPath,
}

/// What could not be used: an object, a document or a whole file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Malformed {
    /// Whose definition it is; `None` where that cannot be read.
    pub(super) identity: Option<Identity>,
    /// What is wrong; at least one.
    pub(super) problems: Vec<Problem>,
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Parsed {
    pub(super) objects: Vec<Entry>,
    pub(super) malformed: Vec<Malformed>,
    /// Objects of kinds that are not read.
    pub(super) ignored: usize,
}

impl Parsed {
    /// A file that cannot be used at all.
    pub(super) fn unusable(problem: Problem) -> Self {
        Self { malformed: vec![Malformed { identity: None, problems: vec![problem] }], ..Self::default() }
    }

    /// Adds what another document of the same file holds.
    pub(super) fn extend(&mut self, other: Self) {
        self.objects.extend(other.objects);
        self.malformed.extend(other.malformed);
        self.ignored += other.ignored;
    }

    /// Keeps of `previous`, an earlier state of the same file, what is malformed now; and its very objects where they are
    /// unchanged, so that comparing snapshots is cheap.
    ///
    /// Where it cannot be read whose definition is malformed, it may be anyone's that is not here any more, so all of those
    /// are kept.
    pub(super) fn succeed(&mut self, previous: Self) {
        let mut earlier: BTreeMap<_, _> =
            previous.objects.into_iter().map(|entry| (entry.identity.clone(), entry)).collect();
        for entry in &mut self.objects {
            if let Some(before) = earlier.remove(&entry.identity)
                && before.object == entry.object
            {
                entry.object = before.object;
            }
        }
        let unknown = self.malformed.iter().any(|malformed| malformed.identity.is_none());
        let named: BTreeSet<_> = self.malformed.iter().filter_map(|malformed| malformed.identity.as_ref()).collect();
        earlier.retain(|identity, _| unknown || named.contains(identity));
        for malformed in &mut self.malformed {
            let kept =
                malformed.identity.as_ref().map_or(!earlier.is_empty(), |identity| earlier.contains_key(identity));
            for problem in malformed.problems.iter_mut().filter(|_| kept) {
                problem.message.push_str("; the last good version stays in force");
            }
        }
        self.objects.extend(earlier.into_values());
    }
}

/// Parses files, all their documents at once. In the order of `texts`.
pub(super) fn all(texts: Vec<Text>) -> Vec<(Arc<Path>, Parsed)> {
    let mut work = Vec::new();
    for (index, Text { file, text }) in texts.iter().enumerate() {
        let documents = text.as_deref().map(documents::split).unwrap_or_default();
        work.extend(documents.into_iter().map(|document| (index, file, document)));
    }
    let parsed = parallel::map(&work, WORTHWHILE, |(index, file, it)| (*index, document(file, *it)));
    let mut files: Vec<Parsed> = Vec::with_capacity(texts.len());
    files.resize_with(texts.len(), Parsed::default);
    for (index, parsed) in parsed {
        files[index].extend(parsed);
    }
    let finish = |(text, parsed): (Text, Parsed)| match text.text {
        Ok(_) => (text.file, parsed),
        Err(problem) => (text.file, Parsed::unusable(problem)),
    };
    texts.into_iter().zip(files).map(finish).collect()
}

/// Parses one document of `file`. A list counts as its items.
pub(super) fn document(file: &Arc<Path>, document: Document<'_>) -> Parsed {
    let mut reader = Reader { file, document, parsed: Parsed::default(), flawed: Vec::new(), items: 0, untold: 0 };
    match tree(document.text) {
        Ok(Value::Null) => {}
        Ok(value) => reader.any(FieldPath::default(), value, None),
        Err(error) => {
            let line = error.location().and_then(|location| usize::try_from(location.line()).ok());
            let message = serde_saphyr::UserMessageFormatter.format_message(error.without_snippet()).into_owned();
            let problem = reader.problem(&FieldPath::default(), message, line);
            reader.parsed = Parsed::unusable(problem);
        }
    }
    reader.finish()
}

/// A document as the API has it, with YAML's scalars resolved as kubectl does before it sends them.
fn tree(text: &str) -> Result<Value, serde_saphyr::Error> {
    // JSON is YAML, but is read twenty times faster as what it is. What fails is read again, for one kind of errors.
    let json = text.strip_prefix("---").unwrap_or(text).trim_start();
    if json.starts_with('{')
        && let Ok(value) = serde_json::from_str(json)
    {
        return Ok(value);
    }
    let read = |text: &str| serde_saphyr::from_str_with_options(text, options());
    list::tree(text, read).map_or_else(|| read(text), Ok)
}

/// What grows with the input's size alone is bounded where it is read; what an alias can multiply is bounded here. Depth is
/// left at its default of 64.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: NODES_MAX,
            max_total_scalar_bytes: usize::MAX,
            max_aliases: 10_000,
            max_anchors: 10_000,
            max_recorded_anchor_events: 100_000,
            max_recorded_anchor_bytes: 4 << 20,
            max_merge_keys: 10_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 16,
        },
        with_snippet: false,
        emit_comments: false,
    }
}

struct Reader<'a> {
    file: &'a Arc<Path>,
    document: Document<'a>,
    parsed: Parsed,
    /// Of [`Parsed::malformed`]'s problems, in their order: the paths.
    flawed: Vec<FieldPath>,
    /// Objects so far.
    items: usize,
    /// Malformed objects beyond [`MALFORMED_MAX`].
    untold: usize,
}

impl Reader<'_> {
    /// An object, or a list of them. `kind`: what an item of a list of one kind is, where it does not say so itself.
    fn any(&mut self, path: FieldPath, mut value: Value, kind: Option<Kind>) {
        if let (Some(kind), Some(object)) = (kind, value.as_object_mut()) {
            object.entry("apiVersion").or_insert_with(|| kind.api_version().into());
            object.entry("kind").or_insert_with(|| kind.name().into());
        }
        match class(&value) {
            Ok(Class::Object(kind)) => self.object(path, kind, value),
            Ok(Class::List(kind)) => self.list(&path, value, kind),
            Ok(Class::OtherVersion(kind, version)) => {
                let message = format!("unsupported version of {}: {version} is read", kind.name());
                let identity = Identity::of(kind, &value);
                self.malformed(identity, &path, vec![Flaw::new(FieldPath::of(&["apiVersion"]), message)]);
            }
            Ok(Class::Foreign) => self.parsed.ignored += 1,
            Err(flaw) => self.malformed(None, &path, vec![flaw]),
        }
    }

    fn list(&mut self, path: &FieldPath, mut value: Value, kind: Option<Kind>) {
        match value.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => {
                for (i, item) in items.into_iter().enumerate() {
                    self.any(path.clone().key("items").index(i), item, kind);
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => self.malformed(None, path, vec![Flaw::new(FieldPath::of(&["items"]), "expected a sequence")]),
        }
    }

    fn object(&mut self, path: FieldPath, kind: Kind, value: Value) {
        let identity = Identity::of(kind, &value);
        match Object::decode(kind, value) {
            Ok((identity, object)) => {
                let place = Place { file: Arc::clone(self.file), document: self.document.number, item: self.items };
                let line = self.document.content;
                self.parsed.objects.push(Entry { identity, place, object, line, path });
                self.items += 1;
            }
            Err(flaws) => self.malformed(identity, &path, flaws),
        }
    }

    fn malformed(&mut self, identity: Option<Identity>, path: &FieldPath, flaws: Vec<Flaw>) {
        self.items += 1;
        if self.parsed.malformed.len() == MALFORMED_MAX {
            self.untold += 1;
            return;
        }
        let mut problems = Vec::with_capacity(flaws.len());
        for flaw in flaws {
            let path = path.clone().join(flaw.path);
            problems.push(self.problem(&path, flaw.message, None));
            self.flawed.push(path);
        }
        self.parsed.malformed.push(Malformed { identity, problems });
    }

    /// `line`: in the document, from 1.
    fn problem(&self, path: &FieldPath, message: String, line: Option<usize>) -> Problem {
        Problem {
            file: self.file.to_path_buf(),
            document: self.document.number,
            line: line.map(|line| self.document.line + line.saturating_sub(1)),
            field: path.to_string(),
            message,
        }
    }

    /// Looks up the lines of all problems, in one pass.
    fn finish(mut self) -> Parsed {
        let paths: Vec<&FieldPath> = self.flawed.iter().take(LINES_MAX).collect();
        if !paths.is_empty() {
            let lines = field::lines(self.document.text, &paths, options());
            let problems = self.parsed.malformed.iter_mut().flat_map(|malformed| &mut malformed.problems);
            let (content, start) = (self.document.content, self.document.line);
            for (problem, line) in problems.zip(lines) {
                problem.line = Some(line.map_or(content, |line| start + line.saturating_sub(1)));
            }
        }
        if self.untold > 0 {
            let message = format!("{} further objects are malformed", self.untold);
            let problem = self.problem(&FieldPath::default(), message, None);
            self.parsed.extend(Parsed::unusable(problem));
        }
        self.parsed
    }
}

fn class(value: &Value) -> Result<Class, Flaw> {
    let Some(object) = value.as_object() else {
        return Err(Flaw::new(FieldPath::default(), "expected a mapping: a Kubernetes object"));
    };
    let text = |name: &str| {
        let flaw = |message| Flaw::new(FieldPath::of(&[name]), message);
        let value = object.get(name).ok_or_else(|| flaw("required"))?;
        value.as_str().filter(|text| !text.is_empty()).ok_or_else(|| flaw("expected a string"))
    };
    let (api_version, kind) = (text("apiVersion")?, text("kind")?);
    Ok(Class::of(api_version, kind))
}
