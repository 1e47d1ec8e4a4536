//! Reads the flow table, and fills a new one, by mapping it into memory.
//!
//! The programs write records without regard to this process: a record that it reads may be torn,
//! and one that it writes may be overwritten. Its check tells both.

use std::{
    collections::BTreeMap,
    io,
    mem::offset_of,
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use aya::maps::{Array, IterableMap as _, MapData};
use vipmux_common::{
    abi::{
        FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_HALF_OPEN, FLOW_REPLIES, FLOW_RESET, FLOW_UNPROVEN,
        FlowKey, FlowRecord, FlowSecret, FlowSet, UDP, WAYS, reserve_sets,
    },
    flow_table::{self, OVERFLOW_WAY, Place, RESERVE_EPOCH, RESERVE_WAY, is_first_set, reserve_set},
};

use super::maps::mapped_array::{Access, MappedArray};

/// Numbers of eight bytes in a record.
const WORDS: usize = size_of::<FlowRecord>() / size_of::<u64>();

/// The number in a record with [`FlowRecord::flags`], and the flags' place in it.
const STATE: usize = offset_of!(FlowRecord, flags) / size_of::<u64>();
const FLAGS: usize = offset_of!(FlowRecord, flags) % size_of::<u64>() * 8;

/// The name of the table's map.
pub(super) const FLOWS: &str = "FLOWS";

/// A flow table that is not mapped.
///
/// A mapping counts as resident memory of the process, all of it from the beginning. So a task that needs the
/// table from time to time maps it for that time.
#[derive(Debug)]
pub struct FlowTableHandle {
    map: OwnedFd,
    sets: u32,
    secret: FlowSecret,
}

impl FlowTableHandle {
    /// Returns a handle with a descriptor of its own. `secret`: [`Config::flow_secret`].
    pub(super) fn new(flows: &Array<MapData, FlowSet>, secret: FlowSecret) -> io::Result<Self> {
        Ok(Self { map: flows.map().fd().as_fd().try_clone_to_owned()?, sets: flows.len(), secret })
    }

    /// Maps the table for reading.
    pub fn map(&self) -> io::Result<FlowTable> {
        self.map_for(Access::Read)
    }

    /// Maps the table for reading and writing.
    pub fn map_writable(&self) -> io::Result<FlowTable> {
        self.map_for(Access::Write)
    }

    fn map_for(&self, access: Access) -> io::Result<FlowTable> {
        let mask = mask(self.sets).ok_or(io::ErrorKind::InvalidData)?;
        let mapping = MappedArray::map(self.map.as_fd(), 0..self.sets, size_of::<FlowSet>(), access)?;
        Ok(FlowTable { mapping, secret: self.secret, mask })
    }
}

/// A flow table, mapped into memory.
pub struct FlowTable {
    mapping: MappedArray,
    secret: FlowSecret,
    mask: u32,
}

impl FlowTable {
    /// Returns the number of records that the table has room for, besides its reserve.
    pub fn capacity(&self) -> usize {
        (self.mask as usize + 1) * WAYS as usize
    }

    /// Returns all records.
    pub fn records(&self) -> impl Iterator<Item = FlowRecord> {
        let all = self.mapping.elements().len() / WORDS;
        (0..all).filter_map(|position| self.get(position))
    }

    /// Returns the number of records in each state.
    pub fn occupancy(&self) -> BTreeMap<FlowState, usize> {
        let mut occupancy: BTreeMap<_, _> = FlowState::ALL.into_iter().map(|state| (state, 0)).collect();
        self.records().for_each(|record| *occupancy.entry(FlowState::of(&record)).or_default() += 1);
        occupancy
    }

    /// Returns the record of a flow.
    pub fn find(&self, key: &FlowKey) -> Option<FlowRecord> {
        self.of_client(key).find(|record| record.key() == *key)
    }

    /// Returns the records of the flows that have a flow's client port and protocol.
    pub fn of_client(&self, key: &FlowKey) -> impl Iterator<Item = FlowRecord> {
        let place = Place::new(&self.secret, &key.client, key.client_port, key.protocol);
        // As the programs do. They forget an overflow after a day, so this may find more.
        let has = |way| low(self.of_set(place, way).load(Relaxed)) != 0;
        let [first, second] = self.sets(place);
        let second = has(OVERFLOW_WAY).then_some(second);
        let reserve = has(RESERVE_WAY).then(|| self.reserve(place));
        let positions = first.chain(reserve.into_iter().flatten()).chain(second.into_iter().flatten());
        let records = positions.filter_map(|position| self.get(position));
        records.filter(|record| {
            let other = record.key();
            (other.client, other.client_port, other.protocol) == (key.client, key.client_port, key.protocol)
        })
    }

    /// Returns the positions of both sets of a place.
    fn sets(&self, place: Place) -> [impl Iterator<Item = usize> + use<>; 2] {
        [place.set(self.mask), place.other_set(self.mask)].map(|set| ways(place, set))
    }

    /// Returns the positions of a place's set of the reserve.
    fn reserve(&self, place: Place) -> impl Iterator<Item = usize> + use<> {
        ways(place, reserve_set(place.set(self.mask), self.mask))
    }

    fn is_used(&self, position: usize) -> bool {
        let vip = low(self.mapping.elements()[position * WORDS + 1].load(Relaxed));
        vip != 0
    }

    /// Returns the record at a position, if there is a whole one.
    fn get(&self, position: usize) -> Option<FlowRecord> {
        if !self.is_used(position) {
            return None;
        }
        let words = &self.mapping.elements()[position * WORDS..][..WORDS];
        let record = from_words(std::array::from_fn(|index| words[index].load(Relaxed)));
        record.is_whole(&self.secret).then_some(record)
    }

    fn put(&self, position: usize, record: FlowRecord) {
        let words = &self.mapping.elements()[position * WORDS..][..WORDS];
        let [first, rest @ ..] = to_words(record);
        for (word, value) in words[1..].iter().zip(rest) {
            word.store(value, Relaxed);
        }
        // The lower half is the set's.
        let check = first & !u64::from(u32::MAX);
        let _ = words[0].fetch_update(Relaxed, Relaxed, |word| Some(word & u64::from(u32::MAX) | check));
    }

    /// Marks the records whose Service does not have their backend any more
    /// ([`FlowRecord::orphan_flag`]). Returns how many are new.
    ///
    /// A record may be given to another flow meanwhile. Then that one may choose a backend again, or it makes
    /// room for others a little sooner.
    pub fn mark_orphans(&self, is_orphan: impl Fn(&FlowRecord) -> bool) -> usize {
        let all = self.mapping.elements().len() / WORDS;
        let marked = (0..all).filter(|position| {
            let Some(record) = self.get(*position) else { return false };
            let flag = record.orphan_flag();
            let is_new = u32::from(record.flags) & flag == 0 && is_orphan(&record);
            if is_new {
                self.mapping.elements()[position * WORDS + STATE].fetch_or(u64::from(flag) << FLAGS, Relaxed);
            }
            is_new
        });
        marked.count()
    }

    /// Adds the record of another table, unless this table has a newer one of the flow. Without
    /// room it replaces one whose state is worth less. Returns whether it is in the table.
    pub fn add(&self, mut record: FlowRecord) -> bool {
        let place = record.place(&self.secret);
        (record.of_set, record.check) = (0, place.check(record.words()));
        if record.epoch == RESERVE_EPOCH {
            record.epoch = 0;
        }
        let key = record.key();
        let sets = self.sets(place).map(Iterator::collect::<Vec<_>>);
        for &position in sets.iter().flatten() {
            let Some(known) = self.get(position).filter(|known| known.key() == key) else { continue };
            let is_newer = record.seen.wrapping_sub(known.seen).cast_signed() > 0;
            if is_newer || record.seen == known.seen && record.flags != known.flags {
                self.put(position, record);
            }
            return true;
        }
        // There, the programs have just written it.
        if self.find(&key).is_some() {
            return true;
        }
        let used = |set: &Vec<usize>| set.iter().map(|position| u32::from(self.is_used(*position))).sum();
        let [one, other] = sets.each_ref().map(used);
        let [first, second] = if is_first_set(one, other) { [&sets[0], &sets[1]] } else { [&sets[1], &sets[0]] };
        let all = || first.iter().chain(second).copied();
        let worth = |position: &usize| self.get(*position).map(|known| FlowState::of(&known));
        let least = || all().min_by_key(worth).filter(|position| worth(position) < Some(FlowState::of(&record)));
        let position = all().find(|position| !self.is_used(*position)).or_else(least);
        if let Some(position) = position {
            if sets[1].contains(&position) {
                self.note(place, OVERFLOW_WAY, record.seen);
            }
            self.put(position, record);
            return true;
        }
        self.add_to_reserve(place, record)
    }

    /// Adds the record of an established connection to a backend here, whose replies need it.
    fn add_to_reserve(&self, place: Place, record: FlowRecord) -> bool {
        let is_needed = u32::from(record.flags) & FLOW_REPLIES != 0;
        if !is_needed || FlowState::of(&record) != FlowState::Established {
            return false;
        }
        let Some(position) = self.reserve(place).find(|position| !self.is_used(*position)) else { return false };
        self.note(place, OVERFLOW_WAY, record.seen);
        self.note(place, RESERVE_WAY, record.seen);
        self.put(position, FlowRecord { epoch: RESERVE_EPOCH, ..record });
        true
    }

    /// Returns the word with [`FlowRecord::of_set`] in its low half, of a way of a place's first set.
    fn of_set(&self, place: Place, way: u32) -> &AtomicU64 {
        &self.mapping.elements()[(place.set(self.mask) * WAYS + way) as usize * WORDS]
    }

    /// Notes a use of the second set or of the reserve, by the way that has the time.
    fn note(&self, place: Place, way: u32, seen: u32) {
        let _ = self.of_set(place, way).fetch_update(Relaxed, Relaxed, |word| {
            let known = low(word);
            let is_newer = known == 0 || seen.wrapping_sub(known).cast_signed() > 0;
            is_newer.then(|| word & !u64::from(u32::MAX) | u64::from(flow_table::overflow(seen)))
        });
    }
}

/// Returns the positions of a set, in the order in which programs look there.
fn ways(place: Place, set: u32) -> impl Iterator<Item = usize> {
    let first = (set * WAYS) as usize;
    (0..WAYS).map(move |number| first + Place::next_way(place.way(), number) as usize)
}

/// Returns the number of sets less one, by the number of elements of a flow table: a power of two and
/// more than one, and the reserve.
pub fn mask(elements: u32) -> Option<u32> {
    let sets = 1 << elements.checked_ilog2()?;
    (sets > 1 && elements - sets == reserve_sets(sets)).then_some(sets - 1)
}

/// Returns the number of sets of a table for this many flows, besides the reserve.
pub fn sets(flows: u32) -> u32 {
    flows.div_ceil(WAYS).clamp(2, 1 << 24).next_power_of_two()
}

/// Returns the number of elements of `FLOWS` for this many flows.
pub fn elements(flows: u32) -> u32 {
    let sets = sets(flows);
    sets + reserve_sets(sets)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is wanted")]
fn low(word: u64) -> u32 {
    word as u32
}

fn to_words(record: FlowRecord) -> [u64; WORDS] {
    // SAFETY: both are 64 plain bytes: integers without padding, as the assertions in `abi` say.
    unsafe { std::mem::transmute(record) }
}

fn from_words(words: [u64; WORDS]) -> FlowRecord {
    // SAFETY: as above; any bytes are a valid record.
    unsafe { std::mem::transmute(words) }
}

/// The state of a flow record, from the first to make room for another flow to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// Both sides or an RST closed the connection.
    Closed,
    /// A connection whose client has sent nothing but SYNs.
    HalfOpen,
    /// Not both sides have spoken: the backend here has sent nothing, or the client one packet.
    Unconfirmed,
    /// Both sides have spoken. Or the client has sent several packets to a backend whose answers this node does not
    /// see.
    Established,
}

impl FlowState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Closed, Self::HalfOpen, Self::Unconfirmed, Self::Established];

    /// Returns the state of a record.
    pub fn of(record: &FlowRecord) -> Self {
        const BOTH: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
        let flags = u32::from(record.flags);
        let is_half_known = flags & FLOW_REPLIES == 0 && flags & FLOW_CLIENT_FIN != 0;
        if flags & (FLOW_RESET | FLOW_DIRECT) != 0 || flags & BOTH == BOTH || is_half_known {
            Self::Closed
        } else if flags & FLOW_HALF_OPEN != 0 && record.protocol != UDP {
            Self::HalfOpen
        } else if flags & FLOW_UNPROVEN != 0 {
            Self::Unconfirmed
        } else {
            Self::Established
        }
    }

    /// Returns the name in the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Unconfirmed => "unconfirmed",
            Self::Established => "established",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn the_size_of_a_table_tells_its_sets() {
        let masks = [0, 1, 2, 3, 4, 5, 6, 4_096, 4_352, 4_353].map(mask);
        let [two, four, many] = [1, 3, 4_095].map(Some);
        assert_eq!(masks, [None, None, None, two, None, four, None, None, many, None]);
        for flows in [1, 8, 9, 100, 16_384, 1 << 20, u32::MAX] {
            assert_eq!(mask(elements(flows)), Some(sets(flows) - 1), "{flows} flows");
        }
    }

    #[test]
    fn records_whose_service_does_not_have_their_backend_are_marked_once() {
        let Some(fixture) = Fixture::new() else { return };
        let table = fixture.maps.writable_flow_table().unwrap();
        let record =
            |protocol, backend| FlowRecord { vip: 1, vip_port: 7, protocol, backend, seen: 9, ..FlowRecord::default() };
        let flags = u8::try_from(FLOW_REPLIES).unwrap();
        let flows = [record(6, 1), record(6, 2), record(17, 3), record(17, 4)];
        let flows =
            flows.map(|flow| FlowRecord { client_port: u16::try_from(flow.backend).unwrap(), flags, epoch: 5, ..flow });
        assert!(flows.iter().all(|flow| table.add(*flow)));
        let is_orphan = |record: &FlowRecord| [1, 3].contains(&record.backend);
        assert_eq!([table.mark_orphans(is_orphan), table.mark_orphans(is_orphan)], [2, 0]);
        let marks = flows.map(|flow| {
            let FlowRecord { flags, epoch, seen, .. } = table.find(&flow.key()).unwrap();
            assert_eq!((epoch, seen), (5, 9));
            u32::from(flags) & !FLOW_REPLIES
        });
        assert_eq!(marks, [FLOW_BACKEND_FIN, 0, FLOW_RESET, 0]);
    }

    #[test]
    fn a_record_in_the_reserve_is_found_and_carried_over() {
        let (Some(fixture), Some(other)) = (Fixture::new(), Fixture::new()) else { return };
        let [table, next] = [&fixture, &other].map(|fixture| fixture.maps.writable_flow_table().unwrap());
        let record = FlowRecord { vip: 1, client_port: 7, protocol: 6, epoch: RESERVE_EPOCH, ..FlowRecord::default() };
        let place = record.place(&table.secret);
        let record = FlowRecord { check: place.check(record.words()), ..record };
        table.put(table.reserve(place).next().unwrap(), record);
        assert_eq!(table.find(&record.key()), None, "its set does not use the reserve");
        table.of_set(place, RESERVE_WAY).store(1, Relaxed);
        assert_eq!(table.find(&record.key()), Some(record));
        assert!(table.add(FlowRecord { seen: 9, ..record }), "it is there");
        assert_eq!((table.records().collect::<Vec<_>>(), table.capacity()), (vec![record], 16_384));

        assert!(table.records().all(|record| next.add(record)));
        assert_eq!(next.find(&record.key()), Some(FlowRecord { epoch: 0, ..record }));

        // Nine established connections of one client port: two sets have room for eight.
        let flags = u8::try_from(FLOW_REPLIES).unwrap();
        let flows =
            (1..10).map(|vip| FlowRecord { vip, flags, client_port: 8, protocol: 6, seen: 7, ..FlowRecord::default() });
        let flows: Vec<_> = flows.collect();
        assert!(flows.iter().all(|flow| table.add(*flow)));
        let found: Vec<_> = flows.iter().map(|flow| table.find(&flow.key()).unwrap().epoch).collect();
        assert_eq!(found, [0, 0, 0, 0, 0, 0, 0, 0, RESERVE_EPOCH]);
        assert!(!table.add(FlowRecord { vip: 10, flags: 0, ..flows[0] }), "to another node, it needs no record");
    }
}
