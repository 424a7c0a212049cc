//! Runs of deliveries that were skipped because they are archived.

/// Consecutive deliveries that were not written because they are archived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkipRun {
    /// How many deliveries.
    pub count: u64,
    /// The stream sequence of the first one.
    pub first: u64,
    /// The stream sequence of the last one.
    pub last: u64,
}

/// Follows the run at hand.
#[derive(Debug, Default)]
pub(crate) struct SkipTracker {
    run: Option<SkipRun>,
    /// Whether the run grew since the last flush.
    grew: bool,
}

impl SkipTracker {
    /// A delivery was skipped. True if a run begins.
    pub(crate) fn skipped(&mut self, sequence: u64) -> bool {
        self.grew = true;
        if let Some(run) = &mut self.run {
            run.count += 1;
            run.last = sequence;
            false
        } else {
            self.run = Some(SkipRun { count: 1, first: sequence, last: sequence });
            true
        }
    }

    /// A delivery was not skipped, or the session ended: gives the run that this ends.
    pub(crate) fn end(&mut self) -> Option<SkipRun> {
        self.grew = false;
        self.run.take()
    }

    /// A flush: a run that did not grow since the last one is over.
    pub(crate) fn flushed(&mut self) -> Option<SkipRun> {
        if std::mem::take(&mut self.grew) { None } else { self.run.take() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(count: u64, first: u64, last: u64) -> SkipRun {
        SkipRun { count, first, last }
    }

    #[test]
    fn a_run_ends_with_another_delivery_or_a_flush_in_which_it_did_not_grow() {
        let mut tracker = SkipTracker::default();
        assert_eq!((tracker.end(), tracker.flushed()), (None, None));
        assert_eq!([5, 7, 6].map(|sequence| tracker.skipped(sequence)), [true, false, false]);
        assert_eq!(tracker.end(), Some(run(3, 5, 6)));
        assert!(tracker.skipped(8), "a run begins anew");
        assert_eq!(tracker.flushed(), None, "it grew");
        assert!(!tracker.skipped(9));
        assert_eq!((tracker.flushed(), tracker.flushed()), (None, Some(run(2, 8, 9))));
        assert_eq!((tracker.flushed(), tracker.end()), (None, None));
        assert!(tracker.skipped(10));
        assert_eq!(tracker.end(), Some(run(1, 10, 10)));
        assert!(tracker.skipped(11), "what ended leaves nothing behind");
        assert_eq!(tracker.end(), Some(run(1, 11, 11)));
    }
}
