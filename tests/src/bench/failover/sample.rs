//! The results of one run, and their summary.

use std::fmt;

use serde::Serialize;

use super::median;
use crate::watch::View;

/// The results of one run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub(super) warm: Span,
    pub(super) anew: Span,
    pub(super) connections: Span,
    pub(super) questions: Span,
    pub(super) double_answers: usize,
    pub(super) moves: usize,
    pub(super) sessions: usize,
    pub(super) broken: usize,
}

/// The longest time without an answer, milliseconds, and the number of lost requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) outage: f64,
    pub(super) lost: usize,
}

/// The summary of all runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Away {
    /// The longest time without an answer beyond the pause between requests, milliseconds: the
    /// median of the runs.
    pub median: f64,
    /// The same for the worst run.
    pub worst: f64,
    /// Lost requests in all runs.
    pub lost: usize,
}

impl Away {
    pub(super) fn of(spans: &[Span]) -> Self {
        let outages: Vec<_> = spans.iter().map(|span| span.outage).collect();
        Self {
            worst: outages.iter().copied().fold(f64::NAN, f64::max),
            median: median(outages),
            lost: spans.iter().map(|span| span.lost).sum(),
        }
    }
}

impl Sample {
    /// Results of the clients. `sessions`: lasting connections, and how many of them broke.
    pub(super) fn of(view: &View, (sessions, broken): (usize, usize)) -> Self {
        let View { warm, anew, connections, arp_requests: questions } = view;
        let series =
            |series: &crate::watch::Series| Span { outage: series.outage().as_secs_f64() * 1e3, lost: series.lost() };
        Self {
            warm: series(warm),
            anew: series(anew),
            connections: series(connections),
            questions: Span { outage: questions.outage().as_secs_f64() * 1e3, lost: questions.lost() },
            double_answers: questions.answered_twice(),
            moves: questions.leaders().len().saturating_sub(1),
            sessions,
            broken,
        }
    }

    /// Every kernel repeats an ARP request that falls into a handover, so it counts as no loss.
    pub(super) fn longest(&self) -> Span {
        let Self { warm, anew, connections, questions, .. } = self;
        let outage = [warm, anew, connections, questions].map(|span| span.outage).into_iter().fold(0.0, f64::max);
        Span { outage, lost: warm.lost + anew.lost + connections.lost }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { warm, anew, connections, questions, double_answers, moves, sessions, broken } = self;
        let Span { outage, lost } = self.longest();
        write!(
            f,
            "away for {outage:.0} ms (who knows the MAC {:.0}, who asks for it {:.0}, connections {:.0}, ARP {:.0}); \
             lost: {lost}, double answers: {double_answers}, moves: {moves}, broken connections: {broken} of {sessions}",
            warm.outage, anew.outage, connections.outage, questions.outage
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_shown_in_one_line() {
        let span = |outage, lost| Span { outage, lost };
        let sample = Sample {
            warm: span(301.4, 30),
            anew: span(312.0, 31),
            connections: span(290.6, 3),
            questions: span(280.0, 9),
            double_answers: 0,
            moves: 1,
            sessions: 8,
            broken: 2,
        };
        assert_eq!(
            sample.to_string(),
            "away for 312 ms (who knows the MAC 301, who asks for it 312, connections 291, ARP 280); \
             lost: 64, double answers: 0, moves: 1, broken connections: 2 of 8"
        );
    }

    #[test]
    fn runs_are_summed_up_by_their_median_and_the_worst() {
        let span = |outage, lost| Span { outage, lost };
        let away = Away::of(&[span(3.0, 0), span(900.0, 7), span(2.0, 1)]);
        assert!((away.median - 3.0).abs() < 1e-9 && (away.worst - 900.0).abs() < 1e-9, "{away:?}");
        assert_eq!(away.lost, 8);
        assert!(Away::of(&[]).median.is_nan() && Away::of(&[]).worst.is_nan());
    }
}
