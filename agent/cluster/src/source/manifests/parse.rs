//! Parses the text of files into objects and problems.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::Path,
    sync::Arc,
};

use serde_json::Value;
use serde_saphyr::MessageFormatter as _;

use super::{
    documents::{self, YamlDocument},
    files::FileText,
    json::{self, UniqueKeys},
    list, parallel,
};
use crate::file_stamp::ModificationTime;
use vipmux_model::objects::{
    Problem, UnreadObjects,
    field::{self, FieldPath},
    object::{Class, Identity, Kind, Object},
    validate::{self, Flaw},
};

/// Problems of one document that get their line. Further ones have their field alone.
const MAX_PROBLEM_LINES: usize = 1_000;
/// Malformed objects of one document that are reported one by one. Further ones are counted.
const MAX_MALFORMED: usize = 1_000;
/// YAML nodes of one document. 10,000 Services as `kubectl get -o yaml` prints them have a third of
/// it.
const MAX_NODES: usize = 8 << 20;

/// With fewer documents a thread costs more than it saves.
const MIN_DOCUMENTS_PER_THREAD: usize = 32;

/// The location of an object in the manifests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectLocation {
    /// The file; `-` for standard input.
    pub(super) file: Arc<Path>,
    /// The document, from 1.
    pub(super) document: usize,
    /// The number among the objects of the document, from 0. More than 0 in lists.
    pub(super) item: usize,
}

/// An object without problems.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedObject {
    pub(super) identity: Identity,
    pub(super) location: ObjectLocation,
    pub(super) object: Object,
    /// The first line of its document.
    pub(super) line: usize,
    /// The path in the document: empty, or `items[3]`.
    pub(super) path: FieldPath,
}

/// An object, a document or a file that cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MalformedObject {
    /// The object that it defines; `None`: that cannot be read.
    pub(super) identity: Option<Identity>,
    /// The problems, at least one.
    pub(super) problems: Vec<Problem>,
}

/// The content of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct ParsedFile {
    pub(super) modified: ModificationTime,
    pub(super) objects: Vec<ParsedObject>,
    pub(super) malformed: Vec<MalformedObject>,
    /// The number of objects of kinds that vipmux does not read.
    pub(super) ignored: usize,
    /// Those among them that ask for what vipmux does.
    pub(super) unread: UnreadObjects,
}

impl ParsedFile {
    /// Returns the content of a file that cannot be used at all.
    pub(super) fn unusable(problem: Problem) -> Self {
        Self { malformed: vec![MalformedObject { identity: None, problems: vec![problem] }], ..Self::default() }
    }

    /// Returns whether another version of this file has the same content.
    pub(super) fn has_content_of(&self, other: &Self) -> bool {
        self.objects == other.objects
            && self.malformed == other.malformed
            && self.ignored == other.ignored
            && self.unread == other.unread
    }

    /// Adds the content of another document of the same file.
    pub(super) fn extend(&mut self, other: Self) {
        self.objects.extend(other.objects);
        self.malformed.extend(other.malformed);
        self.ignored += other.ignored;
        self.unread.extend(other.unread);
    }

