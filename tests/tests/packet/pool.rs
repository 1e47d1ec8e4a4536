//! Lends programs to the tests, one test after the other. The kernel's verifier takes a second to load them, and
//! nearly a minute in an emulated machine.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::Result;
use vipmux_datapath::bpf::xdp::Buffers;
use vipmux_tests::program::{Program, State};

static IDLE: Mutex<Vec<Program>> = Mutex::new(Vec::new());

/// A program, which goes back to the pool at its end.
pub(crate) struct Pooled(Option<Program>);

/// Does what [`Program::load`] does.
pub(crate) fn load(state: &State, flows: u32) -> Result<Pooled> {
    load_for(state, flows, Buffers::here())
}

/// Does what [`Program::load_for`] does.
pub(crate) fn load_for(state: &State, flows: u32, buffers: Buffers) -> Result<Pooled> {
    let idle = {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle.iter().position(|program| program.suits(state, flows, buffers));
        found.map(|index| idle.swap_remove(index))
    };
    let program = match idle {
        Some(mut program) => {
            program.reset(state)?;
            program
        }
        None => Program::load_for(state, flows, buffers)?,
    };
    Ok(Pooled(Some(program)))
}

impl Deref for Pooled {
    type Target = Program;

    fn deref(&self) -> &Program {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Program {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if !thread::panicking() {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).extend(self.0.take());
        }
    }
}
