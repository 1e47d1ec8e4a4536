//! The netfilter netlink socket: transactions and questions (nfnetlink, `net/netfilter/nfnetlink.c`).

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily, nftables::NfTablesMessage,
    none::ControlMessage,
};
use netlink_sys::{SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sys::socket::{setsockopt, sockopt};

use super::SnatError;

/// `NFNL_SUBSYS_NFTABLES`: whom a batch is for.
const NFTABLES: u16 = 10;
/// The kernel's answers are short; the largest holds a whole acknowledged message.
const ANSWER: usize = 64 * 1024;
/// What the kernel keeps of a send buffer for itself; it takes no message that is longer than the rest.
const OVERHEAD: usize = 4096;

/// One message of a transaction.
pub(super) enum Change {
    /// `NEW*`: no error where the thing is there.
    Create(NfTablesMessage),
    /// `NEWRULE` at the chain's end.
    Append(NfTablesMessage),
    /// `DEL*`: the thing must be there.
    Delete(NfTablesMessage),
}

/// What becomes of a transaction that the kernel has nothing against.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Commit,
    Abort,
}

/// A socket that never blocks: nfnetlink answers before `sendto` returns.
pub(super) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Socket {
    pub(super) fn open() -> Result<Self, SnatError> {
        let mut socket = netlink_sys::Socket::new(NETLINK_NETFILTER).map_err(SnatError::Open)?;
        socket.bind_auto().map_err(SnatError::Open)?;
        socket.set_non_blocking(true).map_err(SnatError::Open)?;
        // An error answer without the message that it is about: a large batch would overrun the receive buffer.
        socket.set_cap_ack(true).map_err(SnatError::Open)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Does all changes in one transaction, or none.
    pub(super) fn commit(&mut self, operation: &'static str, changes: Vec<Change>) -> Result<(), SnatError> {
        self.transact(operation, changes, Ending::Commit)
    }

    /// Has the kernel look at a transaction as it does at any, and then take it back, as `nft --check` does.
    pub(super) fn propose(&mut self, operation: &'static str, changes: Vec<Change>) -> Result<(), SnatError> {
        self.transact(operation, changes, Ending::Abort)
    }

    fn transact(&mut self, operation: &'static str, changes: Vec<Change>, ends: Ending) -> Result<(), SnatError> {
        let last = changes.len().saturating_sub(1);
        let first = self.sequence.wrapping_add(1);
        let mut batch = self.message(ControlMessage::BatchBegin, 0);
        for (index, change) in changes.into_iter().enumerate() {
            let (message, flags) = match change {
                Change::Create(message) => (message, NLM_F_CREATE),
                Change::Append(message) => (message, NLM_F_CREATE | NLM_F_APPEND),
                Change::Delete(message) => (message, 0),
            };
            // Errors are always told. One acknowledgement is enough to know that all were looked at.
            batch.extend(self.message(message, if index == last { flags | NLM_F_ACK } else { flags }));
        }
        let acknowledged = self.sequence;
        // Without its end a batch is looked at, and taken back (`NFNL_ABORT_VALIDATE`).
        if ends == Ending::Commit {
            batch.extend(self.message(ControlMessage::BatchEnd, 0));
        }
        self.send(operation, &batch)?;
        self.acknowledgement(operation, first, acknowledged)
    }

    /// Asks for one thing; `None`: it is not there.
    pub(super) fn ask(
        &mut self,
        operation: &'static str,
        question: NfTablesMessage,
    ) -> Result<Option<NetfilterMessageInner>, SnatError> {
        let question = self.message(question, 0);
        self.send(operation, &question)?;
        let sequence = self.sequence;
        for answer in self.answers(operation)? {
            if answer.header.sequence_number != sequence {
                continue;
            }
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => return Ok(Some(message.inner)),
                NetlinkPayload::Error(error) if error.raw_code() == -libc::ENOENT => return Ok(None),
                NetlinkPayload::Error(error) => return Err(SnatError::Refused { operation, source: error.to_io() }),
                _ => {}
            }
        }
        Err(SnatError::Unanswered { operation })
    }

    /// One message, ready to be sent.
    fn message(&mut self, inner: impl Into<NetfilterMessageInner>, flags: u16) -> Vec<u8> {
        let inner = inner.into();
        let header = match inner {
            NetfilterMessageInner::NfTables(_) => NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0),
            _ => NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, NFTABLES),
        };
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(NetfilterMessage::new(header, inner));
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn send(&mut self, operation: &'static str, bytes: &[u8]) -> Result<(), SnatError> {
        let failed = |source| SnatError::Exchange { operation, source };
        // Best effort: where the privilege is missing, the send below says so.
        let _ = setsockopt(&self.socket, sockopt::SndBufForce, &(bytes.len() + OVERHEAD));
        let sent = self.socket.send_to(bytes, &SocketAddr::new(0, 0), 0).map_err(failed)?;
        if sent == bytes.len() { Ok(()) } else { Err(failed(io::ErrorKind::WriteZero.into())) }
    }

    /// The first error among a transaction's messages, or that its last change was acknowledged.
    fn acknowledgement(&mut self, operation: &'static str, first: u32, last: u32) -> Result<(), SnatError> {
        let mut acknowledged = false;
        for answer in self.answers(operation)? {
            let NetlinkPayload::Error(error) = answer.payload else { continue };
            let sequence = answer.header.sequence_number;
            // Answers to an exchange that broke off may be left over.
            if sequence.wrapping_sub(first) > last.wrapping_sub(first) {
                continue;
            }
            if error.raw_code() != 0 {
                return Err(SnatError::Refused { operation, source: error.to_io() });
            }
            acknowledged |= sequence == last;
        }
        if acknowledged { Ok(()) } else { Err(SnatError::Unanswered { operation }) }
    }

    /// Everything that the kernel has answered.
    fn answers(&mut self, operation: &'static str) -> Result<Vec<NetlinkMessage<NetfilterMessage>>, SnatError> {
        let mut answers = Vec::new();
        let mut buffer = Vec::with_capacity(ANSWER);
        loop {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(0) => return Ok(answers),
                Ok(_) => parse(operation, &buffer, &mut answers)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(answers),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(SnatError::Exchange { operation, source }),
            }
        }
    }
}

/// The messages of one datagram.
fn parse(
    operation: &'static str,
    mut bytes: &[u8],
    answers: &mut Vec<NetlinkMessage<NetfilterMessage>>,
) -> Result<(), SnatError> {
    while !bytes.is_empty() {
        let message = NetlinkMessage::<NetfilterMessage>::deserialize(bytes)
            .map_err(|error| SnatError::Malformed { operation, reason: error.to_string() })?;
        // Messages are aligned to four bytes (netlink(7)).
        let length = (message.header.length as usize).next_multiple_of(4);
        bytes = bytes.get(length..).unwrap_or_default();
        answers.push(message);
    }
    Ok(())
}
