//! When a flush is due, and how long to wait between tries. Pure: time is given, as a duration since some start.

use std::time::Duration;

use crate::sink::Reason;

/// How long a sink that kept records back is left alone at least, however short the age.
const LEFT_ALONE: Duration = Duration::from_millis(100);

/// When to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) age: Duration,
    /// How many deliveries the server sends without an ack; `None` without a limit.
    pub(crate) window: Option<u64>,
}

/// Counts towards the next flush. Every delivery counts, also one that is skipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    limits: Limits,
    count: u64,
    bytes: u64,
    since: Option<Duration>,
    full: bool,
    /// The sink holds records from before the last flush.
    left: bool,
}

impl Pace {
    pub(crate) const fn new(limits: Limits) -> Self {
        Self { limits, count: 0, bytes: 0, since: None, full: false, left: false }
    }

    /// A delivery of this many bytes was offered.
    pub(crate) const fn offered(&mut self, bytes: u64, full: bool, now: Duration) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.full |= full;
        if self.since.is_none() {
            self.since = Some(now);
        }
    }

    /// A session begins. What the sink holds keeps its count and its age, or a connection that never lasts as long as a
    /// flush may wait would never see one.
    pub(crate) fn resumed(&mut self, window: Option<u64>, held: bool, now: Duration) {
        let limits = Limits { window, ..self.limits };
        *self = if held {
            Self { limits, since: self.since.or(Some(now)), left: true, ..*self }
        } else {
            Self::new(limits)
        };
    }

    /// The sink was full before the session began.
    pub(crate) const fn full(&mut self) {
        self.full = true;
    }

    /// A flush was made. `left`: the sink still holds records; `waiting`: deliveries still wait for an
    /// ack. Their age begins anew.
    pub(crate) fn flushed(&mut self, left: bool, waiting: bool, now: Duration) {
        *self = Self { since: (left || waiting).then_some(now), left, ..Self::new(self.limits) };
    }

    /// Whether a flush is due, and which, with this many deliveries waiting for an ack.
    pub(crate) fn due(&self, waiting: u64, now: Duration) -> Option<Reason> {
        let Limits { count, bytes, window, .. } = self.limits;
        if window.is_some_and(|window| waiting >= window) && (self.count > 0 || self.left) {
            return Some(Reason::Everything);
        }
        let old = self.since.is_some_and(|since| now.saturating_sub(since) >= self.age());
        (self.full || self.count >= count || self.bytes >= bytes || old).then_some(Reason::Due)
    }

    /// When the oldest delivery is old enough for a flush.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.since.map(|since| since.saturating_add(self.age()))
    }

    fn age(&self) -> Duration {
        if self.left { self.limits.age.max(LEFT_ALONE) } else { self.limits.age }
    }
}

