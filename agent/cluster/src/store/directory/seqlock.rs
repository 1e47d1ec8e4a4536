//! Locks Leases for writers and numbers their versions, in the file `.ledger` beside them. The
//! numbers tell readers that nothing was written.
//!
//! It has [`RECORD_COUNT`] records. A VIP's record is that of its address' last 12 bits, so
//! neighboring addresses have different ones. A node's record is that of a hash of its name. A record works like a sequence lock:
//! - A writer of one of its Leases *locks* it, as a range of bytes (`F_OFD_SETLK`). So an agent
//!   that is stopped in the middle of a write blocks a few VIPs only.
//! - It *counts*: its number is odd while a Lease is written, and even and greater than ever before
//!   afterwards. A reader that finds the same even number as before its last read need not read
//!   these Leases again. The number is also odd after a writer died, until the next one comes.
//!
//! Readers take no lock, so a stopped reader blocks no writer. They may see a number half written,
//! which does no harm: where more than the last digit changes, the number before is odd. So a
//! half-written number is odd, or it is old digits followed by zeros, which is less than any number
//! that is still to come.
//!
//! The first number is the time in microseconds. So a file that is created again gives no number
//! that the one before gave.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    net::IpAddr,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};

use crate::atomic_file;
use vipmux_model::{NodeName, Vip};

/// With 10,000 VIPs two or three share a record. Reading all records takes some ten microseconds.
const RECORD_COUNT: u16 = 1 << 12;
/// Bytes of a record: 15 hexadecimal digits and a line feed. A power of two, so that no record
/// spans two pages.
const RECORD_LENGTH: u16 = 16;
/// The largest number, with room for the next.
pub(super) const MAX_NUMBER: u64 = (1 << 60) - 5;
/// The time between two attempts to lock.
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// The file of sequence numbers and locks.
#[derive(Debug)]
pub(super) struct VersionFile {
    path: PathBuf,
}

/// The numbers of all records at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SequenceNumbers(Vec<u8>);

/// A VIP's record, locked until it is dropped.
#[derive(Debug)]
pub(super) struct RecordLock {
    file: File,
    at: u16,
}

impl VersionFile {
    /// Returns the file of this folder.
    pub(super) fn of(folder: &Path) -> Self {
        Self { path: folder.join(".ledger") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the file atomically if it is missing.
    pub(super) fn create(&self) -> io::Result<()> {
        if fs::exists(&self.path)? {
            return Ok(());
        }
        let mut file = tempfile::Builder::new()
            .prefix(".ledger-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(atomic_file::parent_directory(&self.path))?;
        file.write_all(line(first()).repeat(RECORD_COUNT.into()).as_bytes())?;
        match file.persist_noclobber(&self.path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
            _ => Ok(()),
        }
    }

    /// Returns the numbers now; none if the file is missing.
    pub(super) fn numbers(&self) -> io::Result<SequenceNumbers> {
        let mut bytes = Vec::new();
        match File::open(&self.path) {
            Ok(file) => file.take(u64::from(RECORD_COUNT) * u64::from(RECORD_LENGTH)).read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(SequenceNumbers(bytes))
    }

    /// Locks a record. Fails with the kind `TimedOut` if another agent holds the lock until
    /// `deadline`.
    pub(super) fn lock(&self, index: RecordIndex, deadline: Instant) -> io::Result<RecordLock> {
        loop {
            self.create()?;
            let file = File::options().read(true).write(true).open(&self.path)?;
            let record = RecordLock { file, at: index.0 * RECORD_LENGTH };
            while !record.try_lock()? {
                if Instant::now() >= deadline {
                    let why = "another agent has the lock all the time: is one stopped?";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                sleep(LOCK_RETRY);
            }
            // A lock on a file that was deleted in between keeps nobody out.
            if fs::metadata(&self.path).is_ok_and(|now| record.file.metadata().is_ok_and(|own| same(&now, &own))) {
                return Ok(record);
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the file of locks is replaced again and again"));
            }
        }
    }
}

fn same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// The index of a record. It is the same on all agents.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordIndex(u16);

impl From<Vip> for RecordIndex {
    fn from(vip: Vip) -> Self {
        let (high, low) = match vip.address() {
            IpAddr::V4(address) => (address.octets()[2], address.octets()[3]),
            IpAddr::V6(address) => (address.octets()[14], address.octets()[15]),
        };
        Self(u16::from_be_bytes([high, low]) % RECORD_COUNT)
    }
}

impl From<&NodeName> for RecordIndex {
    fn from(node: &NodeName) -> Self {
        let hash = |hash: u16, byte: u8| hash.wrapping_mul(31).wrapping_add(byte.into());
        Self(node.as_str().bytes().fold(0, hash) % RECORD_COUNT)
    }
}

fn line(number: u64) -> String {
    format!("{number:015x}\n")
}

/// Returns the number of a record; `None`: it is damaged.
fn number(line: &[u8]) -> Option<u64> {
    let digits = line.strip_suffix(b"\n").filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    let number = u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    Some(number).filter(|number| line.len() == usize::from(RECORD_LENGTH) && *number <= MAX_NUMBER)
}

/// Returns an even number that no earlier file had.
fn first() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or_default().min(MAX_NUMBER) & !1
}

impl SequenceNumbers {
    /// Returns the VIP's record; `None` while one of its Leases is written, or may be half written.
    fn number_of(&self, vip: Vip) -> Option<&[u8]> {
        self.0.chunks(RECORD_LENGTH.into()).nth(RecordIndex::from(vip).0.into()).filter(|line| is_even(line))
    }

    /// Returns whether the VIP's Lease was not written since `before`, and was not being written
    /// then.
    pub(super) fn unchanged_since(&self, before: &Self, vip: Vip) -> bool {
        self.number_of(vip).is_some_and(|now| before.number_of(vip) == Some(now))
    }

    /// Returns whether no Lease is being written: all numbers are even.
    pub(super) fn all_even(&self) -> bool {
        self.0.len() == usize::from(RECORD_COUNT) * usize::from(RECORD_LENGTH)
            && self.0.chunks(RECORD_LENGTH.into()).all(is_even)
    }
}

fn is_even(line: &[u8]) -> bool {
    number(line).is_some_and(|number| number.is_multiple_of(2))
}

impl RecordLock {
    #[expect(clippy::cast_possible_truncation, reason = "both constants are 0 or 1")]
    fn try_lock(&self) -> io::Result<bool> {
        let range = libc::flock {
            l_type: libc::F_WRLCK as _,
            l_whence: libc::SEEK_SET as _,
            l_start: self.at.into(),
            l_len: RECORD_LENGTH.into(),
            l_pid: 0,
        };
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES | Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Marks the start of a write. Returns the next number, which is greater than `above`.
    pub(super) fn begin(&self, above: u64) -> io::Result<u64> {
        let mut line = [0; RECORD_LENGTH as usize];
        let now = match self.file.read_exact_at(&mut line, self.at.into()) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => number(&line).unwrap_or_else(first),
        };
        let odd = (now.max(above) + 1) | 1;
        if above > now {
            self.write(now | 1)?;
        }
        self.write(odd)?;
        Ok(odd + 1)
    }

    /// Marks the end of a write, also of one that failed.
    pub(super) fn end(&self, number: u64) -> io::Result<()> {
        self.write(number)
    }

    fn write(&self, number: u64) -> io::Result<()> {
        self.file.write_all_at(line(number).as_bytes(), self.at.into())
    }
}

#[cfg(test)]
mod tests;
