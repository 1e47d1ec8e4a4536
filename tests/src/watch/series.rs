//! The results of requests that were sent one after the other.

use std::time::{Duration, Instant};

use super::PAUSE;

/// Requests by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Series {
    requests: Vec<(Instant, Option<Instant>)>,
}

impl Series {
    /// Records a request, and returns its number.
    pub(super) fn begin(&mut self, at: Instant) -> usize {
        self.requests.push((at, None));
        self.requests.len() - 1
    }

    /// Records a reply. Only the first one counts.
    pub(super) fn answer(&mut self, number: usize, at: Instant) {
        if let Some((_, answered)) = self.requests.get_mut(number) {
            answered.get_or_insert(at);
        }
    }

    /// Returns the number of requests.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// Returns how many were not answered.
    pub fn lost(&self) -> usize {
        self.requests.iter().filter(|(_, answered)| answered.is_none()).count()
    }

    pub(super) fn is_last_answered(&self) -> bool {
        self.requests.last().is_none_or(|(_, answered)| answered.is_some())
    }

    pub(super) fn answered_since(&self, begin: Instant) -> usize {
        self.requests.iter().filter(|(asked, answered)| *asked >= begin && answered.is_some()).count()
    }

    /// Returns the longest time between two replies, beyond the pause between requests.
    pub fn outage(&self) -> Duration {
        let answers = self.requests.iter().filter_map(|(_, answered)| *answered).collect();
        let bounds = self.requests.first().zip(self.requests.last());
        bounds.map_or(Duration::ZERO, |((first, _), (last, _))| longest_gap(answers, *first, *last))
    }
}

/// Returns the longest gap from `first` through all replies to `last`, beyond [`PAUSE`].
pub(super) fn longest_gap(mut answers: Vec<Instant>, first: Instant, last: Instant) -> Duration {
    answers.extend([first, last]);
    answers.sort_unstable();
    let gaps = answers.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0]));
    gaps.max().unwrap_or_default().saturating_sub(PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(answered: &[bool]) -> Series {
        let begin = Instant::now();
        let mut series = Series::default();
        for (number, is_answered) in answered.iter().enumerate() {
            let at = begin + PAUSE * u32::try_from(number).unwrap();
            assert_eq!(series.begin(at), number);
            if *is_answered {
                series.answer(number, at);
            }
        }
        series
    }

    #[test]
    fn an_outage_lasts_from_an_answer_to_the_next() {
        let all = series(&[true; 5]);
        assert_eq!((all.lost(), all.outage()), (0, Duration::ZERO));
        let gap = series(&[true, false, false, true, false, true]);
        assert_eq!((gap.lost(), gap.outage()), (3, PAUSE * 2));
    }

    #[test]
    fn a_vip_that_never_answers_again_is_away_until_the_end() {
        let gone = series(&[true, true, false, false, false]);
        assert_eq!((gone.lost(), gone.outage()), (3, PAUSE * 2));
        let silent = series(&[false, false, false]);
        assert_eq!((silent.lost(), silent.outage()), (3, PAUSE));
    }

    #[test]
    fn a_late_answer_is_no_loss_but_an_outage() {
        let mut late = series(&[true, false, true]);
        late.answer(1, late.requests[0].0 + PAUSE * 9);
        assert_eq!(late.lost(), 0);
        assert_eq!(late.outage(), PAUSE * 6);
    }
}
