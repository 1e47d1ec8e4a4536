//! The BPF object, as the kernel here needs it.

use std::borrow::Cow;

use aya::{EbpfLoader, VerifierLogLevel, include_bytes_aligned, util::nr_cpus};
use object::{Object as _, ObjectSection as _, SectionKind};

use super::{flow_table, kernel_version::kernel_is, maps::lru_maps};

/// The BPF object (`ebpf/`), built by the build script.
pub static OBJECT: &[u8] = include_bytes_aligned!(env!("VIPMUX_BPF_OBJECT"));

/// Bytes of an instruction (RFC 9669, section 3).
const INSTRUCTION: usize = 8;
/// The opcode of an atomic operation on 32 bits (RFC 9669, section 5.3).
const ATOMIC: u8 = 0xc3;
/// Where an instruction has its operation: an addition is zero.
const OPERATION: usize = 4;
/// The operation puts the old number into its source register.
const FETCH: u8 = 1;

/// Returns the object for this machine. On arm64, an atomic addition orders other accesses to memory
/// only if it has a result.
pub fn object() -> Cow<'static, [u8]> {
    if cfg!(target_arch = "aarch64") { with_results(OBJECT).into() } else { OBJECT.into() }
}

/// Returns a loader of objects. If the kernel refuses a program, the error has the verifier's reason; with logs
/// of level `debug`, also each of its steps (`BPF_LOG_LEVEL` in include/linux/bpf_verifier.h). These take seconds
/// and megabytes.
pub fn loader<'a>() -> EbpfLoader<'a> {
    let with_steps = tracing::enabled!(tracing::Level::DEBUG);
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(if with_steps { VerifierLogLevel::default() } else { VerifierLogLevel::STATS });
    loader
}

/// Returns whether this kernel has atomic additions with a result: since Linux 5.12 on x86-64, and since 5.18 on
/// arm64, which runs the programs since 6.0.
pub fn kernel_has_results() -> bool {
    kernel_is(5, 12)
}

/// Returns the object with results of its atomic additions to 32 bits, which the locks of the flow
/// table are made of. The programs expect them to overwrite the register of the summand.
pub fn with_results(object: &[u8]) -> Vec<u8> {
    let mut changed = object.to_vec();
    // The loader reports what is no object.
    let Ok(file) = object::File::parse(object) else { return changed };
    let programs = file.sections().filter(|section| section.kind() == SectionKind::Text);
    for (start, length) in programs.filter_map(|section| section.file_range()) {
        let (Ok(start), Ok(length)) = (usize::try_from(start), usize::try_from(length)) else { continue };
        let instructions = changed.get_mut(start..start.saturating_add(length)).unwrap_or_default();
        for instruction in instructions.chunks_exact_mut(INSTRUCTION) {
            if instruction[0] == ATOMIC && instruction[OPERATION..] == [0; INSTRUCTION - OPERATION] {
                instruction[OPERATION] = FETCH;
            }
        }
    }
    changed
}

/// Returns the maps whose size the node decides, with their numbers of elements. Of an LRU map, each
/// CPU keeps up to 128 elements for itself (`LOCAL_FREE_TARGET` in kernel/bpf/bpf_lru_list.c). On a
/// machine with many CPUs a small map would have no others.
pub(super) fn sizes(flows: u32) -> impl Iterator<Item = (&'static str, u32)> {
    const FOR_A_CPU: u32 = 512;
    let cpus = nr_cpus().map_or(1, |cpus| u32::try_from(cpus).unwrap_or(1));
    let lru = move |(name, least): (&'static str, u32)| (name, least.max(cpus.saturating_mul(FOR_A_CPU)));
    lru_maps().map(lru).chain([("FLOWS", flow_table::elements(flows))])
}

#[cfg(test)]
mod tests {
    use aya::programs::SchedClassifier;
    use vipmux_testing::is_root;

    use super::*;
    use crate::error_chain::error_chain;

    #[test]
    fn only_the_locks_get_results() {
        let changed = with_results(OBJECT);
        let differs: Vec<_> = (0..OBJECT.len()).filter(|at| OBJECT[*at] != changed[*at]).collect();
        let opcode = |at: usize| OBJECT[at - OPERATION];
        assert!(differs.iter().all(|at| opcode(*at) == ATOMIC && (OBJECT[*at], changed[*at]) == (0, FETCH)));
        // To take a lock, to take it back, and to release it.
        assert!(differs.len() >= 3, "{differs:?}");
        assert_eq!(changed.len(), OBJECT.len());
        assert_eq!(with_results(b"no object"), b"no object");
    }

    #[test]
    fn a_refusal_has_the_reason_of_the_verifier_and_not_its_steps() {
        // r0 = r5, which has no value yet.
        const MOVE: [u8; INSTRUCTION] = [0xbf, 0x50, 0, 0, 0, 0, 0, 0];
        if !is_root() {
            return;
        }
        let file = object::File::parse(OBJECT).unwrap();
        let (start, _) = file.section_by_name("classifier").unwrap().file_range().unwrap();
        let mut changed = OBJECT.to_vec();
        changed[usize::try_from(start).unwrap()..][..INSTRUCTION].copy_from_slice(&MOVE);
        let mut ebpf = loader().load(&changed).unwrap();
        let program: &mut SchedClassifier = ebpf.program_mut("vipmux_egress").unwrap().try_into().unwrap();
        let error = error_chain(&program.load().unwrap_err());
        assert!(error.contains("R5 !read_ok"), "{error}");
        assert!(error.len() < 2_000, "{error}");
    }
}
