//! Plans VIPs.

use std::num::NonZeroU16;

use std::collections::BTreeMap;

use vipmux_common::abi::{self, Address};

use crate::{
    capacity::{CapacityMap, CapacityRefusal, Shortage, Subject},
    error::PlanError,
    mirror::MapMirror,
    step::Step,
};
use vipmux_model::{
    PortClaim, Vip,
    desired::{Desired, DesiredVip},
    port::Port,
};

/// The steps for `VIPS`.
pub(super) struct VipSteps {
    /// The id of each desired VIP, or the shortage.
    pub(super) ids: BTreeMap<Vip, Result<u32, Shortage>>,
    /// Removes VIPs, and clears the flag of VIPs that this node does not lead.
    pub(super) withdrawals: Vec<Step>,
    /// Writes VIPs, after the Services.
    pub(super) announcements: Vec<Step>,
    /// The next value of [`abi::Config::next_vip`].
    pub(super) next_id: u32,
}

impl VipSteps {
    pub(super) fn plan(
        desired: &Desired,
        maps: &MapMirror,
        refused: &mut Vec<CapacityRefusal>,
    ) -> Result<Self, PlanError> {
        let wanted: BTreeMap<Address, (Vip, &DesiredVip)> =
            desired.vips.iter().map(|(vip, value)| (vip.address().into(), (*vip, value))).collect();
        let gone = maps.vips.keys().filter(|address| !wanted.contains_key(address));
        let withdrawals: Vec<_> = gone.map(|address| Step::Vip(*address, None)).collect();
        let capacity = maps.capacities.vips;
        let mut free = (capacity as usize + withdrawals.len()).saturating_sub(maps.vips.len());
        let next_id = maps.config.next_vip;
        let mut vips = Self { ids: BTreeMap::new(), withdrawals, announcements: Vec::new(), next_id };
        for (address, (vip, wanted)) in wanted {
            let current = maps.vips.get(&address);
            if current.is_none() && free == 0 {
                let shortage = Shortage { map: CapacityMap::Vips, capacity, free: 0, needed: 1 };
                refused.push(CapacityRefusal { subject: Subject::Vip(vip), shortage });
                vips.ids.insert(vip, Err(shortage));
                continue;
            }
            let id = match current {
                Some(current) => current.id,
                None => vips.next_id(maps)?,
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
            // The flag of every port changes with its Services, not before them.
            let ports = known.flags & abi::VIP_ALL_PORTS;
            let withdrawn = abi::VipValue { flags: value.flags & !abi::VIP_ALL_PORTS | ports, ..value };
            self.withdrawals.extend((withdrawn != known).then_some(Step::Vip(address, Some(withdrawn))));
            current = Some(withdrawn);
        }
        if current != Some(value) {
            self.announcements.push(Step::Vip(address, Some(value)));
        }
    }

    /// Returns an id that no flow and no Service in the kernel has, even if `CONFIG` was lost.
    fn next_id(&mut self, maps: &MapMirror) -> Result<u32, PlanError> {
        if self.next_id == maps.config.next_vip {
            let vips = maps.vips.values().map(|value| value.id);
            let seen = vips.chain(maps.services.keys().map(|key| key.vip)).max().unwrap_or(0);
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
    let segment = u32::from(vip.segment) << abi::VIP_SEGMENT_SHIFT & abi::VIP_SEGMENT;
    abi::VipValue {
        id,
        flags: leading | every | segment,
        interfaces: vip.interfaces,
        vlan: vip.vlan.map_or(0, NonZeroU16::get).into(),
        epoch: vip.epoch,
    }
}
