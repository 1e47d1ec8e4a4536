//! DNS (RFC 1035) with only queries for A records and their responses. The A record is the pod's
//! own address. A TXT record beside it has the [`crate::identity::Answer`].

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};

const HEADER: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_TXT: u16 = 16;
const CLASS_IN: u16 = 1;
/// QR, AA and RD (RFC 1035, 4.1.1).
const ANSWER_FLAGS: u16 = 0x8500;
/// A pointer to the question's name, which begins at byte 12 (RFC 1035, 4.1.4).
const NAME_OF_QUESTION: u16 = 0xc00c;
/// The limit over UDP without EDNS (RFC 1035, 2.3.4), which is enough for TCP here.
pub const MAX_MESSAGE: usize = 512;

/// Returns a query for a name's A record.
pub fn query(id: u16, name: &str) -> Result<Vec<u8>> {
    let mut message = Vec::with_capacity(HEADER + name.len() + 6);
    // RD, one question.
    for field in [id, 0x0100, 1, 0, 0, 0] {
        message.extend(field.to_be_bytes());
    }
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length));
        message.push(length.with_context(|| format!("{name:?} is no domain name"))?);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(TYPE_A.to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    ensure!(message.len() <= MAX_MESSAGE, "{name:?} is too long");
    Ok(message)
}

/// Returns the response to a query; `None` if it is no query for one A record.
pub fn answer(query: &[u8], address: Ipv4Addr, text: &str) -> Option<Vec<u8>> {
    let flags = u16_at(query, 2)?;
    let questions = u16_at(query, 4)?;
    let end_of_name = skip_name(query, HEADER)?;
    let is_query = flags & 0x8000 == 0 && questions == 1;
    if !is_query || u16_at(query, end_of_name)? != TYPE_A || u16_at(query, end_of_name + 2)? != CLASS_IN {
        return None;
    }
    let text = &text.as_bytes()[..text.len().min(255)];
    let mut message = query[..2].to_vec();
    for field in [ANSWER_FLAGS, 1, 2, 0, 0] {
        message.extend(field.to_be_bytes());
    }
    message.extend(&query[HEADER..end_of_name + 4]);
    record(&mut message, TYPE_A, &address.octets());
    let length = u8::try_from(text.len()).ok()?;
    record(&mut message, TYPE_TXT, &[&[length], text].concat());
    Some(message)
}

fn record(message: &mut Vec<u8>, kind: u16, data: &[u8]) {
    let length = u16::try_from(data.len()).unwrap_or(u16::MAX);
    // Name, type, class, TTL of 0 seconds, length.
    for field in [NAME_OF_QUESTION, kind, CLASS_IN, 0, 0, length] {
        message.extend(field.to_be_bytes());
    }
    message.extend(data);
}

/// Returns the address and the text in a response of [`answer`] to the query with this id.
pub fn parse(message: &[u8], id: u16) -> Result<(Ipv4Addr, String)> {
    parse_fields(message, id).context("an unexpected DNS message")
}

fn parse_fields(message: &[u8], id: u16) -> Option<(Ipv4Addr, String)> {
    if u16_at(message, 0)? != id || u16_at(message, 2)? != ANSWER_FLAGS || u16_at(message, 6)? != 2 {
        return None;
    }
    let first = skip_name(message, HEADER)? + 4;
    let (kind, data, second) = data_of_record(message, first)?;
    let address = (kind == TYPE_A).then(|| <[u8; 4]>::try_from(data).ok())??;
    let (kind, data, _) = data_of_record(message, second)?;
    let (length, text) = data.split_first()?;
    let whole = kind == TYPE_TXT && text.len() == usize::from(*length);
    whole.then(|| Some((address.into(), String::from_utf8(text.to_vec()).ok()?)))?
}

/// Parses a record whose name is a pointer. Returns its type, its data and the start of the next
/// one.
fn data_of_record(message: &[u8], start: usize) -> Option<(u16, &[u8], usize)> {
    let kind = u16_at(message, start + 2)?;
    let length = usize::from(u16_at(message, start + 10)?);
    let data = message.get(start + 12..start + 12 + length)?;
    Some((kind, data, start + 12 + length))
}

/// Returns the end of the uncompressed name at `start`.
fn skip_name(message: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            _ => return None,
        }
    }
}

fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 10);

    #[test]
    fn an_answer_holds_address_and_text() {
        let query = query(7, "web.example").unwrap();
        let message = answer(&query, ADDRESS, "service=infra/dns").unwrap();
        assert_eq!(parse(&message, 7).unwrap(), (ADDRESS, "service=infra/dns".to_owned()));
    }

    #[test]
    fn an_answer_to_another_query_is_refused() {
        let message = answer(&query(7, "a.b").unwrap(), ADDRESS, "").unwrap();
        assert!(parse(&message, 8).is_err());
    }

    #[test]
    fn a_message_cut_anywhere_is_refused() {
        let query = query(7, "web.example").unwrap();
        let message = answer(&query, ADDRESS, "text").unwrap();
        for length in 0..query.len() {
            assert_eq!(answer(&query[..length], ADDRESS, "text"), None, "query of {length} bytes");
        }
        for length in 0..message.len() {
            assert!(parse(&message[..length], 7).is_err(), "answer of {length} bytes");
        }
    }

    #[test]
    fn an_answer_is_not_answered() {
        let message = answer(&query(7, "a.b").unwrap(), ADDRESS, "").unwrap();
        assert_eq!(answer(&message, ADDRESS, ""), None);
    }
}
