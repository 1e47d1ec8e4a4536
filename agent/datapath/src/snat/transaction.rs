//! Sends nftables transactions and requests over netfilter netlink (nfnetlink,
//! `net/netfilter/nfnetlink.c`).
//!
//! netlink-packet-netfilter only encodes and decodes: it has neither sockets nor batches.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily, nftables::NfTablesMessage,
    none::ControlMessage,
};
use netlink_sys::{SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sys::socket::{setsockopt, sockopt};

use super::SnatError;

/// `NFNL_SUBSYS_NFTABLES`: the subsystem of a batch.
const NFTABLES: u16 = 10;
/// The size of the receive buffer. Answers are short; the largest contains a whole acknowledged
/// message.
const ANSWER: usize = 64 * 1024;
/// The part of a send buffer that the kernel keeps for itself. A message must fit into the rest.
const OVERHEAD: usize = 4096;

/// One message of a transaction.
pub(super) enum TransactionMessage {
    /// `NEW*`: no error if the object exists.
    Create(NfTablesMessage),
    /// `NEWRULE` at the chain's end.
    Append(NfTablesMessage),
    /// `DEL*`: the object must exist.
    Delete(NfTablesMessage),
}

/// The end of a transaction that the kernel accepts.
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
        // Error answers without the original message: a large batch would overrun the receive
        // buffer.
        socket.set_cap_ack(true).map_err(SnatError::Open)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Makes all changes in one transaction, or none.
    pub(super) fn commit(
        &mut self,
        operation: &'static str,
        changes: Vec<TransactionMessage>,
    ) -> Result<(), SnatError> {
        self.transact(operation, changes, Ending::Commit)
    }

    /// Has the kernel validate a transaction and then abort it, as `nft --check` does.
    pub(super) fn check(&mut self, operation: &'static str, changes: Vec<TransactionMessage>) -> Result<(), SnatError> {
        self.transact(operation, changes, Ending::Abort)
    }

    fn transact(
        &mut self,
        operation: &'static str,
        changes: Vec<TransactionMessage>,
        ends: Ending,
    ) -> Result<(), SnatError> {
        let last = changes.len().saturating_sub(1);
        let first = self.sequence.wrapping_add(1);
        let mut batch = self.message(ControlMessage::BatchBegin, 0);
        for (index, change) in changes.into_iter().enumerate() {
            let (message, flags) = match change {
                TransactionMessage::Create(message) => (message, NLM_F_CREATE),
                TransactionMessage::Append(message) => (message, NLM_F_CREATE | NLM_F_APPEND),
                TransactionMessage::Delete(message) => (message, 0),
            };
            // The kernel always reports errors. One acknowledgement, for the last change, shows
            // that it has processed all.
            batch.extend(self.message(message, if index == last { flags | NLM_F_ACK } else { flags }));
        }
        let acknowledged = self.sequence;
        // The kernel validates a batch without an end, and then aborts it (`NFNL_ABORT_VALIDATE`).
        if ends == Ending::Commit {
            batch.extend(self.message(ControlMessage::BatchEnd, 0));
        }
        self.send(operation, &batch)?;
        self.acknowledgement(operation, first, acknowledged)
    }

    /// Requests one object. `None`: it does not exist.
    pub(super) fn ask(
        &mut self,
        operation: &'static str,
        request: NfTablesMessage,
    ) -> Result<Option<NetfilterMessageInner>, SnatError> {
        let request = self.message(request, 0);
        self.send(operation, &request)?;
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

    /// Serializes one message.
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
        // Best effort: without the privilege, the send below fails.
        let _ = setsockopt(&self.socket, sockopt::SndBufForce, &(bytes.len() + OVERHEAD));
        let sent = self.socket.send_to(bytes, &SocketAddr::new(0, 0), 0).map_err(failed)?;
        if sent == bytes.len() { Ok(()) } else { Err(failed(io::ErrorKind::WriteZero.into())) }
    }

    /// Returns the first error of a transaction's messages, or `Ok` if its last change was
    /// acknowledged.
    fn acknowledgement(&mut self, operation: &'static str, first: u32, last: u32) -> Result<(), SnatError> {
        let mut acknowledged = false;
        for answer in self.answers(operation)? {
            let NetlinkPayload::Error(error) = answer.payload else { continue };
            let sequence = answer.header.sequence_number;
            // Answers to an earlier interrupted exchange may still arrive.
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

    /// Returns all answers that have arrived.
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

/// Parses the messages of one datagram.
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
