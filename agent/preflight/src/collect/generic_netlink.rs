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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_by_kind_and_a_truncated_message_is_refused() {
        let attributes =
            vec![DefaultNla::new(1, b"ab\0".to_vec()), DefaultNla::new(0x8002, 7_u32.to_ne_bytes().into())];
        let message = GenericMessage { family: 0x10, command: 3, attributes };
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let parse = |bytes: &[u8]| GenericMessage::deserialize(&NetlinkHeader::default(), bytes);
        let parsed = parse(&bytes).unwrap();
        assert_eq!((parsed.command, parsed.attributes.len()), (3, 2));
        assert_eq!(value(&parsed.attributes, 1).as_deref(), Some(&b"ab\0"[..]));
        assert_eq!(value(&parsed.attributes, 2), Some(7_u32.to_ne_bytes().into()));
        assert_eq!(value(&parsed.attributes, 3), None);
        let ends = [HEADER, HEADER + 8, bytes.len()];
        for cut in (0..bytes.len()).filter(|cut| !ends.contains(cut)) {
            let left = parse(&bytes[..cut]).map(|message| message.attributes.len());
            assert!(left.as_ref().map_or(true, |left| *left < 2), "{cut} bytes: {left:?}");
        }
        // A length of less than its own header would never end.
        assert!(parse(&[3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
