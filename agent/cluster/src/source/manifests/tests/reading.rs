//! Tests which objects are read, and from where.

use std::{collections::BTreeMap, fs, num::NonZeroUsize};

use proptest::prelude::*;

use super::*;
use vipmux_model::api::{OnConflict, PoolSharing, metallb::L2AdvertisementSpec};
use vipmux_testing::names::node_name;

#[test]
fn every_kind_that_is_known_is_read() {
    let text = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, ports: [{port: 80, targetPort: http}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.1], nodeName: node-1, conditions: {ready: true}}]
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: public, namespace: metallb-system}
spec: {addresses: [192.0.2.16/28], avoidBuggyIPs: true, serviceAllocation: {priority: 5, namespaces: [shop]}}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: everything, namespace: metallb-system}
---
apiVersion: vipmux.io/v1alpha1
kind: VipPool
metadata: {name: internal, labels: {tier: internal}}
spec: {addresses: [192.0.2.7, \"2001:db8::/64\"], sharing: same-namespace, onConflict: pending}
---
apiVersion: vipmux.io/v1alpha1
kind: VipPolicy
metadata: {name: internal}
spec: {poolSelectors: [{matchLabels: {tier: internal}}], preferredNodes: [{weight: 10, nodeSelector: {}}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
";
    let objects = objects(text);
    assert_eq!(objects.problems, []);
    assert_eq!(port_of(&objects, "web"), Some(80));
    let slice = &objects.endpoint_slices[&("shop".to_owned(), "web-1".to_owned())];
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(8080));
    assert!(objects.nodes.contains_key(&node_name("node-1")));
    assert_eq!(objects.namespaces["shop"].metadata.labels.as_ref().unwrap()["team"], "a");
    let spec = &objects.address_pools["public"].spec;
    assert_eq!((spec.avoid_buggy_ips, spec.service_allocation.as_ref().unwrap().priority), (Some(true), Some(5)));
    assert_eq!(objects.l2_advertisements["everything"].spec, L2AdvertisementSpec::default());
    let pool = &objects.vip_pools["internal"];
    assert_eq!((pool.spec.addresses.len(), pool.spec.auto_assign), (2, true));
    assert_eq!((pool.spec.sharing, pool.spec.on_conflict), (PoolSharing::SameNamespace, OnConflict::Pending));
    assert_eq!(objects.vip_policies["internal"].spec.preferred_nodes[0].weight, 10);
}

#[test]
fn a_missing_namespace_is_default() {
    let objects = objects("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {}");
    let (name, service) = objects.services.get_min().unwrap();
    assert_eq!(name.to_string(), "default/web");
    assert_eq!(service.metadata.namespace.as_deref(), Some("default"));
}

#[test]
fn lists_of_every_form_are_flattened() {
    let item = "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, spec: {ports: [{port: 1}]}}";
    let bare = "{metadata: {name: b, namespace: shop}, spec: {ports: [{port: 2}]}}";
    let text = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {item}\n- apiVersion: v1\n  kind: ServiceList\n  items: [{bare}]\n---\napiVersion: v1\nkind: NodeList\nitems: null\n"
    );
    let objects = objects(&text);
    assert_eq!(objects.problems, []);
    assert_eq!((port_of(&objects, "a"), port_of(&objects, "b")), (Some(1), Some(2)));
}

#[test]
fn json_is_read_as_kubectl_prints_it() {
    let text = "{\n\t\"apiVersion\": \"v1\",\n    \"kind\": \"List\", \"metadata\": {\"resourceVersion\": \"\"},\n    \"items\": [{\"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"a\", \"namespace\": \"shop\", \"managedFields\": [{\"manager\": \"kubectl\"}]}, \"spec\": {\"ports\": [{\"port\": 1}]}}]\n}\n";
    let read = objects(text);
    assert_eq!((read.problems.as_slice(), port_of(&read, "a")), ([].as_slice(), Some(1)));
    assert!(read.services[&service_name("a")].metadata.managed_fields.is_none());
    let problems = objects(&text.replace("\"port\": 1", "\"port\": 0")).problems;
    assert_eq!((problems[0].line, problems[0].field.as_str()), (Some(4), "items[0].spec.ports[0].port"));
}

#[test]
fn json_objects_that_follow_one_another_are_read() {
    let service = |name: &str, port: u32| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"shop"}},"spec":{{"ports":[{{"port":{port}}}]}}}}"#
        )
    };
    let objects = objects(&format!("{}\n{}\n{}\n", service("a", 1), service("b", 2), service("c", 0)));
    assert_eq!((port_of(&objects, "a"), port_of(&objects, "b")), (Some(1), Some(2)));
    let [problem] = objects.problems.as_slice() else { panic!("{:?}", objects.problems) };
    assert_eq!((document(problem), problem.line, problem.field.as_str()), (3, Some(3), "spec.ports[0].port"));
}

