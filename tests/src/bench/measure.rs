//! Interleaved repetitions on one CPU.

use anyhow::{Result, ensure};

use super::{Plan, case::Case, wrapper::Sample};

/// Returns each case's samples, one per repetition. The cases of a repetition run in turn, and each
/// repetition begins with another case. `progress` gets the repetition's number, from 1.
pub(super) fn interleaved(cases: &[Case], plan: &Plan, progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::with_capacity(plan.repetitions); cases.len()];
    for repetition in 0..plan.repetitions {
        progress(repetition + 1);
        for turn in 0..cases.len() {
            let index = (turn + repetition) % cases.len();
            let case = &cases[index];
            if case.warm_up > 0 {
                case.wrapper.run(case.warm_up)?;
            }
            let sample = case.wrapper.run(plan.packets)?;
            let first = samples[index].first().map_or(sample.verdict, |first: &Sample| first.verdict);
            ensure!(sample.verdict == first, "{}: verdict {} after {first}", case.name, sample.verdict);
            samples[index].push(sample);
        }
    }
    Ok(samples)
}
