//! The verifier's work: far below its limit of a million instructions, so that no kernel refuses a program.

use crate::{as_root, case, fixture, pool};

/// The most instructions that the verifier may walk through for one program.
const MOST: u32 = 125_000;

#[test]
fn the_verifier_walks_through_few_instructions_of_each_program() {
    as_root(|| {
        for &buffers in case::kinds() {
            let loaded = pool::load_for(&fixture::state(), fixture::FLOWS, buffers).unwrap();
            let count = |program: &aya::programs::Program| program.info().ok()?.verified_instruction_count();
            let counts: Vec<_> =
                loaded.ebpf().programs().filter_map(|(name, program)| Some((name, count(program)?))).collect();
            if counts.is_empty() {
                eprintln!("not measured: kernels before 5.16 do not tell how many instructions they verified");
                return;
            }
            eprintln!("verified instructions, {buffers:?}: {counts:?}");
            let excess: Vec<_> = counts.iter().filter(|(_, count)| *count > MOST).collect();
            assert!(excess.is_empty(), "more than {MOST} verified instructions: {excess:?}");
        }
    });
}