#[test]
fn unread_kinds_of_all_files_are_told_until_their_files_go() {
    let pool = "apiVersion: metallb.io/v1beta1\nkind: AddressPool\nmetadata: {name: a, namespace: x}\n";
    let endpoints = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web, namespace: shop}\n";
    let mut store = ObjectStore::default();
    let objects = change(&mut store, &[("a.yaml", Some(pool)), ("b.yaml", Some(pool)), ("c.yaml", Some(endpoints))]);
    assert_eq!(objects.problems, []);
    assert_eq!(objects.unread.kinds.keys().collect::<Vec<_>>(), [&"AddressPool"]);
    assert_eq!(objects.unread.endpoints, [service_name("web")].into());
    let objects = change(&mut store, &[("a.yaml", None), ("b.yaml", Some("")), ("c.yaml", Some(""))]);
    assert_eq!(objects, Objects::default());
}

/// Returns the number of a problem's document; 0: the whole file.
fn document(problem: &Problem) -> usize {
    problem.document.map_or(0, NonZeroUsize::get)
}

#[test]
fn the_first_definition_by_file_and_document_is_in_force() {
    let both = format!("{}---\n{}", service("web", 2), service("web", 3));
    let objects = objects_of(&[("b.yaml", &both), ("a.yaml", &service("web", 1))]);
    assert_eq!(port_of(&objects, "web"), Some(1));
    let problems: Vec<_> = objects.problems.iter().map(|p| (p.file.to_str().unwrap(), document(p), p.line)).collect();
    assert_eq!(problems, [("b.yaml", 1, Some(1)), ("b.yaml", 2, Some(11))]);
    for problem in &objects.problems {
        assert_eq!(problem.message, "Service shop/web is defined in a.yaml, document 1, too; that one is in force");
    }
}

#[test]
fn when_the_first_definition_goes_the_next_is_in_force() {
    let mut store = ObjectStore::default();
    for (file, parsed) in parsed(&[("a.yaml", &service("web", 1)), ("b.yaml", &service("web", 2))]) {
        store.put(&file, parsed);
    }
    assert!(store.remove(Path::new("a.yaml")));
    assert_eq!((port_of(&store.snapshot(), "web"), store.snapshot().problems), (Some(2), vec![]));
    assert!(store.remove(Path::new("b.yaml")));
    assert_eq!(store.snapshot(), Objects::default());
}

/// Replaces files in a store; `None`: the file went.
fn change(store: &mut ObjectStore, files: &[(&str, Option<&str>)]) -> Objects {
    for (file, text) in files {
        match text {
            Some(text) => parsed(&[(file, text)]).into_iter().for_each(|(file, parsed)| {
                store.put(&file, parsed);
            }),
            None => {
                store.remove(Path::new(file));
            }
        }
    }
    store.snapshot()
}

#[test]
fn at_a_start_the_definition_in_the_file_that_was_modified_first_is_in_force() {
    let (old, new) = (service("web", 1), service("web", 2));
    for files in [[("b.yaml", 5, old.as_str()), ("a.yaml", 7, &new)], [("a.yaml", 5, &old), ("b.yaml", 5, &new)]] {
        let mut store = ObjectStore::default();
        for (file, parsed) in modified(&files) {
            store.put(&file, parsed);
        }
        assert_eq!(port_of(&store.snapshot(), "web"), Some(1), "{files:?}");
    }
}

#[test]
fn a_second_definition_replaces_none_of_any_kind_that_is_in_force() {
    let labeled = |label: &str| {
        let labels = format!("labels: {{is: {label}, kubernetes.io/service-name: web}}");
        format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: web, {labels}}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, {labels}}}
