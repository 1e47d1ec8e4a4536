//! What becomes of which requests.

use std::time::Duration;

use super::{asked::Asked, chance::Chance};

/// What becomes of a request. Of several, those that come before it is carried out are done first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is carried out so much later.
    Delay(Duration),
    /// It is lost: the connection is closed.
    Lose,
    /// The connection stays, and nothing ever comes.
    Stall,
    /// It is not carried out, and answered with this HTTP status.
    Answer(u16),
    /// It is not carried out, and an event says that what a watch would go on from is gone (410).
    Expire,
    /// It is not carried out, and answered by nothing: a watch that ends at once.
    End,
    /// It is carried out twice, and answered as the second time.
    Twice,
    /// It is carried out, and once more so much later, of which nobody is told.
    Again(Duration),
    /// It is carried out, and answered so much later.
    Late(Duration),
    /// It is carried out, and the answer is lost: the connection is closed.
    LoseAnswer,
}

impl Fault {
    /// The name that it is counted by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::Lose => "lose",
            Self::Stall => "stall",
            Self::Answer(_) => "answer",
            Self::Expire => "expire",
            Self::End => "end",
            Self::Twice => "twice",
            Self::Again(_) => "again",
            Self::Late(_) => "late",
            Self::LoseAnswer => "lose answer",
        }
    }
}

/// Which requests a fault happens to; all of them, unless it says otherwise.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    verbs: Vec<&'static str>,
    resource: Option<&'static str>,
    name: Option<String>,
    resumed: bool,
    percent: u8,
    left: Option<u32>,
}

impl Rule {
    /// It happens to all requests.
    pub fn new(fault: Fault) -> Self {
        Self { fault, verbs: Vec::new(), resource: None, name: None, resumed: false, percent: 100, left: None }
    }

    /// To those of these verbs alone.
    pub fn of(mut self, verbs: &[&'static str]) -> Self {
        self.verbs = verbs.to_vec();
        self
    }

    /// To those that change something.
    pub fn of_writes(self) -> Self {
        self.of(&["create", "update", "patch", "delete"])
    }

    /// To watches that go on where another one ended.
    pub fn of_resumed_watches(mut self) -> Self {
        self.resumed = true;
        self
    }

    /// To those for this resource.
    pub fn on(mut self, resource: &'static str) -> Self {
        self.resource = Some(resource);
        self
    }

    /// To those for the object of this name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// To so many of a hundred.
    pub fn in_percent(mut self, percent: u8) -> Self {
        self.percent = percent;
        self
    }

    /// So often, and then no longer.
    pub fn times(mut self, times: u32) -> Self {
        self.left = Some(times);
        self
    }

    /// What happens to this request.
    pub(super) fn fault(&mut self, asked: &Asked, chance: &mut Chance) -> Option<Fault> {
        let fits = (self.verbs.is_empty() || self.verbs.contains(&asked.verb))
            && self.resource.is_none_or(|resource| resource == asked.resource)
            && self.name.as_ref().is_none_or(|name| *name == asked.name)
            && (asked.resumes || !self.resumed);
        if !fits || self.left == Some(0) || !chance.of_hundred(self.percent) {
            return None;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        Some(self.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(verb: &'static str, resource: &str) -> Asked {
        Asked { verb, resource: resource.to_owned(), name: "a".to_owned(), ..Asked::default() }
    }

    #[test]
    fn a_rule_is_for_what_it_names_and_as_often_as_it_says() {
        let mut chance = Chance::new(1);
        let mut rule = Rule::new(Fault::Lose).of(&["create", "update"]).on("leases").named("a").times(2);
        let mut is_lost = |verb, resource| rule.fault(&asked(verb, resource), &mut chance).is_some();
        assert!(!is_lost("get", "leases") && !is_lost("create", "events"));
        assert!(is_lost("create", "leases") && is_lost("update", "leases"));
        assert!(!is_lost("create", "leases"), "twice is over");
    }

    #[test]
    fn a_watch_that_begins_with_all_objects_is_not_resumed() {
        let (mut chance, mut rule) = (Chance::new(1), Rule::new(Fault::Expire).of_resumed_watches());
        assert_eq!(rule.fault(&asked("watch", "nodes"), &mut chance), None);
        let resumed = Asked { resumes: true, ..asked("watch", "nodes") };
        assert_eq!(rule.fault(&resumed, &mut chance), Some(Fault::Expire));
    }
}
