//! When rejected records go to the dead-letter hook, and when too many wait for it.

use std::time::Duration;

use super::Note;
use crate::jetstream::pace::{Backoff, Limits};

/// How long one call of the hook may take.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// How long one call may take once the process is to stop, and for how long calls begin.
pub(crate) const LAST: Duration = Duration::from_secs(5);

/// What is left for the hook when the process stops.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Duration,
    tries: usize,
}

#[derive(Debug)]
pub(super) struct Reports {
    /// How many records wait for the hook, and how many bytes they hold.
    records: usize,
    bytes: u64,
    /// It failed: not before this time.
    next: Option<Duration>,
    backoff: Backoff,
    rest: Option<Rest>,
}

impl Reports {
    pub(super) const fn new(seed: u64) -> Self {
        Self { records: 0, bytes: 0, next: None, backoff: Backoff::new(seed), rest: None }
    }

    /// So much waits now.
    pub(super) const fn wait(&mut self, (records, bytes): (usize, u64)) {
        (self.records, self.bytes) = (records, bytes);
    }

    /// Whether nothing waits.
    pub(super) const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Whether no more deliveries may be taken: what waits for the hook is as much as one flush holds.
    pub(super) const fn is_full(&self, limits: Limits) -> bool {
        self.records > 0 && (self.records as u64 >= limits.count || self.bytes >= limits.bytes)
    }

    /// Whether the hook is to be called now: before a flush, and, where it failed, after a while.
    pub(super) fn due(&self, flush: bool, limits: Limits, now: Duration) -> bool {
        self.records > 0 && self.next.map_or(flush || self.is_full(limits), |next| now >= next)
    }

    /// When it is to be called again, where it failed.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.next.filter(|_| self.records > 0)
    }

    /// Whether the hook is to be called once more before the process stops: with each record once, as long as there is
    /// time.
    pub(super) fn due_at_end(&mut self, now: Duration) -> bool {
        let rest = *self.rest.get_or_insert(Rest { until: now.saturating_add(LAST), tries: self.records });
        self.records > 0 && rest.tries > 0 && now < rest.until
    }

    /// A session began: what waited over the end of the last one needs no delivery to come up again.
    pub(super) fn resumed(&mut self, now: Duration) {
        if self.records > 0 {
            self.next.get_or_insert(now);
        }
    }

    /// The hook took one.
    pub(super) fn taken(&mut self) {
        self.tried();
        self.next = None;
        self.backoff.reset();
    }

    /// The hook failed.
    pub(super) fn failed(&mut self, why: String, now: Duration) -> Note {
        self.tried();
        let wait = self.backoff.wait();
        self.next = Some(now.saturating_add(wait));
        Note::Retry { what: "dead-letter", why, wait }
    }

    fn tried(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.tries = rest.tries.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: Limits = Limits { count: 3, bytes: 100, age: SECOND, window: None };

    fn waiting(records: usize, bytes: u64) -> Reports {
        let mut reports = Reports::new(7);
        reports.wait((records, bytes));
        reports
    }

    #[test]
    fn the_hook_is_called_before_a_flush_and_not_without_a_record() {
        assert!(!waiting(0, 0).due(true, LIMITS, SECOND));
        assert!(!waiting(1, 1).due(false, LIMITS, SECOND));
        assert!(waiting(1, 1).due(true, LIMITS, SECOND));
    }

    #[test]
    fn what_waits_is_bounded_by_count_and_bytes() {
        for (records, bytes, full) in [(0, 0, false), (2, 99, false), (3, 0, true), (1, 100, true)] {
            let reports = waiting(records, bytes);
            assert_eq!(reports.is_full(LIMITS), full, "{records} {bytes}");
            assert_eq!(reports.due(false, LIMITS, SECOND), full, "nothing else would ever call the hook");
        }
    }

    #[test]
    fn after_a_failure_flushes_go_on_and_the_hook_is_left_alone_for_a_while() {
        let mut reports = waiting(3, 3);
        let Note::Retry { what, wait, .. } = reports.failed("down".to_owned(), SECOND) else { panic!("no retry") };
        assert_eq!((what, reports.deadline()), ("dead-letter", Some(SECOND + wait)));
        assert!(!reports.due(true, LIMITS, SECOND));
        assert!(reports.due(false, LIMITS, SECOND + wait), "also when no flush is due");
        let waits: Vec<Duration> = (0..9)
            .map(|_| match reports.failed(String::new(), SECOND) {
                Note::Retry { wait, .. } => wait,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(waits.last() > waits.first(), "{waits:?}");
        reports.taken();
        assert_eq!(reports.deadline(), None);
    }

    #[test]
    fn at_the_end_each_record_is_tried_once_and_not_for_long() {
        let mut reports = waiting(2, 2);
        assert!(reports.due_at_end(SECOND));
        reports.failed(String::new(), SECOND);
        assert!(reports.due_at_end(SECOND), "the other one may be taken");
        reports.failed(String::new(), SECOND);
        assert!(!reports.due_at_end(SECOND));
        let mut reports = waiting(2, 2);
        assert!(reports.due_at_end(SECOND) && !reports.due_at_end(SECOND + LAST));
        let mut reports = waiting(2, 2);
        assert!(reports.due_at_end(SECOND));
        reports.wait((0, 0));
        assert!(!reports.due_at_end(SECOND), "nothing waits any more");
        reports.wait((1, 1));
        reports.taken();
        assert!(reports.due_at_end(SECOND));
        reports.taken();
        assert!(!reports.due_at_end(SECOND), "a record that was taken counts as tried");
    }

    #[test]
    fn where_nothing_waits_nothing_holds_deliveries_up() {
        assert!(!waiting(0, 0).is_full(Limits { count: 0, bytes: 0, ..LIMITS }));
        let mut reports = waiting(1, 1);
        reports.failed(String::new(), SECOND);
        reports.wait((0, 0));
        assert_eq!(reports.deadline(), None);
    }

    #[test]
    fn what_waited_over_the_end_of_a_session_comes_up_in_the_next_one() {
        let mut reports = waiting(1, 1);
        reports.resumed(SECOND);
        assert_eq!(reports.deadline(), Some(SECOND));
        assert!(reports.due(false, LIMITS, SECOND));
        let Note::Retry { wait, .. } = reports.failed(String::new(), SECOND) else { panic!("no retry") };
        reports.resumed(SECOND);
        assert_eq!(reports.deadline(), Some(SECOND + wait), "a new session is no reason to try sooner");
        let mut reports = waiting(0, 0);
        reports.resumed(SECOND);
        reports.wait((1, 1));
        assert!(!reports.due(false, LIMITS, SECOND), "it came in this session");
    }
}
