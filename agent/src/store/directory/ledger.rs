//! The file `.ledger` beside the Leases: what keeps writers apart, and tells readers that nothing was written.
//!
//! It has [`RECORDS`] records. A VIP's is that of its address' last 12 bits, so that neighbouring addresses have
//! different ones. A record
//! - is *locked* by whoever writes one of its Leases, as a range of bytes (`F_OFD_SETLK`): an agent that is stopped in
//!   the middle of it keeps others from a few VIPs only;
//! - *counts*: it is odd while a Lease is written, and even and greater than ever before thereafter. So a reader who
//!   finds the even number that it found before it last read these Leases need not read them again. The number is odd
//!   also after a writer died, until the next one comes.
//!
//! Readers take no lock, so that no stopped reader is in a writer's way. They may see a number half written, which does
//! no harm: where more than the last digit changes, the number before is odd. So what is half written is odd, or it is
//! old digits followed by zeros, which is less than any number that is still to come.
//!
//! The first number is the time in microseconds, so that a ledger that is made anew gives none that the one before
//! gave.

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

use crate::{durable, model::Vip};

/// At 10,000 VIPs two or three have one in common; reading all takes some ten microseconds.
const RECORDS: u16 = 1 << 12;
/// Bytes of a record: 15 hexadecimal digits and a line feed. A power of two, so that none is on two pages.
const LENGTH: u16 = 16;
/// A number that fits, with room for the next.
pub(super) const MAX_NUMBER: u64 = (1 << 60) - 5;
/// Between two attempts to lock.
const ATTEMPTS: Duration = Duration::from_millis(2);

/// The file.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
}

/// All numbers at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers(Vec<u8>);

/// A VIP's record, locked until it is dropped.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
    at: u16,
}

impl Ledger {
    /// The ledger of a folder.
    pub(super) fn of(folder: &Path) -> Self {
        Self { path: folder.join(".ledger") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it where there is none, whole.
    pub(super) fn create(&self) -> io::Result<()> {
        if fs::exists(&self.path)? {
            return Ok(());
        }
        let mut file = tempfile::Builder::new()
            .prefix(".ledger-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(durable::directory(&self.path))?;
        file.write_all(line(first()).repeat(RECORDS.into()).as_bytes())?;
        match file.persist_noclobber(&self.path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
            _ => Ok(()),
        }
    }

    /// The numbers now; none where there is no ledger.
    pub(super) fn numbers(&self) -> io::Result<Numbers> {
        let mut bytes = Vec::new();
        match File::open(&self.path) {
            Ok(file) => file.take(u64::from(RECORDS) * u64::from(LENGTH)).read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(Numbers(bytes))
    }

    /// Locks the VIP's record; an error of the kind `TimedOut`, if another has it until `deadline`.
    pub(super) fn lock(&self, vip: Vip, deadline: Instant) -> io::Result<Record> {
        loop {
            self.create()?;
            let file = File::options().read(true).write(true).open(&self.path)?;
            let record = Record { file, at: record(vip) * LENGTH };
            while !record.try_lock()? {
                if Instant::now() >= deadline {
                    let why = "another agent has the lock all the time: is one stopped?";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                sleep(ATTEMPTS);
            }
            // A lock on a file that somebody deleted meanwhile keeps nobody out.
            if fs::metadata(&self.path).is_ok_and(|now| record.file.metadata().is_ok_and(|own| same(&now, &own))) {
                return Ok(record);
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the ledger is another one again and again"));
            }
        }
    }
}

fn same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// The index of the VIP's record. All agents need the same.
fn record(vip: Vip) -> u16 {
    let (high, low) = match vip.0 {
        IpAddr::V4(address) => (address.octets()[2], address.octets()[3]),
        IpAddr::V6(address) => (address.octets()[14], address.octets()[15]),
    };
    u16::from_be_bytes([high, low]) % RECORDS
}

fn line(number: u64) -> String {
    format!("{number:015x}\n")
}

/// `None`: it is damaged.
fn number(line: &[u8]) -> Option<u64> {
    let digits = line.strip_suffix(b"\n").filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    let number = u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    Some(number).filter(|number| line.len() == usize::from(LENGTH) && *number <= MAX_NUMBER)
}

/// An even number that no ledger before had.
fn first() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or_default().min(MAX_NUMBER) & !1
}

impl Numbers {
    /// The VIP's; `None` while a Lease of its record is written, or may have been half written.
    fn settled(&self, vip: Vip) -> Option<&[u8]> {
        self.0.chunks(LENGTH.into()).nth(record(vip).into()).filter(|line| is_settled(line))
    }

    /// Whether nothing was written to the VIP's Lease since `before`, nor was being written then.
    pub(super) fn vouch(&self, before: &Self, vip: Vip) -> bool {
        self.settled(vip).is_some_and(|now| before.settled(vip) == Some(now))
    }

    /// Whether nothing is being written.
    pub(super) fn all_settled(&self) -> bool {
        self.0.len() == usize::from(RECORDS) * usize::from(LENGTH) && self.0.chunks(LENGTH.into()).all(is_settled)
    }
}

fn is_settled(line: &[u8]) -> bool {
    number(line).is_some_and(|number| number.is_multiple_of(2))
}

impl Record {
    #[expect(clippy::cast_possible_truncation, reason = "both constants are 0 or 1")]
    fn try_lock(&self) -> io::Result<bool> {
        let range = libc::flock {
            l_type: libc::F_WRLCK as _,
            l_whence: libc::SEEK_SET as _,
            l_start: self.at.into(),
            l_len: LENGTH.into(),
            l_pid: 0,
        };
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES | Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Says that a Lease is being written, and which number will be next, greater than `above`.
    pub(super) fn begin(&self, above: u64) -> io::Result<u64> {
        let mut line = [0; LENGTH as usize];
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

    /// Says that it was written, or was not.
    pub(super) fn end(&self, number: u64) -> io::Result<()> {
        self.write(number)
    }

    fn write(&self, number: u64) -> io::Result<()> {
        self.file.write_all_at(line(number).as_bytes(), self.at.into())
    }
}

#[cfg(test)]
mod tests;