addressType: IPv4
endpoints: []
---
apiVersion: v1
kind: Node
metadata: {{name: node-1, {labels}}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: shop, {labels}}}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {{name: lan, {labels}}}
spec: {{addresses: [192.0.2.0/28]}}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {{name: lan, {labels}}}
---
apiVersion: vipmux.io/v1alpha1
kind: VipPool
metadata: {{name: lan, {labels}}}
spec: {{addresses: [192.0.2.16/28]}}
---
apiVersion: vipmux.io/v1alpha1
kind: VipPolicy
metadata: {{name: lan, {labels}}}
spec: {{}}
"
        )
    };
    let mut store = ObjectStore::default();
    let before = change(&mut store, &[("b.yaml", Some(&labeled("first")))]);
    assert_eq!(before.problems, []);
    let after = change(&mut store, &[("a.yaml", Some(&labeled("second")))]);
    assert_eq!((after.problems.len(), Objects { problems: vec![], ..after.clone() }), (8, before.clone()));
    for problem in &after.problems {
        assert_eq!(problem.file, Path::new("a.yaml"));
        assert!(problem.message.ends_with(" too; that one is in force"), "{problem}");
    }
    assert_eq!(change(&mut store, &[("a.yaml", None)]), before);
}

#[test]
fn what_is_in_force_stays_so_through_edits_and_moves() {
    let two = |first, second| format!("{}---\n{}", service("web", first), service("web", second));
    let mut store = ObjectStore::default();
    let mut port = |files: &[(&str, Option<&str>)]| port_of(&change(&mut store, files), "web");
    assert_eq!(port(&[("b.yaml", Some(&service("web", 1)))]), Some(1));
    assert_eq!(port(&[("a.yaml", Some(&service("web", 2)))]), Some(1), "a file that sorts earlier");
    assert_eq!(port(&[("b.yaml", Some(&service("web", 3)))]), Some(3), "an edit");
    assert_eq!(port(&[("b.yaml", Some(&two(4, 3)))]), Some(3), "a document before it");
    assert_eq!(port(&[("b.yaml", Some(&two(4, 5)))]), Some(5), "an edit of the second document");
    assert_eq!(port(&[("b.yaml", None), ("c.yaml", Some(&service("web", 5)))]), Some(5), "a renamed file");
    assert_eq!(port(&[("c.yaml", Some(&service("web", 0)))]), Some(5), "a malformed edit");
    assert_eq!(port(&[("c.yaml", None)]), Some(2), "it went");
    assert_eq!(port(&[("a.yaml", None)]), None);
    assert_eq!(port(&[("a.yaml", Some(&service("web", 6))), ("b.yaml", Some(&service("web", 7)))]), Some(6), "anew");
}

#[test]
fn a_renamed_file_is_no_second_definition() {
    let mut store = ObjectStore::default();
    change(&mut store, &[("a.yaml", Some(&service("web", 1)))]);
    for (from, to) in [("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")] {
        for moves in [[(from, None), (to, Some(service("web", 1)))], [(to, Some(service("web", 1))), (from, None)]] {
            let moves = moves.iter().map(|(file, text)| (*file, text.as_deref())).collect::<Vec<_>>();
            let objects = change(&mut store, &moves);
            assert_eq!((port_of(&objects, "web"), objects.problems), (Some(1), vec![]));
        }
        change(&mut store, &[(to, Some(&service("web", 1)))]);
    }
}

/// Returns the objects in force after a file with two Services becomes `text`.
fn after(text: &str) -> Objects {
    let mut store = ObjectStore::default();
    let before = format!("{}---\n{}", service("a", 1), service("b", 2));
    for text in [before.as_str(), text] {
        for (file, parsed) in parsed(&[("a.yaml", text)]) {
            assert!(store.put(&file, parsed));
        }
    }
    store.snapshot()
}

#[test]
fn the_last_good_version_of_a_malformed_object_stays_in_force() {
    let objects = after(&format!("{}---\n{}", service("a", 0), service("c", 3)));
    assert_eq!((port_of(&objects, "a"), port_of(&objects, "b"), port_of(&objects, "c")), (Some(1), None, Some(3)));
    assert_eq!(objects.problems.len(), 1);
    assert_eq!(objects.problems[0].message, "0 is no port: 1 to 65535; the last good version stays in force");
}

