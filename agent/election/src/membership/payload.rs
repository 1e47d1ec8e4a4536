//! The size of payloads, and the encoding of values that later versions may change.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

/// The longest payload, bytes. Sealed, with the longest node name, and with the headers of IPv6 and
/// UDP, it fits Ethernet's 1500.
pub const MOST_PAYLOAD: usize = 1150;

/// A value after its length in bytes. What cannot be read is `None`, and bytes that follow the value
/// are ignored: a later version wrote them.
pub(super) mod delimited {
    use super::{Deserialize, DeserializeOwned, Deserializer, MOST_PAYLOAD, Serialize, Serializer};
    use serde::ser::Error;

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(in super::super) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut buffer = [0; MOST_PAYLOAD];
        let used = match value {
            Some(value) => postcard::to_slice(value, &mut buffer).map_err(S::Error::custom)?,
            None => &mut [],
        };
        serializer.serialize_bytes(used)
    }

    pub(in super::super) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        Ok(postcard::take_from_bytes(bytes).ok().map(|(value, _)| value))
    }
}