    /// Keeps the last good version of objects that are malformed now, from `previous`, an earlier
    /// state of the same file. Unchanged objects stay the same [`Arc`]s, so that comparing
    /// snapshots is cheap.
    ///
    /// If a malformed document does not tell which object it defines, it may be any object that the
    /// file does not have any more. So all of those are kept.
    pub(super) fn keep_last_good(&mut self, previous: Self) {
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

/// Parses files, all their documents in parallel. The results are in the order of `texts`.
pub(super) fn all(texts: Vec<FileText>) -> Vec<(Arc<Path>, ParsedFile)> {
    let mut work = Vec::new();
    for (index, FileText { file, text, .. }) in texts.iter().enumerate() {
        let documents = text.as_deref().map(documents::split).unwrap_or_default();
        work.extend(documents.into_iter().map(|document| (index, file, document)));
    }
    let parsed = parallel::map(&work, MIN_DOCUMENTS_PER_THREAD, |(index, file, it)| (*index, document(file, *it)));
    let mut files: Vec<ParsedFile> = Vec::with_capacity(texts.len());
    files.resize_with(texts.len(), ParsedFile::default);
    for (index, parsed) in parsed {
        files[index].extend(parsed);
    }
    let finish = |(text, parsed): (FileText, ParsedFile)| match text.text {
        Ok(_) => (text.file, ParsedFile { modified: text.modified, ..parsed }),
        Err(problem) => (text.file, ParsedFile::unusable(problem)),
    };
    texts.into_iter().zip(files).map(finish).collect()
}

/// Parses one document of `file`. A list counts as its items.
pub(super) fn document(file: &Arc<Path>, document: YamlDocument<'_>) -> ParsedFile {
    let mut reader = DocumentReader {
        file,
        document,
        parsed: ParsedFile::default(),
        problem_paths: Vec::new(),
        items: 0,
        unreported: 0,
    };
    match tree(document.text) {
        Ok(Value::Null) => {}
        Ok(value) => reader.object_or_list(FieldPath::default(), value, None),
        Err(error) => {
            let line = error.location().and_then(|location| usize::try_from(location.line()).ok());
            let message = serde_saphyr::UserMessageFormatter.format_message(error.without_snippet()).into_owned();
            let problem = reader.problem(&FieldPath::default(), message, line);
            reader.parsed = ParsedFile::unusable(problem);
        }
    }
    reader.finish()
}

/// Returns a document as the API has it, with YAML's scalars resolved as kubectl does before it
/// sends them.
fn tree(text: &str) -> Result<Value, serde_saphyr::Error> {
    // JSON is YAML, but a JSON parser is twenty times faster. A text that fails is read again as
    // YAML, so that there is one kind of errors.
    if let Some(json) = json::of_document(text)
        && let Ok(UniqueKeys(value)) = serde_json::from_str(json)
    {
        return Ok(value);
    }
    let read = |text: &str| serde_saphyr::from_str_with_options(text, options());
    list::parse_long(text, read).map_or_else(|| read(text), Ok)
}

/// Limits that depend on the input's size apply where it is read. Here are the limits for what
/// aliases can multiply. The depth has its default of 64.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: MAX_NODES,
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

struct DocumentReader<'a> {
    file: &'a Arc<Path>,
    document: YamlDocument<'a>,
    parsed: ParsedFile,
    /// The paths of all problems, in their order.
    problem_paths: Vec<FieldPath>,
    /// Objects so far.
    items: usize,
    /// Malformed objects beyond [`MAX_MALFORMED`].
    unreported: usize,
}

impl DocumentReader<'_> {
    /// Reads an object or a list. `kind`: the kind of an item in a list of one kind, if the item
    /// does not say so itself.
    fn object_or_list(&mut self, path: FieldPath, mut value: Value, kind: Option<Kind>) {
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
            Ok(Class::Misspelled(near)) => {
                let near = near.map_or_else(
                    || "VipPool, VipPolicy are known".to_owned(),
                    |kind| format!("did you mean {}?", kind.name()),
                );
                let flaw = Flaw::new(FieldPath::of(&["kind"]), format!("unknown kind: {near}"));
                self.malformed(None, &path, vec![flaw]);
            }
            Ok(Class::Foreign) => {
                self.parsed.ignored += 1;
                self.parsed.unread.add(&value);
            }
            Err(flaw) => self.malformed(None, &path, vec![flaw]),
        }
    }

    fn list(&mut self, path: &FieldPath, mut value: Value, kind: Option<Kind>) {
        match value.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => {
                for (i, item) in items.into_iter().enumerate() {
                    self.object_or_list(path.clone().key("items").index(i), item, kind);
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => self.malformed(None, path, vec![Flaw::new(FieldPath::of(&["items"]), "a list is expected")]),
        }
    }

    fn object(&mut self, path: FieldPath, kind: Kind, value: Value) {
        let identity = Identity::of(kind, &value);
        let flaws = validate::field_names(kind, &value);
        let decoded = if flaws.is_empty() { Object::decode(kind, value) } else { Err(flaws) };
        match decoded {
            Ok((identity, object)) => {
                let location =
                    ObjectLocation { file: Arc::clone(self.file), document: self.document.number, item: self.items };
                let line = self.document.content;
                self.parsed.objects.push(ParsedObject { identity, location, object, line, path });
                self.items += 1;
            }
            Err(flaws) => self.malformed(identity, &path, flaws),
        }
    }

    fn malformed(&mut self, identity: Option<Identity>, path: &FieldPath, flaws: Vec<Flaw>) {
        self.items += 1;
        if self.parsed.malformed.len() == MAX_MALFORMED {
            self.unreported += 1;
            return;
        }
        let mut problems = Vec::with_capacity(flaws.len());
        for flaw in flaws {
            let path = path.clone().join(flaw.path);
            problems.push(self.problem(&path, flaw.message, None));
            self.problem_paths.push(path);
        }
        self.parsed.malformed.push(MalformedObject { identity, problems });
    }

    /// Returns a problem. `line`: in the document, from 1.
    fn problem(&self, path: &FieldPath, message: String, line: Option<usize>) -> Problem {
        Problem {
            file: self.file.to_path_buf(),
            document: NonZeroUsize::new(self.document.number),
            line: line.map(|line| self.document.line + line.saturating_sub(1)),
            field: path.to_string(),
            message,
        }
    }

    /// Looks up the lines of all problems, in one pass.
    fn finish(mut self) -> ParsedFile {
        let paths: Vec<&FieldPath> = self.problem_paths.iter().take(MAX_PROBLEM_LINES).collect();
        if !paths.is_empty() {
            let lines = field::lines(self.document.text, &paths, options());
            let problems = self.parsed.malformed.iter_mut().flat_map(|malformed| &mut malformed.problems);
            let (content, start) = (self.document.content, self.document.line);
            for (problem, line) in problems.zip(lines) {
                problem.line = Some(line.map_or(content, |line| start + line.saturating_sub(1)));
            }
        }
        if self.unreported > 0 {
            let message = format!("{} further objects are malformed", self.unreported);
            let problem = self.problem(&FieldPath::default(), message, None);
            self.parsed.extend(ParsedFile::unusable(problem));
        }
        self.parsed
    }
}

fn class(value: &Value) -> Result<Class, Flaw> {
    let Some(object) = value.as_object() else {
        return Err(Flaw::new(FieldPath::default(), "a mapping is expected: a Kubernetes object"));
    };
    let text = |name: &str| {
        let flaw = |message| Flaw::new(FieldPath::of(&[name]), message);
        let value = object.get(name).ok_or_else(|| flaw("required"))?;
        value.as_str().filter(|text| !text.is_empty()).ok_or_else(|| flaw("text is expected"))
    };
    let (api_version, kind) = (text("apiVersion")?, text("kind")?);
    Ok(Class::of(api_version, kind))
}