#[test]
fn a_document_that_cannot_be_identified_removes_nothing() {
    for broken in ["a: [", "apiVersion: v1\nkind: Service\nmetadata: {}\nspec: {}", "kind: Service"] {
        let objects = after(&format!("{}---\n{broken}", service("a", 5)));
        assert_eq!((port_of(&objects, "a"), port_of(&objects, "b")), (Some(5), Some(2)), "{broken}");
        assert!(objects.problems[0].message.ends_with("; the last good version stays in force"), "{broken}");
    }
}

#[test]
fn a_file_that_cannot_be_read_removes_nothing() {
    let mut store = ObjectStore::default();
    for (file, parsed) in parsed(&[("a.yaml", &service("a", 1))]) {
        store.put(&file, parsed);
        let problem = Problem::of_file(&file, "not UTF-8".to_owned());
        assert!(store.put(&file, ParsedFile::unusable(problem.clone())));
        assert!(!store.put(&file, ParsedFile::unusable(problem)), "the same state is no change");
    }
    assert_eq!(port_of(&store.snapshot(), "a"), Some(1));
}

#[test]
fn a_malformed_object_that_is_repaired_is_replaced() {
    let mut store = ObjectStore::default();
    for port in [1, 0, 3] {
        for (file, parsed) in parsed(&[("a.yaml", &service("a", port))]) {
            store.put(&file, parsed);
        }
    }
    assert_eq!((port_of(&store.snapshot(), "a"), store.snapshot().problems), (Some(3), vec![]));
}

#[test]
fn unchanged_objects_of_a_changed_file_stay_the_same() {
    let mut store = ObjectStore::default();
    let mut first = None;
    for port in [1, 2] {
        for (file, parsed) in parsed(&[("a.yaml", &format!("{}---\n{}", service("a", 9), service("b", port)))]) {
            store.put(&file, parsed);
        }
        let service = Arc::clone(&store.snapshot().services[&service_name("a")]);
        let first = first.get_or_insert_with(|| Arc::clone(&service));
        assert!(Arc::ptr_eq(first, &service));
    }
}

#[test]
fn a_directory_is_read_as_kubectl_does_without_hidden_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, service_name: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, service(service_name, 1)).unwrap();
    };
    write("a.yaml", "a");
    write("b.yml", "b");
    write("sub/c.yaml", "c");
    fs::write(
        dir.path().join("d.json"),
        "{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"d\"}}",
    )
    .unwrap();
    write("README.md", "e");
    write(".f.yaml", "f");
    write("..2026/g.yaml", "g");
    std::os::unix::fs::symlink("..2026/g.yaml", dir.path().join("g.yaml")).unwrap();
    let objects = read(&[dir.path().to_owned()]).unwrap();
    assert_eq!(objects.problems, []);
    let names: Vec<_> = objects.services.keys().map(ServiceName::name).collect();
    assert_eq!(names, ["a", "b", "c", "g"]);
    assert_eq!(objects.nodes.len(), 1);
}

#[test]
fn a_directory_that_holds_itself_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", 1)).unwrap();
    std::os::unix::fs::symlink(".", dir.path().join("loop")).unwrap();
    let objects = read(&[dir.path().to_owned()]).unwrap();
    assert_eq!(objects.services.len(), 1);
    assert_eq!(objects.problems.len(), 1);
    assert!(objects.problems[0].to_string().ends_with("/loop: the directory leads back to one that it is in"));
}

#[test]
fn directories_that_links_multiply_are_read_up_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..7 {
        fs::create_dir(dir.path().join(format!(".{i}"))).unwrap();
        for link in 0..6 {
            let path = dir.path().join(format!(".{i}/{link}"));
            std::os::unix::fs::symlink(format!("../.{}", i + 1), path).unwrap();
        }
    }
    fs::create_dir(dir.path().join(".7")).unwrap();
    fs::write(dir.path().join("z.yaml"), service("z", 1)).unwrap();
    std::os::unix::fs::symlink(".0", dir.path().join("a")).unwrap();
    let objects = read(&[dir.path().to_owned()]).unwrap();
    assert_eq!(objects.services.len(), 1, "what comes after them is read");
    let problems: Vec<_> = objects.problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(problems, ["left out: more than 16384 directories"]);
}

#[test]
fn a_file_that_is_named_may_have_any_name_and_a_pipe_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    fs::write(&path, service("a", 1)).unwrap();
    let mut stdin = io::Cursor::new(service("b", 2));
    let objects = read_from(&[path, PathBuf::from("-")], &mut stdin).unwrap();
    assert_eq!((port_of(&objects, "a"), port_of(&objects, "b")), (Some(1), Some(2)));
}

