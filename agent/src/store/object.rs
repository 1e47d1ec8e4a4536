//! Leases as API objects.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use k8s_openapi::{
    api::coordination::v1::{Lease as Object, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};

use super::{Lease, StoreError, Version};
use crate::model::{NodeName, Vip, name::is_subdomain, reason::quoted};

const PREFIX: &str = "vip-";
/// The address as people write it, since the name has it in hex.
const ADDRESS: &str = "vipmux.io/address";
/// Bytes. The API server's and the directory's are decimal numbers of 64 bits.
const MAX_VERSION: usize = 64;

/// The name of the VIP's Lease: `vip-` and the address' 4 or 16 bytes in hex.
pub(super) fn name(vip: Vip) -> String {
    let mut name = PREFIX.to_owned();
    // Writing to a string cannot fail.
    let _ = match vip.0 {
        IpAddr::V4(address) => write!(name, "{:08x}", address.to_bits()),
        IpAddr::V6(address) => write!(name, "{:032x}", address.to_bits()),
    };
    name
}

/// The VIP whose Lease has this name, if it is such a name.
pub(super) fn vip(name: &str) -> Option<Vip> {
    let hex = name.strip_prefix(PREFIX)?;
    if !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let address: IpAddr = match hex.len() {
        8 => Ipv4Addr::from_bits(u32::from_str_radix(hex, 16).ok()?).into(),
        32 => Ipv6Addr::from_bits(u128::from_str_radix(hex, 16).ok()?).into(),
        _ => return None,
    };
    Some(Vip(address))
}

/// The object that says so. `version`: what is expected, or what it is to have, as the store wants it. The time is for
/// people: nothing goes by it.
pub(super) fn object(
    vip: Vip,
    version: Option<Version>,
    holder: &NodeName,
    epoch: u64,
    acquired: Timestamp,
) -> Result<Object, StoreError> {
    let transitions = i32::try_from(epoch).ok().filter(|_| is_subdomain(&holder.0));
    let transitions = transitions.ok_or_else(|| StoreError::Inexpressible { holder: holder.clone(), epoch })?;
    Ok(Object {
        metadata: ObjectMeta {
            name: Some(name(vip)),
            annotations: Some([(ADDRESS.to_owned(), vip.to_string())].into()),
            resource_version: version.map(|Version(text)| text),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.0.clone()),
            lease_transitions: Some(transitions),
            acquire_time: Some(MicroTime(acquired)),
            ..LeaseSpec::default()
        }),
    })
}

/// What the VIP's object says, or what is wrong with it.
pub(super) fn lease(vip: Vip, object: Object) -> Result<Lease, String> {
    let Object { metadata, spec } = object;
    let (expected, found) = (name(vip), metadata.name.unwrap_or_default());
    if found != expected {
        return Err(format!("metadata.name is {}, and that of {vip} is {expected}", quoted(&found)));
    }
    let version = metadata.resource_version.unwrap_or_default();
    if version.is_empty() || version.len() > MAX_VERSION {
        return Err(format!("metadata.resourceVersion has {} bytes: 1 to {MAX_VERSION} are right", version.len()));
    }
    let spec = spec.unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    if !is_subdomain(&holder) {
        return Err(format!("spec.holderIdentity is {}, which is no Node's name", quoted(&holder)));
    }
    let transitions = spec.lease_transitions.ok_or("spec.leaseTransitions is missing")?;
    let epoch = u64::try_from(transitions).map_err(|_| format!("spec.leaseTransitions is {transitions}"))?;
    Ok(Lease { holder: NodeName(holder), epoch, version: Version(version) })
}

/// The VIP of this object, if it is a VIP's, and who leads it, if that can be read.
pub fn leader(object: &Object) -> Option<(Vip, Option<NodeName>)> {
    let vip = vip(object.metadata.name.as_deref()?)?;
    Some((vip, lease(vip, object.clone()).ok().map(|lease| lease.holder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vip {
        Vip(text.parse().unwrap())
    }

    #[test]
    fn a_name_is_the_address_in_hex() {
        for (address, expected) in [
            ("192.0.2.10", "vip-c000020a"),
            ("0.0.0.1", "vip-00000001"),
            ("2001:db8::1", "vip-20010db8000000000000000000000001"),
            // Another VIP than the IPv4 address within it.
            ("::ffff:192.0.2.10", "vip-00000000000000000000ffffc000020a"),
        ] {
            assert_eq!(name(of(address)), expected);
            assert_eq!(vip(expected), Some(of(address)));
        }
    }

    #[test]
    fn other_names_are_no_vips() {
        for text in [
            "",
            "vip-",
            "c000020a",
            "vip-c000020",
            "vip-C000020A",
            "vip-+000020a",
            "vip-c000020a0",
            "vip-c000020\u{e4}",
        ] {
            assert_eq!(vip(text), None, "{text}");
        }
    }

    #[test]
    fn an_object_says_what_it_was_made_of() {
        let holder = NodeName("n1.example.org".to_owned());
        let version = Version("7".to_owned());
        for epoch in [0, 1, Lease::MAX_EPOCH] {
            let made = object(of("192.0.2.1"), Some(version.clone()), &holder, epoch, Timestamp::UNIX_EPOCH).unwrap();
            let expected = Lease { holder: holder.clone(), epoch, version: version.clone() };
            assert_eq!(lease(of("192.0.2.1"), made.clone()), Ok(expected));
            assert!(lease(of("192.0.2.2"), made).is_err(), "of another VIP");
        }
    }

    /// A node whose clock is an hour off, or years, writes what any other does.
    #[test]
    fn nothing_goes_by_the_time_in_a_lease() {
        let holder = NodeName("n1".to_owned());
        let of_time = |acquired| {
            let version = Some(Version("7".to_owned()));
            lease(of("192.0.2.1"), object(of("192.0.2.1"), version, &holder, 3, acquired).unwrap())
        };
        let expected = of_time(Timestamp::UNIX_EPOCH);
        assert!(expected.is_ok());
        assert_eq!([of_time(Timestamp::MIN), of_time(Timestamp::MAX)], [expected.clone(), expected]);
    }

    #[test]
    fn what_no_lease_can_say_is_refused() {
        let long = "a".repeat(254);
        for (holder, epoch) in [("n1", Lease::MAX_EPOCH + 1), ("", 1), ("a/b", 1), (long.as_str(), 1)] {
            let result = object(of("192.0.2.1"), None, &NodeName(holder.to_owned()), epoch, Timestamp::UNIX_EPOCH);
            assert!(matches!(result, Err(StoreError::Inexpressible { .. })), "{holder} {epoch}");
        }
    }
}
