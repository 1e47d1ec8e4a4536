//! Finds the offsets of fields in the kernel's BTF (Documentation/bpf/btf.rst).

use std::{fs, io};

/// The kernel's types.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
/// `BTF_MAGIC` of include/uapi/linux/btf.h, in the host's byte order.
const MAGIC: u16 = 0xeb9f;
/// The size of `struct btf_type`, and of the number or the pointer after some of them.
const TYPE: usize = 12;
const MEMBER: usize = 12;
/// `BTF_KIND_STRUCT`.
const STRUCT: u32 = 4;

/// The types of the running kernel.
pub(super) struct Btf(Vec<u8>);

impl Btf {
    /// Reads them. A kernel without `CONFIG_DEBUG_INFO_BTF` has none.
    pub(super) fn of_kernel() -> io::Result<Self> {
        Ok(Self(fs::read(VMLINUX)?))
    }

    /// Returns the offsets of fields, in bytes, each given by the names of its structure and itself.
    pub(super) fn offsets<const N: usize>(&self, fields: [(&str, &str); N]) -> io::Result<[u32; N]> {
        let mut found = [None; N];
        self.find(&fields, &mut found).ok_or_else(|| io::Error::other("the kernel's BTF is malformed"))?;
        let mut offsets = [0; N];
        for ((offset, found), (structure, field)) in offsets.iter_mut().zip(found).zip(fields) {
            let missing = || io::Error::other(format!("the kernel's BTF has no {structure}.{field}"));
            *offset = found.ok_or_else(missing)?;
        }
        Ok(offsets)
    }

    /// Walks all types. Returns `None` if they end too early.
    fn find(&self, fields: &[(&str, &str)], found: &mut [Option<u32>]) -> Option<()> {
        if u16::from_ne_bytes(*self.0.first_chunk()?) != MAGIC {
            return None;
        }
        let header = self.word(4)? as usize;
        let [types, length, strings] = [8, 12, 16].map(|at| self.word(at).map(|word| word as usize));
        let (mut at, strings) = (header + types?, header + strings?);
        let end = at + length?;
        while at < end {
            let (name, info) = (self.word(at)?, self.word(at + 4)?);
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            let is_of = |structure: &str| kind == STRUCT && self.is_named(strings, name, structure);
            for (place, (_, field)) in fields.iter().enumerate().filter(|(_, (structure, _))| is_of(structure)) {
                let members = (0..count).map(|member| at + TYPE + member * MEMBER);
                let mut named =
                    members.filter(|member| self.word(*member).is_some_and(|name| self.is_named(strings, name, field)));
                if let Some(member) = named.next() {
                    // The upper byte is the size of a bit field.
                    found[place] = Some((self.word(member + 8)? & 0x00ff_ffff) / u8::BITS);
                }
            }
            at += TYPE + size_after(kind, count)?;
        }
        Some(())
    }

    fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    fn is_named(&self, strings: usize, at: u32, name: &str) -> bool {
        let rest = self.0.get(strings + at as usize..).and_then(|text| text.strip_prefix(name.as_bytes()));
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// Returns the size of what follows a `struct btf_type` of this kind. `None`: the kind is not known.
fn size_after(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // Pointers, forward declarations, names and qualifiers of other types, functions, floats.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections, enumerations of 64 bits.
        4 | 5 | 15 | 19 => count * 12,
        // Enumerations, and parameters of functions.
        6 | 13 => count * 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_running_kernel_are_found() {
        let Ok(btf) = Btf::of_kernel() else { return };
        // The first field of a structure that never changes, and one after an array.
        let offsets = btf.offsets([("list_head", "next"), ("list_head", "prev"), ("ethhdr", "h_proto")]).unwrap();
        assert_eq!(offsets, [0, 8, 12]);
        let error = btf.offsets([("list_head", "prev"), ("ethhdr", "h_tag")]).unwrap_err();
        assert_eq!(error.to_string(), "the kernel's BTF has no ethhdr.h_tag");
    }

    #[test]
    fn malformed_types_are_refused() {
        for bytes in [vec![], vec![0; 64], [MAGIC.to_ne_bytes().as_slice(), &[0xff; 40]].concat()] {
            assert!(Btf(bytes).offsets([("list_head", "next")]).is_err());
        }
    }
}
