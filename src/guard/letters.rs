//! Rejected records on their way to the dead-letter hook.

use std::collections::VecDeque;

use futures_util::future::BoxFuture;

use crate::dead_letter::{DeadLetter, Hook};
use crate::error::SinkFailure;
use crate::record::{Record, RecordId};

/// What became of a rejected record that was handed to the dead-letter hook.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a record that the hook did not take waits for another try"]
pub enum Reported {
    /// None waits.
    Nothing,
    /// The hook took this one: the next flush may permit it.
    Taken(RecordId),
    /// The hook failed: the record waits. Try again after a while; a flush in the meantime permits the others.
    Failed(SinkFailure),
}

/// The hook, and what waits for it.
#[derive(Default)]
pub(super) struct Letters {
    hook: Option<Hook>,
    /// The next one first. One whose place in the stream was lost is reported all the same: it was a message, and it is
    /// nowhere else.
    waiting: VecDeque<DeadLetter>,
    bytes: u64,
}

impl Letters {
    pub(super) fn new(hook: Option<Hook>) -> Self {
        Self { hook, ..Self::default() }
    }

    pub(super) const fn has_hook(&self) -> bool {
        self.hook.is_some()
    }

    /// A copy of a record that may be rejected, if somebody wants it then. Shares the payload.
    #[inline]
    pub(super) fn may_need(&self, record: &Record) -> Option<Record> {
        self.hook.as_ref().map(|_| record.clone())
    }

    pub(super) fn wait(&mut self, letter: DeadLetter) {
        self.bytes = self.bytes.saturating_add(letter.record.payload.len() as u64);
        self.waiting.push_back(letter);
    }

    /// How many wait, and how many bytes of payload they hold.
    pub(super) fn waiting(&self) -> (usize, u64) {
        (self.waiting.len(), self.bytes)
    }

    /// Hands the next one to the hook. From now on the others come first, also where the call is dropped half way: this one
    /// may be what the hook can never take.
    pub(super) fn send(&mut self) -> Option<(RecordId, BoxFuture<'_, Result<(), SinkFailure>>)> {
        let hook = self.hook.as_ref()?;
        let letter = self.waiting.pop_front()?;
        let sent = (letter.record.id(), hook.take(letter.clone()));
        self.waiting.push_back(letter);
        Some(sent)
    }

    /// The hook took what was handed to it last.
    pub(super) fn taken(&mut self) {
        if let Some(letter) = self.waiting.pop_back() {
            self.bytes = self.bytes.saturating_sub(letter.record.payload.len() as u64);
        }
    }
}
