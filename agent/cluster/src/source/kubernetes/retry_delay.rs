//! The delays between attempts to reach the API server.

use std::time::Duration;

use crate::access::with_jitter;

/// The shortest delay between attempts and the longest. It doubles with each failure. Up to as much
/// again is added at random, so that a thousand agents do not retry together.
pub(super) const MIN_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(8);

/// Returns how long to wait after this many failures.
pub(super) fn delay(failures: u32) -> Duration {
    with_jitter((MIN_DELAY * 2_u32.saturating_pow(failures.min(16))).min(MAX_DELAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_bounded_and_is_never_short() {
        for failures in [0, 1, 5, 6, 100, u32::MAX] {
            let delay = delay(failures);
            assert!(delay >= MIN_DELAY && delay <= MAX_DELAY * 2, "{failures}: {delay:?}");
        }
    }

    #[test]
    fn the_page_has_the_delays_of_the_code() {
        let (least, most) = (MIN_DELAY.as_secs_f32(), MAX_DELAY.as_secs());
        let words = format!("retries after {least} s, {} s, and so on up to {most} s", least * 2.0);
        vipmux_testing::pages::assert_says(vipmux_testing::pages::CLUSTER, &words);
    }
}