/// Exponential waiting with jitter, so that many archivers do not come back at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    random: u64,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(10);

    /// The seed makes the jitter.
    pub(crate) const fn new(seed: u64) -> Self {
        Self { next: Self::FIRST, random: seed | 1 }
    }

    /// A seed of its own for each. The standard library's hasher keys come from the system's randomness.
    pub(crate) fn seed() -> u64 {
        use std::hash::{BuildHasher as _, RandomState};
        RandomState::new().hash_one(std::process::id())
    }

    /// It worked: the next wait is short again.
    pub(crate) const fn reset(&mut self) {
        self.next = Self::FIRST;
    }

    /// How long to wait now: between half and all of the step, which doubles.
    pub(crate) fn wait(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(Self::LAST);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = u32::try_from(self.random % 1_000).unwrap_or(0);
        step / 2 + step / 2 * share / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(window: Option<u64>) -> Limits {
        Limits { count: 3, bytes: 100, age: SECOND * 5, window }
    }

    #[test]
    fn a_flush_is_due_by_count_bytes_age_or_a_full_sink() {
        let mut pace = Pace::new(limits(None));
        assert_eq!((pace.due(0, SECOND), pace.deadline()), (None, None));
        pace.offered(1, false, SECOND);
        assert_eq!(pace.deadline(), Some(SECOND * 6));
        assert_eq!(pace.due(1, SECOND * 5), None);
        assert_eq!(pace.due(1, SECOND * 6), Some(Reason::Due));
        pace.offered(99, false, SECOND);
        assert_eq!(pace.due(2, SECOND), Some(Reason::Due));
        pace.flushed(false, false, SECOND);
        pace.offered(1, true, SECOND);
        assert_eq!(pace.due(1, SECOND), Some(Reason::Due));
        pace.flushed(false, false, SECOND);
        for _ in 0..3 {
            assert_eq!(pace.due(0, SECOND), None);
            pace.offered(0, false, SECOND);
        }
        assert_eq!(pace.due(0, SECOND), Some(Reason::Due));
    }

    #[test]
    fn a_full_ack_window_flushes_everything() {
        let mut pace = Pace::new(limits(Some(2)));
        pace.offered(1, false, SECOND);
        assert_eq!(pace.due(1, SECOND), None);
        pace.offered(1, false, SECOND);
        assert_eq!(pace.due(2, SECOND), Some(Reason::Everything));
        pace.flushed(false, false, SECOND);
        assert_eq!(pace.due(2, SECOND), None, "nothing new to flush");
    }

    #[test]
    fn what_the_sink_kept_open_is_flushed_again_without_a_delivery() {
        let mut pace = Pace::new(limits(Some(2)));
        pace.offered(1, false, SECOND);
        pace.flushed(true, false, SECOND * 6);
        assert_eq!((pace.due(1, SECOND * 10), pace.due(1, SECOND * 11)), (None, Some(Reason::Due)));
        assert_eq!(
            pace.due(2, SECOND * 7),
            Some(Reason::Everything),
            "the server sends nothing more until something is acked"
        );
    }

    #[test]
    fn what_the_sink_kept_open_is_not_asked_for_in_a_tight_loop() {
        let mut pace = Pace::new(Limits { age: Duration::ZERO, ..limits(None) });
        pace.offered(1, false, SECOND);
        assert_eq!(pace.due(1, SECOND), Some(Reason::Due));
        pace.flushed(true, false, SECOND);
        assert_eq!(pace.due(1, SECOND), None, "the driver never came to pull");
        assert_eq!(pace.deadline(), Some(SECOND + LEFT_ALONE));
        assert_eq!(pace.due(1, SECOND + LEFT_ALONE), Some(Reason::Due));
    }

    #[test]
    fn records_with_the_sink_grow_older_over_sessions() {
        let mut pace = Pace::new(limits(None));
        pace.offered(60, false, SECOND);
        pace.resumed(Some(9), true, SECOND * 4);
        assert_eq!((pace.due(0, SECOND * 5), pace.due(0, SECOND * 6)), (None, Some(Reason::Due)));
        pace.offered(40, false, SECOND * 5);
        assert_eq!(pace.due(0, SECOND * 5), Some(Reason::Due), "bytes of both sessions");
        pace.resumed(Some(9), false, SECOND * 5);
        assert_eq!((pace.due(0, SECOND * 60), pace.deadline()), (None, None), "orphaned, or only skipped");
    }

    #[test]
    fn waits_grow_to_a_bound_and_are_never_zero() {
        let mut backoff = Backoff::new(7);
        let waits: Vec<Duration> = (0..20).map(|_| backoff.wait()).collect();
        assert!(waits.iter().all(|wait| *wait >= Backoff::FIRST / 2 && *wait <= Backoff::LAST), "{waits:?}");
        assert!(waits.last() >= Some(&(Backoff::LAST / 2)));
        backoff.reset();
        assert!(backoff.wait() <= Backoff::FIRST);
    }
    #[test]
    fn a_session_takes_over_what_the_sink_holds_and_the_window_of_its_consumer() {
        let mut pace = Pace::new(limits(None));
        pace.resumed(Some(2), true, SECOND);
        assert_eq!(pace.deadline(), Some(SECOND * 6), "nobody knows how old it is");
        assert_eq!((pace.due(1, SECOND), pace.due(2, SECOND)), (None, Some(Reason::Everything)));
        pace.resumed(Some(2), false, SECOND);
        assert_eq!(pace.due(2, SECOND), None);
        pace.offered(1, false, SECOND);
        assert_eq!(pace.due(2, SECOND), Some(Reason::Everything));
        pace.resumed(None, false, SECOND);
        pace.full();
        assert_eq!(pace.due(0, SECOND), Some(Reason::Due));
    }

    #[test]
    fn every_archiver_waits_for_times_of_its_own() {
        assert_ne!(Backoff::seed(), Backoff::seed());
        // Marsaglia's generator of 64 bits with the shifts 13, 7 and 17.
        let mut backoff = Backoff::new(1);
        for micros in [88_050, 150_500, 291_400, 578_000] {
            assert_eq!(backoff.wait(), Duration::from_micros(micros));
        }
    }
}
