//! Checks the other programs on the interfaces where vipmux's classifiers run. One that passes a
//! packet ends the chain, so vipmux's must come first.

use super::{Finding, Seen, kernel::KernelObservation, list};
use vipmux_datapath::bpf::{
    place::{Chain, Classifier},
    tcx::MAX_PROGRAMS,
};

const CHECK: &str = "tc-programs";

/// The programs on an interface by which replies leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassifierObservation {
    /// The interface.
    pub interface: String,
    /// Programs for outgoing packets.
    pub egress: Seen<Chain>,
    /// Programs for incoming packets.
    pub ingress: Seen<Chain>,
}

/// Returns the findings about the interfaces.
pub(super) fn assess(kernel: &KernelObservation, observed: &Seen<Vec<ClassifierObservation>>) -> Vec<Finding> {
    let all = observed.iter().flatten();
    all.map(|one| assess_one(kernel, one).unwrap_or_else(|finding| finding).about(&one.interface)).collect()
}

/// Returns the finding; the error is that of an obstacle.
fn assess_one(kernel: &KernelObservation, observed: &ClassifierObservation) -> Result<Finding, Finding> {
    let unseen = |unseen| Finding::unseen(CHECK, unseen);
    let (egress, ingress) = (observed.egress.as_ref().map_err(unseen)?, observed.ingress.as_ref().map_err(unseen)?);
    is_first(egress, "outgoing", "are not translated")?;
    is_first(ingress, "incoming", "do not reach pods with direct server return")?;
    if egress.own.is_none() {
        may_attach(kernel, egress)?;
    }
    Ok(Finding::pass(CHECK, format!("no program for outgoing packets before vipmux's; all: {}", list(&egress.all))))
}

fn is_first(chain: &Chain, packets: &str, harm: &str) -> Result<(), Finding> {
    let before = chain.before();
    if before.is_empty() {
        return Ok(());
    }
    let found = format!(
        "programs for {packets} packets before vipmux's: {}; packets that one of them passes {harm}",
        list(before)
    );
    let own = chain.own.and_then(|place| chain.all.get(place));
    let is_filter = |one: &Classifier| matches!(one, Classifier::Filter(_));
    let remedy = if own.is_some_and(is_filter) && !before.iter().all(is_filter) {
        "tcx programs run before all filters: start the agent without VIPMUX_TC=clsact"
    } else {
        "the agent moves its own before them at its next self-check (30 s). If they come back, let them attach \
         after others (BPF_F_AFTER), return TCX_NEXT (-1; filters: TC_ACT_UNSPEC), or stop their software"
    };
    Err(Finding::fail(CHECK, found, remedy))
}

/// Checks whether a program can be attached before those that are there.
fn may_attach(kernel: &KernelObservation, egress: &Chain) -> Result<(), Finding> {
    let linked: Vec<_> = egress.all.iter().filter(|one| matches!(one, Classifier::Tcx { .. })).collect();
    if !kernel.uses_filters() {
        return if linked.len() < MAX_PROGRAMS {
            Ok(())
        } else {
            let found = format!("{MAX_PROGRAMS} tcx programs for outgoing packets, which is the kernel's limit");
            Err(Finding::fail(CHECK, found, "detach one of them (`bpftool net`)"))
        };
    }
    if !linked.is_empty() {
        let found = format!("tcx programs run before vipmux's filter: {}", list(linked));
        return Err(Finding::fail(CHECK, found, "start the agent without VIPMUX_TC=clsact"));
    }
    let in_the_way = egress.all.iter().find(|one| matches!(one, Classifier::Filter(filter) if filter.is_in_the_way()));
    in_the_way.map_or(Ok(()), |filter| {
        let found = format!("{filter}, which vipmux's filter needs");
        Err(Finding::fail(CHECK, found, "give that filter another priority (`tc filter ... pref 10`)"))
    })
}
