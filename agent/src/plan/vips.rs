//! VIPs.

use std::collections::BTreeMap;

use vipmux_common::abi::{self, Address};

use crate::{
    model::{PortClaim, Vip, name::Port},
    plan::{CapacityMap, Desired, DesiredVip, Observed, PlanError, Refusal, Shortage, Step, Subject},
};

/// The steps for `VIPS`.
pub(super) struct Vips {
    /// The id of each VIP that there is to be, or why there is none.
    pub(super) ids: BTreeMap<Vip, Result<u32, Shortage>>,
    /// What goes, and what this node must not answer for.
    pub(super) withdrawals: Vec<Step>,
    /// What comes after the Services.
    pub(super) announcements: Vec<Step>,
    /// The next of [`abi::Config::next_vip`].
    pub(super) next_id: u32,
}

impl Vips {
    pub(super) fn plan(desired: &Desired, observed: &Observed, refused: &mut Vec<Refusal>) -> Result<Self, PlanError> {
        let wanted: BTreeMap<Address, (Vip, &DesiredVip)> =
            desired.vips.iter().map(|(vip, value)| (vip.0.into(), (*vip, value))).collect();
        let gone = observed.vips.keys().filter(|address| !wanted.contains_key(address));
        let withdrawals: Vec<_> = gone.map(|address| Step::Vip(*address, None)).collect();
        let capacity = observed.capacities.vips;
        let mut free = (capacity as usize + withdrawals.len()).saturating_sub(observed.vips.len());
        let next_id = observed.config.next_vip;
        let mut vips = Self { ids: BTreeMap::new(), withdrawals, announcements: Vec::new(), next_id };
        for (address, (vip, wanted)) in wanted {
            let current = observed.vips.get(&address);
            if current.is_none() && free == 0 {
                let shortage = Shortage { map: CapacityMap::Vips, capacity, free: 0, needed: 1 };
                refused.push(Refusal { subject: Subject::Vip(vip), shortage });
                vips.ids.insert(vip, Err(shortage));
                continue;
            }
            let id = match current {
                Some(current) => current.id,
                None => vips.next_id(observed)?,
            };
            free -= usize::from(current.is_none());
            vips.ids.insert(vip, Ok(id));
            let all_ports = Port::every().any(|port| {
                desired.services.contains_key(&PortClaim { vip, protocol: port.protocol, port: port.number })
            });
            vips.set(address, value(id, wanted, all_ports), current);
        }
        Ok(vips)
    }

    fn set(&mut self, address: Address, value: abi::VipValue, current: Option<&abi::VipValue>) {
        let mut current = current.copied();
        if let Some(known) = current
            && value.flags & abi::VIP_LEADING == 0
        {
            // Which ports it has changes with its Services, not before them.
            let ports = known.flags & abi::VIP_ALL_PORTS;
            let withdrawn = abi::VipValue { flags: value.flags & !abi::VIP_ALL_PORTS | ports, ..value };
            self.withdrawals.extend((withdrawn != known).then_some(Step::Vip(address, Some(withdrawn))));
            current = Some(withdrawn);
        }
        if current != Some(value) {
            self.announcements.push(Step::Vip(address, Some(value)));
        }
    }

    /// An id that no flow and no Service in the kernel has: not even if `CONFIG` was lost.
    fn next_id(&mut self, observed: &Observed) -> Result<u32, PlanError> {
        if self.next_id == observed.config.next_vip {
            let vips = observed.vips.values().map(|value| value.id);
            let seen = vips.chain(observed.services.keys().map(|key| key.vip)).max().unwrap_or(0);
            self.next_id = self.next_id.max(seen.checked_add(1).ok_or(PlanError::VipIdsExhausted)?);
        }
        let id = self.next_id;
        self.next_id = id.checked_add(1).ok_or(PlanError::VipIdsExhausted)?;
        Ok(id)
    }
}

fn value(id: u32, vip: &DesiredVip, all_ports: bool) -> abi::VipValue {
    let leading = if vip.leading { abi::VIP_LEADING } else { 0 };
    let every = if all_ports { abi::VIP_ALL_PORTS } else { 0 };
    abi::VipValue { id, flags: leading | every, interfaces: vip.interfaces, vlan: vip.vlan.into(), epoch: vip.epoch }
}
