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
