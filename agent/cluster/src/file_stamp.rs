//! Metadata that changes when a file does.

use std::{fs::Metadata, os::unix::fs::MetadataExt};

/// Metadata that changes when a file does. Two changes within a tick of the file system's clock can
/// have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// The last change of the content.
    pub(crate) modified: ModificationTime,
    /// Seconds and nanoseconds of the last change of the inode.
    changed: (i64, i64),
}

impl FileStamp {
    /// Returns whether both are of one file, not of one that took the other's place.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// The time of a file's last change of content, in seconds and nanoseconds since 1970. Zero for
/// standard input.
pub(crate) type ModificationTime = (i64, i64);

impl From<&Metadata> for FileStamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
