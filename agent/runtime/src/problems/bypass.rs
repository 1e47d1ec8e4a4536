//! Finds the ports whose frames bypass the XDP program. Pure.
//!
//! That a driver accepts a program shows nothing. vmxnet3 drops its program when the link goes down.
//! virtio_net without mergeable buffers runs none on the buffers that it uses for large frames. Others
//! may divert frames. So each look compares the frames that came in with the runs of the program.
//!
//! ```text
//!            frames came in at LOOKS looks,            again at LOOKS looks
//!            and the program never ran
//! (runs) ───────────────────────────────► (attached anew) ──────────────────► (given up)
//!   ▲                                            │                                 │
//!   └────────────────────────────────────────────┴─────────────────────────────────┘
//!                                     the program ran
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The interval of looks.
const EVERY: Duration = Duration::from_secs(1);
/// The number of looks at which frames came in although the program did not run. Some drivers count
/// frames that they drop before a program could see them. To attach anew can take a card down for
/// seconds.
const LOOKS: u32 = 5;

/// What to do on a port whose frames bypass its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Attach the program anew.
    Anew,
    /// Attach it in generic mode, if that is allowed: to attach it anew did not help.
    Generic,
}

/// The state of each port, by its index.
#[derive(Debug, Default)]
pub(crate) struct Bypasses {
    ports: BTreeMap<u32, Port>,
    /// The time of the last look.
    looked: Option<Duration>,
}

#[derive(Debug, Default)]
struct Port {
    /// The number of frames that have come in.
    frames: u64,
    /// The looks at which frames came in, since the program ran or was attached.
    unseen: u32,
    tried: Option<Remedy>,
}

impl Port {
    fn update(&mut self, frames: u64, ran: bool) -> Option<Remedy> {
        let more = frames > std::mem::replace(&mut self.frames, frames);
        if ran {
            (self.unseen, self.tried) = (0, None);
        } else if more {
            self.unseen += 1;
        }
        if self.unseen < LOOKS || self.tried == Some(Remedy::Generic) {
            return None;
        }
        self.unseen = 0;
        self.tried = Some(if self.tried.is_none() { Remedy::Anew } else { Remedy::Generic });
        self.tried
    }
}

impl Bypasses {
    /// Returns whether it is time for a look, and notes it.
    pub(crate) fn take_due(&mut self, now: Duration) -> bool {
        let due = self.looked.is_none_or(|at| now >= at + EVERY);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Looks at all ports. `frames`: the number of frames that had come in by each port, shortly ago.
    /// `ran`: whether the program ran on a port since the last look. Ports that are missing are
    /// forgotten. Returns what to do now.
    pub(crate) fn look(&mut self, frames: &BTreeMap<u32, u64>, ran: impl Fn(u32) -> bool) -> BTreeMap<u32, Remedy> {
        self.ports.retain(|port, _| frames.contains_key(port));
        let mut remedies = BTreeMap::new();
        for (&port, &frames) in frames {
            let new = || Port { frames, ..Port::default() };
            let remedy = self.ports.entry(port).or_insert_with(new).update(frames, ran(port));
            remedies.extend(remedy.map(|remedy| (port, remedy)));
        }
        remedies
    }

    /// Returns the ports whose frames bypass the program.
    pub(crate) fn ports(&self) -> BTreeSet<u32> {
        self.ports.iter().filter(|(_, port)| port.tried.is_some()).map(|(port, _)| *port).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u32 = 7;

    /// One port.
    #[derive(Default)]
    struct Bench {
        bypasses: Bypasses,
        frames: u64,
    }

    impl Bench {
        /// Looks this often, each time after `more` frames. Returns what to do.
        fn look(&mut self, looks: u32, more: u64, ran: bool) -> Vec<Remedy> {
            let mut remedies = Vec::new();
            for _ in 0..looks {
                self.frames += more;
                remedies.extend(self.bypasses.look(&BTreeMap::from([(PORT, self.frames)]), |_| ran).into_values());
            }
            remedies
        }

        fn is_bypassed(&self) -> bool {
            self.bypasses.ports().contains(&PORT)
        }
    }

    #[test]
    fn a_program_that_never_runs_is_attached_anew_once_and_then_in_generic_mode() {
        let mut bench = Bench::default();
        assert_eq!(bench.look(1, 1, false), [], "the frames before the first look");
        assert_eq!(bench.look(LOOKS - 1, 1, false), []);
        assert!(!bench.is_bypassed());
        assert_eq!(bench.look(1, 1, false), [Remedy::Anew]);
        assert!(bench.is_bypassed());
        assert_eq!(bench.look(LOOKS - 1, 9, false), []);
        assert_eq!(bench.look(1, 1, false), [Remedy::Generic]);
        assert_eq!(bench.look(LOOKS * 10, 1, false), [], "nothing else helps");
        assert!(bench.is_bypassed());
        assert_eq!(bench.look(1, 0, true), []);
        assert!(!bench.is_bypassed());
        assert_eq!(bench.look(LOOKS, 1, false), [Remedy::Anew], "it was lost again");
    }

    #[test]
    fn a_port_without_frames_shows_nothing() {
        let mut bench = Bench::default();
        assert_eq!(bench.look(LOOKS * 10, 0, false), []);
        assert_eq!(bench.look(LOOKS - 1, 1, false), []);
        assert_eq!(bench.look(LOOKS * 10, 0, false), [], "few frames show nothing either");
        assert!(!bench.is_bypassed());
    }

    #[test]
    fn a_program_that_runs_now_and_then_is_not_bypassed() {
        let mut bench = Bench::default();
        for _ in 0..10 {
            assert_eq!(bench.look(LOOKS - 1, 1, false), []);
            assert_eq!(bench.look(1, 0, true), []);
        }
        assert!(!bench.is_bypassed());
    }

    /// A bond counts the frames of another card when it changes its card.
    #[test]
    fn a_count_that_falls_shows_nothing() {
        let mut bench = Bench { frames: 1_000, ..Bench::default() };
        bench.look(1, 0, true);
        bench.frames = 0;
        assert_eq!(bench.look(LOOKS * 10, 0, false), []);
        assert!(!bench.is_bypassed());
    }

    #[test]
    fn a_port_that_is_gone_is_forgotten() {
        let mut bench = Bench::default();
        bench.look(LOOKS + 1, 1, false);
        assert!(bench.is_bypassed());
        bench.bypasses.look(&BTreeMap::new(), |_| false);
        assert!(!bench.is_bypassed());
    }
}
