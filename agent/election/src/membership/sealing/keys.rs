//! The gossip keys that the agents share.

use std::fmt;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use chacha20poly1305::{
    XChaCha20Poly1305,
    aead::{Aead as _, KeyInit as _, Payload},
};
use sha2::{Digest as _, Sha256};
use vipmux_common::abi::{HANDOVER_PREFIX, Mac};

use super::wire::KeyId;
use vipmux_model::NodeName;

/// Base64 with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// One key or two. The first one seals, and both open: while a key is replaced, some nodes still
/// seal with the old one.
///
/// The file has one key per line: 32 random bytes in base64 or in hex. `#` begins a comment. To
/// replace a key, add the new one below the old one, on all nodes. Then change their order. Then
/// remove the old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealingKeys {
    sealing: SealingKey,
    other: Option<SealingKey>,
}

/// A text is no key file. The error shows nothing of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// No line has a key.
    #[error("it has no key: put in the output of `openssl rand -base64 32`")]
    None,
    /// A line is no key.
    #[error("line {line} is not a key: a key is 32 bytes in base64 (44 characters) or in hex (64)")]
    NotAKey {
        /// The line, from 1.
        line: usize,
    },
    /// A key is there twice.
    #[error("line {line} is the same key again")]
    Repeated {
        /// The line, from 1.
        line: usize,
    },
    /// There are more than two keys.
    #[error("line {line} is a third key: there can be two, the one that seals and one more that opens")]
    TooMany {
        /// The line, from 1.
        line: usize,
    },
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct SealingKey([u8; 32]);

impl SealingKeys {
    /// Parses the text of a key file.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let mut keys = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let key = SealingKey::parse(text).ok_or(KeysError::NotAKey { line })?;
            if keys.contains(&key) {
                return Err(KeysError::Repeated { line });
            }
            if keys.len() == 2 {
                return Err(KeysError::TooMany { line });
            }
            keys.push(key);
        }
        let mut keys = keys.into_iter();
        Ok(Self { sealing: keys.next().ok_or(KeysError::None)?, other: keys.next() })
    }

    /// Creates one key of random bytes.
    pub const fn generate(random: [u8; 32]) -> Self {
        Self { sealing: SealingKey(random), other: None }
    }

    /// Returns the text of a file with these keys.
    pub fn file(&self) -> String {
        let lines: String = self.iter().map(|key| BASE64.encode(key.0) + "\n").collect();
        format!("# vipmux's gossip key, a secret: the same on all nodes.\n{lines}")
    }

    /// Returns the ids of the keys, the sealing key first: the beginnings of their hashes, in hex.
    pub fn ids(&self) -> impl Iterator<Item = String> {
        self.iter().map(|key| format!("{:08x}", u32::from_be_bytes(key.id())))
    }

    /// Returns the MACs of which the node uses one as the source of frames that it hands over
    /// (`vipmux_common::abi::HANDOVER_PREFIX`): the sealing key's first. Only nodes with the key
    /// know them.
    pub fn handover_macs(&self, node: &NodeName) -> Vec<Mac> {
        self.iter().map(|key| key.handover_mac(node)).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SealingKey> {
        [&self.sealing].into_iter().chain(&self.other)
    }

    pub(super) const fn sealing(&self) -> &SealingKey {
        &self.sealing
    }
}

impl SealingKey {
    fn parse(text: &str) -> Option<Self> {
        let bytes = if text.len() == 64 { unhex(text)? } else { BASE64.decode(text).ok()? };
        bytes.try_into().ok().map(Self)
    }

    /// Returns the beginning of the key's hash. Two keys most likely differ in it.
    pub(super) fn id(&self) -> KeyId {
        let digest: [u8; 32] = Sha256::new().chain_update(b"vipmux gossip key").chain_update(self.0).finalize().into();
        [digest[0], digest[1], digest[2], digest[3]]
    }

