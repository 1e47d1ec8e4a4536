//! Tests a directory that changes as people and programs change one.

use std::{fs, io::Write as _, os::unix::fs::symlink};

use tempfile::TempDir;
use tokio::sync::watch::Receiver;

use super::*;
use vipmux_supervisor::Supervisor;
use vipmux_testing::PATIENCE;

struct Followed {
    /// The directory's parent, so that the directory can go.
    parent: TempDir,
    objects: Receiver<Arc<Objects>>,
    guard: WatchGuard,
}

impl Followed {
    /// Follows a directory that `fill` has filled.
    fn new(fill: impl Fn(&Path)) -> Self {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("manifests");
        fs::create_dir(&root).unwrap();
        fill(&root);
        let (objects, guard) = watch(&root, &Supervisor::default()).unwrap();
        Self { parent, objects, guard }
    }

    fn with(files: &[(&str, String)]) -> Self {
        Self::new(|root| files.iter().for_each(|(name, text)| fs::write(root.join(name), text).unwrap()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.parent.path().join("manifests").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Renames a complete file into place, so that nobody reads half of it.
    fn put(&self, name: &str, text: &str) {
        let hidden = format!(".{name}");
        self.write(&hidden, text);
        fs::rename(self.path(&hidden), self.path(name)).unwrap();
    }

    async fn until(&mut self, condition: impl Fn(&Objects) -> bool) -> Arc<Objects> {
        let found = tokio::time::timeout(PATIENCE, self.objects.wait_for(|objects| condition(objects)));
        let found = found.await.ok().map(|objects| Arc::clone(&objects.unwrap()));
        found.unwrap_or_else(|| panic!("never came about; last seen: {:?}", self.objects.borrow()))
    }

    /// Waits until the ports of `a` and `b` are these.
    async fn until_ports(&mut self, a: Option<i32>, b: Option<i32>) -> Arc<Objects> {
        self.until(|objects| (port_of(objects, "a"), port_of(objects, "b")) == (a, b)).await
    }
}

#[tokio::test]
async fn a_file_that_comes_changes_and_goes_is_followed() {
    let mut followed = Followed::with(&[("a.yaml", service("a", 1))]);
    followed.until_ports(Some(1), None).await;
    followed.write("b.yaml", &service("b", 2));
    followed.until_ports(Some(1), Some(2)).await;
    followed.write("b.yaml", &service("b", 3));
    followed.until_ports(Some(1), Some(3)).await;
    fs::remove_file(followed.path("a.yaml")).unwrap();
    assert_eq!(followed.until_ports(None, Some(3)).await.problems, []);
}

#[tokio::test]
async fn a_requested_refresh_finds_all_earlier_changes() {
    let followed = Followed::with(&[("a.yaml", service("a", 1))]);
    let mut refreshed = followed.guard.refreshed();
    assert_eq!(*refreshed.borrow(), 0);
    for port in 2..20 {
        followed.put("a.yaml", &service("a", port));
        let request = followed.guard.request_refresh();
        let done = tokio::time::timeout(PATIENCE, refreshed.wait_for(|refreshed| *refreshed >= request));
        assert_eq!(*done.await.unwrap().unwrap(), request);
        assert_eq!(port_of(&followed.objects.borrow(), "a"), Some(i32::from(port)));
    }
    // A scan that finds nothing new is reported, too.
    let request = followed.guard.request_refresh();
    tokio::time::timeout(PATIENCE, refreshed.wait_for(|refreshed| *refreshed >= request)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_file_that_is_renamed_into_place_is_followed() {
    let mut followed = Followed::with(&[("a.yaml", service("a", 1))]);
    for port in 2..20 {
        followed.write("a.yaml.tmp", &service("a", port));
        fs::rename(followed.path("a.yaml.tmp"), followed.path("a.yaml")).unwrap();
        followed.until_ports(Some(i32::from(port)), None).await;
    }
    fs::rename(followed.path("a.yaml"), followed.path("a.yaml.bak")).unwrap();
    followed.until_ports(None, None).await;
}

#[tokio::test]
async fn a_configmap_volume_is_followed() {
    let fill = |root: &Path, version: &str, port| {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("a.yaml"), service("a", port)).unwrap();
    };
    let mut followed = Followed::new(|root| {
        fill(root, "..2026_1", 1);
        symlink("..2026_1", root.join("..data")).unwrap();
        symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
    });
    followed.until_ports(Some(1), None).await;
    for (version, port) in [("..2026_2", 2), ("..2026_3", 3)] {
        fill(&followed.path(""), version, port);
        symlink(version, followed.path("..data_tmp")).unwrap();
        fs::rename(followed.path("..data_tmp"), followed.path("..data")).unwrap();
        assert_eq!(followed.until_ports(Some(i32::from(port)), None).await.problems, []);
        fs::remove_dir_all(followed.path(&format!("..2026_{}", port - 1))).unwrap();
    }
}

#[tokio::test]
async fn a_malformed_object_stays_in_force_as_it_was_until_it_is_repaired() {
    let both = |a| format!("{}---\n{}", service("a", a), service("b", 2));
    let mut followed = Followed::with(&[("a.yaml", both(1))]);
    followed.until_ports(Some(1), Some(2)).await;
    followed.put("a.yaml", &both(0));
    let objects = followed.until(|objects| objects.problems.len() == 1).await;
    assert_eq!((port_of(&objects, "a"), port_of(&objects, "b")), (Some(1), Some(2)));
    assert_eq!(objects.problems[0].file, followed.path("a.yaml"));
    assert_eq!(objects.problems[0].field, "spec.ports[0].port");
    followed.put("a.yaml", "a: [");
    let objects = followed.until(|objects| objects.problems.iter().any(|problem| problem.field.is_empty())).await;
    assert_eq!((port_of(&objects, "a"), port_of(&objects, "b")), (Some(1), Some(2)));
    followed.put("a.yaml", &both(7));
    assert_eq!(followed.until_ports(Some(7), Some(2)).await.problems, []);
}

#[tokio::test]
async fn a_file_that_is_written_in_pieces_is_read_whole() {
    let mut followed = Followed::with(&[("a.yaml", service("a", 1))]);
    let mut file = File::create(followed.path("a.yaml")).unwrap();
    for piece in format!("{}---\n{}", service("a", 5), service("b", 6)).as_bytes().chunks(7) {
        file.write_all(piece).unwrap();
    }
    drop(file);
    assert_eq!(followed.until_ports(Some(5), Some(6)).await.problems, []);
}

/// As a shell's redirection does it, and some editors.
#[tokio::test]
async fn a_file_that_is_written_anew_in_place_takes_nothing_away_meanwhile() {
    let both = |port| format!("{}---\n{}", service("a", port), service("b", port));
    for cut in [String::new(), service("a", 1)] {
        let mut followed = Followed::with(&[("ab.yaml", both(1))]);
        followed.until_ports(Some(1), Some(1)).await;
        for port in 2..5_u16 {
            followed.write("ab.yaml", &cut);
            scanned(&followed).await;
            assert_eq!(port_of(&followed.objects.borrow(), "b"), Some(i32::from(port) - 1));
            followed.write("ab.yaml", &both(port));
            followed.until_ports(Some(port.into()), Some(port.into())).await;
        }
    }
}

/// The file is empty again between the look at it and its reading.
#[tokio::test]
async fn a_file_that_is_cut_while_it_is_read_takes_nothing_away() {
    let mut followed = Followed::with(&[("a.yaml", service("a", 1))]);
    for port in 2..1_000_u16 {
        followed.write("a.yaml", "");
        followed.write("a.yaml", &service("a", port));
        assert!(port_of(&followed.objects.borrow(), "a").is_some(), "{port}");
    }
    followed.until_ports(Some(999), None).await;
}

#[tokio::test]
async fn what_a_file_loses_for_good_is_withdrawn() {
    let mut followed = Followed::with(&[("ab.yaml", format!("{}---\n{}", service("a", 1), service("b", 1)))]);
    followed.write("ab.yaml", &service("a", 1));
    followed.until_ports(Some(1), None).await;
    followed.write("ab.yaml", "");
    followed.until_ports(None, None).await;
    // A file that is renamed into place is complete.
    followed.put("ab.yaml", &format!("{}---\n{}", service("a", 1), service("b", 1)));
    followed.until_ports(Some(1), Some(1)).await;
    followed.put("ab.yaml", &service("b", 1));
    followed.until_ports(None, Some(1)).await;
}

#[tokio::test]
async fn directories_below_come_and_go() {
    let mut followed = Followed::with(&[]);
    fs::create_dir_all(followed.path("x/y")).unwrap();
    followed.write("x/y/a.yaml", &service("a", 1));
    followed.until_ports(Some(1), None).await;
    followed.write("x/y/a.yaml", &service("a", 2));
    followed.until_ports(Some(2), None).await;
    fs::create_dir(followed.parent.path().join("outside")).unwrap();
    fs::write(followed.parent.path().join("outside/b.yaml"), service("b", 3)).unwrap();
    fs::rename(followed.parent.path().join("outside"), followed.path("inside")).unwrap();
    followed.until_ports(Some(2), Some(3)).await;
    fs::remove_dir_all(followed.path("x")).unwrap();
    followed.until_ports(None, Some(3)).await;
    fs::rename(followed.path("inside"), followed.parent.path().join("outside")).unwrap();
    followed.until_ports(None, None).await;
}

#[tokio::test]
async fn while_the_directory_is_gone_its_last_state_is_in_force() {
    let mut followed = Followed::with(&[("a.yaml", service("a", 1))]);
    fs::rename(followed.path(""), followed.parent.path().join("away")).unwrap();
    let objects = followed.until(|objects| !objects.problems.is_empty()).await;
    assert_eq!(port_of(&objects, "a"), Some(1));
    assert!(objects.problems[0].message.ends_with("its last good state stays in force"), "{}", objects.problems[0]);
    fs::create_dir(followed.parent.path().join("next")).unwrap();
    fs::write(followed.parent.path().join("next/b.yaml"), service("b", 2)).unwrap();
    fs::rename(followed.parent.path().join("next"), followed.path("")).unwrap();
    assert_eq!(followed.until_ports(None, Some(2)).await.problems, []);
    followed.write("b.yaml", &service("b", 3));
    followed.until_ports(None, Some(3)).await;
}

/// Waits until the whole directory was scanned once more, and nothing is left to do.
async fn scanned(followed: &Followed) {
    let request = followed.guard.request_refresh();
    let mut refreshed = followed.guard.refreshed();
    tokio::time::timeout(PATIENCE, refreshed.wait_for(|done| *done >= request)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_removed_directory_takes_nothing_with_it() {
    // With many files, the removal takes longer than that of one file is held back.
    for files in [1, 2_000] {
        let mut followed = Followed::new(|root| {
            for i in 0..files {
                fs::create_dir_all(root.join("sub")).unwrap();
                fs::write(root.join(format!("{i}.yaml")), service(&format!("s{i}"), 80)).unwrap();
                fs::write(root.join(format!("sub/{i}.yaml")), service(&format!("t{i}"), 80)).unwrap();
            }
        });
        let before = Arc::clone(&followed.objects.borrow());
        fs::remove_dir_all(followed.path("")).unwrap();
        let objects = followed.until(|objects| !objects.problems.is_empty()).await;
        assert!(objects.problems[0].message.ends_with("its last good state stays in force"), "{}", objects.problems[0]);
        assert_eq!(objects.services, before.services);
        // An empty directory in its place is no wish to withdraw everything: a volume that is
        // unmounted leaves one, and a copy starts with one.
        fs::create_dir(followed.path("")).unwrap();
        let objects = followed.until(|objects| objects.problems[0].message.starts_with("an empty")).await;
        assert_eq!(objects.services, before.services);
        followed.put("a.yaml", &service("a", 1));
        assert_eq!(followed.until_ports(Some(1), None).await.problems, []);
        assert_eq!(followed.objects.borrow().services.len(), 1);
    }
}

#[tokio::test]
async fn a_directory_without_manifests_is_empty() {
    let mut followed = Followed::with(&[("a.yaml", service("a", 1)), ("b.yaml", service("b", 2))]);
    for file in ["a.yaml", "b.yaml"] {
        fs::remove_file(followed.path(file)).unwrap();
    }
    assert_eq!(followed.until_ports(None, None).await.problems, []);
}

#[tokio::test]
async fn a_directory_whose_parent_is_removed_and_made_again_is_followed() {
    let parent = tempfile::tempdir().unwrap();
    let (above, root) = (parent.path().join("above"), parent.path().join("above/manifests"));
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("a.yaml"), service("a", 1)).unwrap();
    let (objects, guard) = watch(&root, &Supervisor::default()).unwrap();
    let mut followed = Followed { parent, objects, guard };
    for port in 2..4 {
        fs::remove_dir_all(&above).unwrap();
        let objects = followed.until(|objects| !objects.problems.is_empty()).await;
        assert_eq!(port_of(&objects, "a"), Some(port - 1));
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("a.yaml"), service("a", u16::try_from(port).unwrap())).unwrap();
        assert_eq!(followed.until_ports(Some(port), None).await.problems, []);
    }
}

/// A link to itself stands in for a directory that may not be searched: root may search any.
#[tokio::test]
async fn what_cannot_be_looked_at_stays_in_force() {
    let mut followed = Followed::new(|root| {
        fs::create_dir(root.join(".real")).unwrap();
        fs::write(root.join(".real/a.yaml"), service("a", 1)).unwrap();
        symlink(".real", root.join("sub")).unwrap();
        fs::write(root.join("b.yaml"), service("b", 2)).unwrap();
    });
    symlink("sub", followed.path("next")).unwrap();
    fs::rename(followed.path("next"), followed.path("sub")).unwrap();
    scanned(&followed).await;
    let objects = followed.until(|objects| !objects.problems.is_empty()).await;
    assert_eq!((port_of(&objects, "a"), port_of(&objects, "b")), (Some(1), Some(2)));
    assert!(objects.problems[0].message.starts_with("cannot follow the link"), "{}", objects.problems[0]);
}

#[tokio::test]
async fn a_second_definition_changes_nothing_and_a_renamed_file_is_none() {
    let mut followed = Followed::with(&[("b.yaml", service("a", 1))]);
    followed.write("a.yaml", &service("a", 2));
    let objects = followed.until(|objects| !objects.problems.is_empty()).await;
    assert_eq!((port_of(&objects, "a"), &objects.problems[0].file), (Some(1), &followed.path("a.yaml")));
    fs::remove_file(followed.path("a.yaml")).unwrap();
    let objects = followed.until(|objects| objects.problems.is_empty()).await;
    assert_eq!(port_of(&objects, "a"), Some(1));
    let mut seen = followed.objects.clone();
    for (from, to) in [("b.yaml", "a.yaml"), ("a.yaml", "c.yaml")] {
        fs::rename(followed.path(from), followed.path(to)).unwrap();
        tokio::time::timeout(PATIENCE, seen.changed()).await.unwrap().unwrap();
        scanned(&followed).await;
        let objects = Arc::clone(&seen.borrow_and_update());
        assert_eq!((port_of(&objects, "a"), &*objects.problems), (Some(1), &[][..]), "{from} to {to}");
    }
}

#[tokio::test]
async fn a_directory_that_is_removed_and_made_again_is_followed() {
    let mut followed = Followed::with(&[("a.yaml", service("a", 1))]);
    for port in 2..5 {
        fs::remove_dir_all(followed.path("")).unwrap();
        fs::create_dir(followed.path("")).unwrap();
        followed.write("b.yaml", &service("b", port));
        followed.until_ports(None, Some(i32::from(port))).await;
    }
}

#[tokio::test]
async fn a_directory_that_is_a_link_follows_the_link() {
    let parent = tempfile::tempdir().unwrap();
    for (name, port) in [("one", 1), ("two", 2)] {
        fs::create_dir(parent.path().join(name)).unwrap();
        fs::write(parent.path().join(name).join("a.yaml"), service("a", port)).unwrap();
    }
    symlink("one", parent.path().join("manifests")).unwrap();
    let (objects, guard) = watch(&parent.path().join("manifests"), &Supervisor::default()).unwrap();
    let mut followed = Followed { parent, objects, guard };
    followed.until_ports(Some(1), None).await;
    symlink("two", followed.parent.path().join("next")).unwrap();
    fs::rename(followed.parent.path().join("next"), followed.path("").components().as_path()).unwrap();
    followed.until_ports(Some(2), None).await;
    fs::write(followed.parent.path().join("two/b.yaml"), service("b", 3)).unwrap();
    followed.until_ports(Some(2), Some(3)).await;
}

#[tokio::test]
async fn a_change_leaves_all_other_objects_the_same() {
    let files: Vec<_> = (0..200).map(|i| (format!("{i}.yaml"), service(&format!("s{i}"), 80))).collect();
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.clone())).collect();
    let mut followed = Followed::with(&files);
    let before = Arc::clone(&followed.objects.borrow());
    followed.write("7.yaml", &service("s7", 81));
    let after = followed.until(|objects| port_of(objects, "s7") == Some(81)).await;
    let same = after.services.iter().filter(|(name, service)| Arc::ptr_eq(service, &before.services[*name])).count();
    assert_eq!((before.services.len(), after.services.len(), same), (200, 200, 199));
}

#[tokio::test]
async fn a_storm_of_changes_ends_in_the_last_state() {
    let mut followed = Followed::with(&[]);
    for round in 1..=5 {
        for i in 0..200 {
            followed.write(&format!("{i}.yaml"), &service(&format!("s{i}"), round * 1_000 + i));
        }
    }
    let last = |objects: &Objects| (0..200).all(|i| port_of(objects, &format!("s{i}")) == Some(5_000 + i));
    assert_eq!(followed.until(last).await.problems, []);
}

#[tokio::test]
async fn following_ends_with_the_guard() {
    let Followed { mut objects, guard, parent: _parent } = Followed::with(&[]);
    drop(guard);
    let ended = tokio::time::timeout(PATIENCE, objects.changed()).await.expect("ends");
    assert!(ended.is_err());
}

#[test]
fn an_absent_directory_is_an_error() {
    let parent = tempfile::tempdir().unwrap();
    let absent = parent.path().join("absent");
    let error = watch(&absent, &Supervisor::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot list the directory {absent:?}"));
    fs::write(&absent, "").unwrap();
    let error = watch(&absent, &Supervisor::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot list the directory {absent:?}"));
}
