//! Sends requests over generic netlink (Documentation/userspace-api/netlink/intro.rst).
//!
//! rtnetlink has no generic netlink. Attributes are not decoded, since only a few are needed.

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable as _, NLA_TYPE_MASK, NLM_F_ACK, NetlinkDeserializable, NetlinkHeader,
    NetlinkSerializable, Nla as _, NlasIterator, Parseable as _, parse_u16,
};

use vipmux_datapath::netlink::{self, NETLINK_GENERIC};

/// Bytes of `struct genlmsghdr`: the command, its version, and a reserved field.
const HEADER: usize = 4;
const VERSION: u8 = 1;

/// A message of a generic netlink family.
#[derive(Debug)]
struct GenericMessage {
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl NetlinkSerializable for GenericMessage {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        HEADER + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let (header, attributes) = buffer.split_at_mut(HEADER);
        header.copy_from_slice(&[self.command, VERSION, 0, 0]);
        self.attributes.as_slice().emit(attributes);
    }
}

impl NetlinkDeserializable for GenericMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let (general, attributes) = payload
            .split_at_checked(HEADER)
            .ok_or_else(|| DecodeError::from("a generic netlink message is too short"))?;
        let attributes = NlasIterator::new(attributes).map(|attribute| DefaultNla::parse(&attribute?));
        Ok(Self { family: header.message_type, command: general[0], attributes: attributes.collect::<Result<_, _>>()? })
    }
}

/// Sends a command with one attribute, and returns the attributes of the answer. `None`: the kernel
/// refused it.
pub(super) fn request(family: u16, command: u8, (kind, value): (u16, &[u8])) -> Option<Vec<DefaultNla>> {
    let message = GenericMessage { family, command, attributes: vec![DefaultNla::new(kind, value.to_vec())] };
    let answer = netlink::request(NETLINK_GENERIC, message, NLM_F_ACK).ok()?;
    Some(answer.into_iter().next()?.attributes)
}

/// Returns the number of a family. `None`: the kernel does not have it.
pub(super) fn family(name: &str) -> Option<u16> {
    /// `GENL_ID_CTRL`, and `CTRL_CMD_GETFAMILY` with its attributes.
    const CONTROL: u16 = 0x10;
    const GET_FAMILY: u8 = 3;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    let found = request(CONTROL, GET_FAMILY, (FAMILY_NAME, format!("{name}\0").as_bytes()))?;
    parse_u16(&value(&found, FAMILY_ID)?).ok()
}

/// Returns the value of the first attribute of this kind.
pub(super) fn value(attributes: &[DefaultNla], kind: u16) -> Option<Vec<u8>> {
    let attribute = attributes.iter().find(|attribute| attribute.kind() & NLA_TYPE_MASK == kind)?;
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    Some(value)
}