#[test]
fn problems_of_standard_input_name_it() {
    let objects = read_from(&[PathBuf::from("-")], &mut io::Cursor::new(service("a", 0))).unwrap();
    assert_eq!(objects.problems[0].to_string(), "-:9: document 1: spec.ports[0].port: 0 is no port: 1 to 65535");
}

#[test]
fn an_absent_path_is_an_error_and_an_empty_directory_is_not() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(read(&[dir.path().to_owned()]).unwrap(), Objects::default());
    let error = read(&[dir.path().join("absent")]).unwrap_err();
    assert!(error.to_string().starts_with("cannot read \"/"), "{error}");
}

#[test]
fn a_path_that_is_no_text_or_no_file_is_a_problem_of_that_path() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), b"a: 1\nb: \xff").unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("b.yaml")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("c.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    File::create(dir.path().join("d.yaml")).unwrap().set_len(files::MAX_FILE_SIZE + 1).unwrap();
    fs::write(dir.path().join("e.yaml"), service("e", 1)).unwrap();
    let objects = read(&[dir.path().to_owned()]).unwrap();
    assert_eq!(port_of(&objects, "e"), Some(1));
    let problems: Vec<_> = objects
        .problems
        .iter()
        .map(|p| (p.file.file_name().unwrap().to_str().unwrap(), document(p), p.line, p.message.as_str()))
        .collect();
    assert_eq!(
        problems,
        [
            ("a.yaml", 0, Some(2), "not UTF-8"),
            ("b.yaml", 0, None, "cannot read the file: a symbolic link to nothing"),
            ("c.yaml", 0, None, "cannot read the file: no regular file"),
            ("d.yaml", 0, None, "larger than 32 MiB"),
        ]
    );
}

proptest! {
    #[test]
    fn a_store_that_was_changed_holds_one_definition_of_each_object(steps in prop::collection::vec((0..3usize, 0..4usize, 1..4u16), 1..40)) {
        let mut store = ObjectStore::default();
        let mut texts = BTreeMap::new();
        // The Services in force, with their files.
        let mut in_force: BTreeMap<&str, &str> = BTreeMap::new();
        for (file, name, port) in steps {
            let (file, name) = (["a.yaml", "b.yaml", "c.yaml"][file], ["a", "b", "c"].get(name));
            match name {
                Some(name) => drop(texts.insert(file, (*name, port))),
                None => drop(texts.remove(file)),
            }
            let before = store.snapshot();
            let kept = before.clone();
            let text = texts.get(file).map(|(name, port)| service(name, *port));
            let after = change(&mut store, &[(file, text.as_deref())]);
            prop_assert_eq!(&before, &kept, "a snapshot changed");
            in_force.retain(|name, file| texts.get(file).is_some_and(|(other, _)| other == name));
            // If the definition in force goes, the same object elsewhere comes before another one.
            for name in ["a", "b", "c"] {
                let of_name = |file: &&str| texts.get(*file).is_some_and(|(other, _)| *other == name);
                let same = |file: &&str| port_of(&kept, name) == Some(i32::from(texts[*file].1));
                let files = || ["a.yaml", "b.yaml", "c.yaml"].into_iter().filter(of_name);
                let first = files().find(same).or_else(|| files().next());
                if let Some(file) = in_force.get(name).copied().or(first) {
                    in_force.insert(name, file);
                }
                let expected = in_force.get(name).map(|file| i32::from(texts[file].1));
                prop_assert_eq!(port_of(&after, name), expected, "{}", name);
            }
            prop_assert_eq!(after.problems.len(), texts.len() - in_force.len());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        objects(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn arbitrary_yaml_shapes_never_panic(text in "(apiVersion: v1\n|kind: (Service|List|Node)\n|---\n|[-a-z0-9:{}\\[\\],&*!#|>%@\"' \t\n]{1,8}){0,40}") {
        objects(&text);
    }

    #[test]
    fn a_mutilated_manifest_never_panics(cut in 0usize..140, byte in any::<u8>()) {
        let mut bytes = service("web", 80).into_bytes();
        let at = cut.min(bytes.len() - 1);
        bytes[at] = byte;
        objects(&String::from_utf8_lossy(&bytes));
        bytes.truncate(at);
        objects(&String::from_utf8_lossy(&bytes));
    }
}