    fn handover_mac(&self, node: &NodeName) -> Mac {
        let hash = Sha256::new().chain_update(b"vipmux hand-over MAC").chain_update(self.0);
        let digest: [u8; 32] = hash.chain_update(node.as_str()).finalize().into();
        let mut bytes = [HANDOVER_PREFIX; 6];
        bytes[1..].copy_from_slice(&digest[..5]);
        Mac::new(bytes)
    }

    /// Seals a plaintext. `None`: it is too long for the cipher, more than 256 GiB.
    pub(super) fn seal(&self, nonce: &[u8; 24], plaintext: &[u8], aad: &[u8]) -> Option<Vec<u8>> {
        self.cipher().encrypt(&(*nonce).into(), Payload { msg: plaintext, aad }).ok()
    }

    /// Opens a ciphertext. `None`: it was not sealed with this key, nonce and additional data.
    pub(super) fn open(&self, nonce: &[u8; 24], ciphertext: &[u8], aad: &[u8]) -> Option<Vec<u8>> {
        self.cipher().decrypt(&(*nonce).into(), Payload { msg: ciphertext, aad }).ok()
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.0.into())
    }
}

/// Shows the id, not the key.
impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(id {:08x})", u32::from_be_bytes(self.id()))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
    const BASE64_TEXT: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const OTHER: &str = "f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    #[test]
    fn a_key_is_the_same_in_hex_and_in_base64() {
        let expected = SealingKeys::generate(std::array::from_fn(|i| u8::try_from(i).unwrap()));
        for text in [HEX, BASE64_TEXT, BASE64_TEXT.trim_end_matches('='), &HEX.to_lowercase()] {
            assert_eq!(SealingKeys::parse(text), Ok(expected.clone()), "{text}");
        }
        let commented = format!("# ours\r\n\r\n  {HEX}  # of May\r\n");
        assert_eq!(SealingKeys::parse(&commented), Ok(expected));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let one = SealingKeys::generate([0xfb; 32]);
        assert_eq!(SealingKeys::parse(&one.file()), Ok(one));
        let two = SealingKeys::parse(&format!("{HEX}\n{OTHER}\n")).unwrap();
        assert_eq!(SealingKeys::parse(&two.file()), Ok(two.clone()));
        assert_eq!(two.sealing(), &SealingKey::parse(HEX).unwrap());
    }

    #[test]
    fn an_error_says_the_line() {
        let third = "A".repeat(43);
        for (text, error) in [
            (String::new(), KeysError::None),
            ("# nothing\n\n".to_owned(), KeysError::None),
            (format!("\n{}", &HEX[..62]), KeysError::NotAKey { line: 2 }),
            (format!("{HEX}00"), KeysError::NotAKey { line: 1 }),
            (HEX.replace('0', "g"), KeysError::NotAKey { line: 1 }),
            (HEX.replace("00", "é"), KeysError::NotAKey { line: 1 }),
            (format!("{HEX}\n{OTHER} {OTHER}"), KeysError::NotAKey { line: 2 }),
            ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh".to_owned(), KeysError::NotAKey { line: 1 }),
            (format!("{HEX}\n# again\n{BASE64_TEXT}"), KeysError::Repeated { line: 3 }),
            (format!("{HEX}\n{OTHER}\n{third}"), KeysError::TooMany { line: 3 }),
        ] {
            assert_eq!(SealingKeys::parse(&text), Err(error), "{text}");
        }
    }

    #[test]
    fn keys_are_told_apart_the_one_that_seals_first() {
        let two = SealingKeys::parse(&format!("{HEX}\n{OTHER}\n")).unwrap();
        let turned = SealingKeys::parse(&format!("{OTHER}\n{HEX}\n")).unwrap();
        let ids: Vec<_> = two.ids().collect();
        assert!(ids.len() == 2 && ids[0] != ids[1] && ids.iter().all(|id| id.len() == 8), "{ids:?}");
        assert!(turned.ids().eq(ids.into_iter().rev()));
    }

    #[test]
    fn a_key_is_not_shown() {
        let shown = format!("{:?}", SealingKeys::generate([0xab; 32])).to_lowercase();
        assert!(!shown.contains("abab") && !shown.contains("171"), "{shown}");
    }
}
