//! Rules: which faults apply to which requests.

use std::time::Duration;

use super::{api_request::ApiRequest, random::Random};

/// A fault of a request. Faults before the execution are applied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Executed after this delay.
    Delay(Duration),
    /// Lost: the connection is closed.
    Lose,
    /// The connection stays open without a response.
    Stall,
    /// Not executed; the response has this HTTP status.
    Answer(u16),
    /// Not executed; an event reports that the watch's resource version is gone (410).
    Expire,
    /// Not executed; the response is empty: a watch that ends at once.
    End,
    /// Executed twice; the second response is returned.
    Twice,
    /// Executed, and executed once more after this delay, without another response.
    Again(Duration),
    /// Executed; the response comes after this delay.
    Late(Duration),
    /// Executed; the response is lost: the connection is closed.
    LoseAnswer,
}

impl Fault {
    /// Returns the fault's name in counts.
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

/// A fault and the requests that it applies to: all of them, unless it is narrowed.
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
    /// A rule for all requests.
    pub fn new(fault: Fault) -> Self {
        Self { fault, verbs: Vec::new(), resource: None, name: None, resumed: false, percent: 100, left: None }
    }

    /// Only for requests of these verbs.
    pub fn of(mut self, verbs: &[&'static str]) -> Self {
        self.verbs = verbs.to_vec();
        self
    }

    /// Only for requests that change something.
    pub fn of_writes(self) -> Self {
        self.of(&["create", "update", "patch", "delete"])
    }

    /// Only for watches that continue an earlier one.
    pub fn of_resumed_watches(mut self) -> Self {
        self.resumed = true;
        self
    }

    /// Only for requests for this resource.
    pub fn on(mut self, resource: &'static str) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Only for requests for the object of this name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only for this percentage of the requests.
    pub fn in_percent(mut self, percent: u8) -> Self {
        self.percent = percent;
        self
    }

    /// Only so many times.
    pub fn times(mut self, times: u32) -> Self {
        self.left = Some(times);
        self
    }

    /// Returns the fault of this request, if the rule applies.
    pub(super) fn fault(&mut self, request: &ApiRequest, random: &mut Random) -> Option<Fault> {
        let fits = (self.verbs.is_empty() || self.verbs.contains(&request.verb))
            && self.resource.is_none_or(|resource| resource == request.resource)
            && self.name.as_ref().is_none_or(|name| *name == request.name)
            && (request.resumes || !self.resumed);
        if !fits || self.left == Some(0) || !random.percent(self.percent) {
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

    fn request(verb: &'static str, resource: &str) -> ApiRequest {
        ApiRequest { verb, resource: resource.to_owned(), name: "a".to_owned(), ..ApiRequest::default() }
    }

    #[test]
    fn a_rule_is_for_what_it_names_and_as_often_as_it_says() {
        let mut random = Random::new(1);
        let mut rule = Rule::new(Fault::Lose).of(&["create", "update"]).on("leases").named("a").times(2);
        let mut is_lost = |verb, resource| rule.fault(&request(verb, resource), &mut random).is_some();
        assert!(!is_lost("get", "leases") && !is_lost("create", "events"));
        assert!(is_lost("create", "leases") && is_lost("update", "leases"));
        assert!(!is_lost("create", "leases"), "twice is over");
    }

    #[test]
    fn a_watch_that_begins_with_all_objects_is_not_resumed() {
        let (mut random, mut rule) = (Random::new(1), Rule::new(Fault::Expire).of_resumed_watches());
        assert_eq!(rule.fault(&request("watch", "nodes"), &mut random), None);
        let resumed = ApiRequest { resumes: true, ..request("watch", "nodes") };
        assert_eq!(rule.fault(&resumed, &mut random), Some(Fault::Expire));
    }
}
