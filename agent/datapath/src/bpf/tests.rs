//! Checks the instructions of the built programs.

use std::collections::{BTreeMap, BTreeSet};

use aya_obj::generated::bpf_insn;

use super::OBJECT;

/// Bytes of stack for a chain of calls (`MAX_BPF_STACK` of include/linux/filter.h).
const LIMIT: usize = 512;
/// Linux 5.10 rounds each frame up to this many bytes, as newer kernels do without a JIT. With one
/// they round up to 16 (`check_max_stack_depth`, `round_up_stack_depth` of kernel/bpf/verifier.c).
const STEP: usize = 32;

/// Opcodes and a register (Documentation/bpf/standardization/instruction-set.rst).
const CALL: u8 = 0x85;
const PSEUDO_CALL: u8 = 1;
const MOVE: u8 = 0xbf;
const ADD_IMMEDIATE: u8 = 0x07;
const LOAD: u8 = 1;
const STORES: [u8; 2] = [2, 3];
const CLASS: u8 = 7;
const FRAME: u8 = 10;
/// Of 32 and of 64 bits.
const ATOMIC: [u8; 2] = [0xc3, 0xdb];

/// Returns each program with the functions that it calls.
fn programs() -> BTreeMap<String, Vec<bpf_insn>> {
    let mut object = aya_obj::Object::parse(OBJECT).unwrap();
    let sections = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_calls(&sections).unwrap();
    let instructions = |program: &aya_obj::Program| object.functions[&program.function_key()].instructions.clone();
    object.programs.iter().map(|(name, program)| (name.clone(), instructions(program))).collect()
}

#[test]
fn programs_of_known_flows_have_no_atomic_operation() {
    let counts = programs().into_iter().map(|(name, instructions)| {
        let atomic = instructions.iter().filter(|instruction| ATOMIC.contains(&instruction.code));
        (name, atomic.count())
    });
    let counts: BTreeMap<_, _> = counts.collect();
    // A lock is made of them.
    assert!(counts["vipmux_new_ipv4"] > 0, "{counts:?}");
    for program in ["vipmux_xdp", "vipmux_xdp_frags", "vipmux_ingress", "vipmux_egress"] {
        assert_eq!(counts[program], 0, "{program}");
    }
}

#[test]
fn each_chain_of_calls_fits_the_stack_of_old_kernels() {
    let needed = programs().into_iter().map(|(name, program)| (name, deepest(&functions(&program), 0)));
    let needed: BTreeMap<_, _> = needed.collect();
    assert!(needed.values().any(|bytes| *bytes > LIMIT / 2), "no stack was found: {needed:?}");
    assert!(needed.values().all(|bytes| *bytes <= LIMIT), "{needed:?}");
}

/// A function of a program.
#[derive(Default)]
struct Function {
    /// Bytes of its stack frame.
    frame: usize,
    /// The functions that it calls.
    calls: BTreeSet<usize>,
}

/// Returns a program's functions by their first instruction.
fn functions(instructions: &[bpf_insn]) -> BTreeMap<usize, Function> {
    let called = |(at, instruction): (usize, &bpf_insn)| {
        let is_call = instruction.code == CALL && instruction.src_reg() == PSEUDO_CALL;
        is_call.then(|| at.checked_add_signed(1 + instruction.imm as isize).unwrap())
    };
    let starts = instructions.iter().enumerate().filter_map(called).chain([0]);
    let mut functions: BTreeMap<_, _> = starts.map(|start| (start, Function::default())).collect();
    // The register that was set to the frame's end by the instruction before.
    let mut pointer = None;
    for (at, instruction) in instructions.iter().enumerate() {
        let (_, function) = functions.range_mut(..=at).next_back().unwrap();
        function.calls.extend(called((at, instruction)));
        let (to, from, class) = (instruction.dst_reg(), instruction.src_reg(), instruction.code & CLASS);
        let offset = if class == LOAD && from == FRAME || STORES.contains(&class) && to == FRAME {
            i32::from(instruction.off)
        } else if instruction.code == ADD_IMMEDIATE && pointer == Some(to) {
            instruction.imm
        } else {
            0
        };
        function.frame = function.frame.max(offset.min(0).unsigned_abs() as usize);
        pointer = (instruction.code == MOVE && from == FRAME).then_some(to);
    }
    functions
}

/// Returns the bytes of stack of a function and of all that it calls.
fn deepest(functions: &BTreeMap<usize, Function>, start: usize) -> usize {
    let Function { frame, calls } = &functions[&start];
    let below = calls.iter().map(|called| deepest(functions, *called)).max().unwrap_or(0);
    (*frame).max(1).next_multiple_of(STEP) + below
}
