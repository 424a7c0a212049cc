//! What was published, what the storage must hold, and how often it may.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Held;
use super::report::{Found, Promise};
use crate::checkpoint::ClaimBody;
use crate::coverage::Coverage;
use crate::record::{Record, RecordId};
use crate::sink::Recovered;
use crate::source::Source;

/// How many records a report names.
const NAMED: usize = 12;

/// One message that was ever in the stream.
#[derive(Debug)]
struct Message {
    record: Record,
    /// The life of the stream it was published in.
    life: u32,
    /// The life in which the stream had lost it.
    gone: u32,
    rejected: bool,
}

/// The books of one source.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// By sequence and publish time in the sink's unit.
    messages: BTreeMap<RecordId, Message>,
    unit: i64,
    life: u32,
    /// Must be held from now on: permitted, covered by a checkpoint, or named by `recover`.
    owed: BTreeSet<RecordId>,
    /// Named as durable by a flush since the last crash.
    said: BTreeSet<RecordId>,
    /// With the sink, and not permitted yet.
    open: BTreeSet<RecordId>,
    /// How often each may be held beyond once.
    allowed: BTreeMap<RecordId, usize>,
    /// What was last seen to be held, and how often.
    counts: BTreeMap<RecordId, usize>,
    /// Whether all that was held had its headers.
    pub(super) headers: bool,
}

impl Books {
    pub(super) fn new(unit: Duration) -> Self {
        let unit = i64::try_from(unit.as_nanos()).unwrap_or(i64::MAX).max(1);
        Self { unit, headers: true, ..Self::default() }
    }

    /// The id as the sink keeps it: with its unit of time.
    fn key(&self, id: RecordId) -> RecordId {
        RecordId::new(id.sequence, id.published.div_euclid(self.unit))
    }

    pub(super) fn published(&mut self, record: Record) {
        let message = Message { life: self.life, gone: u32::MAX, rejected: false, record };
        self.messages.insert(self.key(message.record.id()), message);
    }

    /// The stream lost what is above this sequence, and goes on.
    pub(super) fn next_life(&mut self, through: u64) {
        self.life += 1;
        let lost = |message: &&mut Message| message.record.sequence > through && message.gone == u32::MAX;
        self.messages.values_mut().filter(lost).for_each(|message| message.gone = self.life);
    }

    pub(super) const fn lives(&self) -> u32 {
        self.life + 1
    }

    pub(super) fn offered(&mut self, id: RecordId) {
        self.open.insert(id);
    }

    pub(super) fn rejected(&mut self, id: RecordId) {
        let key = self.key(id);
        if let Some(message) = self.messages.get_mut(&key) {
            message.rejected = true;
        }
    }

    pub(super) fn is_rejected(&self, id: RecordId) -> bool {
        self.messages.get(&self.key(id)).is_some_and(|message| message.rejected)
    }

    pub(super) fn said(&mut self, ids: impl IntoIterator<Item = RecordId>) {
        self.said.extend(ids);
    }

    /// The guard permits an ack.
    ///
    /// # Errors
    ///
    /// If nobody ever said that the record is durable.
    pub(super) fn permitted(&mut self, id: RecordId) -> Result<(), Found> {
        self.open.remove(&id);
        if self.is_rejected(id) {
            return Ok(());
        }
        if !self.said.contains(&id) && !self.owed.contains(&id) {
            return Err(Found::of(Promise::Kept, format!("{id} was acked, and nobody said that it is durable"))
                .with_lost(vec![id]));
        }
        self.owed.insert(id);
        Ok(())
    }

    /// Records of a life that is over: what is durable of them stays.
    pub(super) fn orphaned(&mut self, ids: &[RecordId]) {
        for id in ids {
            self.open.remove(id);
            if self.said.contains(id) {
                self.owed.insert(*id);
            }
        }
    }

    /// The guard is gone. What was with the sink may come twice, if the sink does not tell a new guard of it.
    pub(super) fn crashed(&mut self, recovers: bool) {
        for id in std::mem::take(&mut self.open) {
            if !recovers {
                *self.allowed.entry(id).or_default() += 1;
            }
        }
    }

    /// What a flush said and no checkpoint has may from now on be replaced: the same record is delivered again.
    pub(super) fn opened(&mut self, covered: &Coverage) {
        self.said.clear();
        let covered: Vec<RecordId> = self
            .messages
            .values()
            .filter(|message| !message.rejected && message.gone == u32::MAX && covers(covered, message.record.id()))
            .map(|message| message.record.id())
            .collect();
        self.owed.extend(covered);
    }

    /// The checkpoint is lost: all may come once again.
    pub(super) fn forgotten(&mut self) {
        for id in self.counts.keys() {
            *self.allowed.entry(*id).or_default() += 1;
        }
    }

    /// After a fork what is held and no longer covered may come once again.
    pub(super) fn allow_uncovered(&mut self, covered: &Coverage) {
        for (id, count) in &self.counts {
            if !covers(covered, *id) {
                self.allowed.insert(*id, *count);
            }
        }
    }

    /// The messages that these claims name, of all that ever were in the stream.
    pub(super) fn named(&self, source: &Source, recovered: &Recovered) -> BTreeSet<RecordId> {
        let claims = match recovered {
            Recovered::Unknown => return BTreeSet::new(),
            Recovered::AtLeast(claims) | Recovered::Exactly { claims, .. } => claims,
        };
        // A claim cannot be made of bytes that are none.
        let bodies = claims.iter().filter_map(|claim| ClaimBody::decode(claim.as_bytes()).ok().flatten());
        let bodies: Vec<ClaimBody> = bodies.filter(|body| body.source == *source).collect();
        let is_named = |message: &Message| bodies.iter().any(|body| self.is_named(&body.coverage, message));
        let named = self.messages.values().filter(|message| !message.rejected && is_named(message));
        named.map(|message| message.record.id()).collect()
    }

    /// Whether a claim names this message: by its sequence and time, and as one that the stream held together with the last
    /// record of the span. A message of another life may have the sequence, and lie within the times.
    fn is_named(&self, coverage: &Coverage, message: &Message) -> bool {
        let id = message.record.id();
        let span = coverage.find(id.sequence).filter(|span| span.knows(id.published));
        let last = span.and_then(|span| self.messages.get(&self.key(span.witness.id)));
        last.is_some_and(|last| message.life <= last.life && last.life < message.gone)
    }

    /// What the sink named when it was asked what it holds: must be held now, and from now on.
    pub(super) fn recovered(&mut self, named: BTreeSet<RecordId>) -> Result<(), Found> {
        let lost = self.missing(&named);
        if !lost.is_empty() {
            return Err(
                Found::of(Promise::Claimed, format!("named by recover and not held: {}", list(&lost))).with_lost(lost)
            );
        }
        self.owed.extend(named);
        Ok(())
    }

    /// What the sink listed of a range of sequences: must be held now, and from now on, and be all of each sequence.
    pub(super) fn listed(&mut self, listed: &[RecordId]) -> Result<(), Found> {
        let keys: BTreeSet<RecordId> = listed.iter().map(|id| self.key(*id)).collect();
        let known = keys.iter().filter_map(|key| self.messages.get(key)).map(|message| message.record.id());
        let named: BTreeSet<RecordId> = known.collect();
        let lost = self.missing(&named);
        if named.len() < keys.len() || !lost.is_empty() {
            let what = format!("records_in names {}, of which not held: {}", list(listed), list(&lost));
            return Err(Found::of(Promise::Claimed, what).with_lost(lost));
        }
        let sequences: BTreeSet<u64> = named.iter().map(|id| id.sequence).collect();
        let hidden = self.counts.keys().filter(|id| sequences.contains(&id.sequence) && !named.contains(id));
        let hidden: Vec<RecordId> = hidden.copied().collect();
        if !hidden.is_empty() {
            let what = format!("records_in names one record of a sequence and not the other: {}", list(&hidden));
            return Err(Found::of(Promise::Answered, what));
        }
        self.owed.extend(named);
        Ok(())
    }

    /// What of these was not held when last looked at.
    pub(super) fn missing(&self, ids: &BTreeSet<RecordId>) -> Vec<RecordId> {
        ids.iter().filter(|id| !self.counts.contains_key(id)).copied().collect()
    }

    /// Compares what is held with the books. `lost_by`: which promise is broken if something is missing.
    pub(super) fn audit(&mut self, held: &[Held], lost_by: Promise) -> Result<(), Found> {
        let mut counts: BTreeMap<RecordId, usize> = BTreeMap::new();
        for held in held {
            let (id, headers) = self.compare(held)?;
            self.headers &= headers;
            *counts.entry(id).or_default() += 1;
        }
        self.counts = counts;
        let lost: Vec<RecordId> = self.said.union(&self.owed).copied().collect();
        let lost: Vec<RecordId> = lost.into_iter().filter(|id| !self.counts.contains_key(id)).collect();
        if !lost.is_empty() {
            let old = lost.iter().all(|id| self.messages.get(&self.key(*id)).is_some_and(|m| m.life < self.life));
            let promise = if old && lost_by == Promise::Kept { Promise::LivesApart } else { lost_by };
            let what = format!("called durable and not held: {}", list(&lost));
            return Err(Found::of(promise, what).with_lost(lost));
        }
        let twice: Vec<(RecordId, usize)> = self
            .counts
            .iter()
            .filter(|(id, count)| **count > 1 + self.allowed.get(id).copied().unwrap_or(0))
            .map(|(id, count)| (*id, *count))
            .collect();
        if !twice.is_empty() {
            let named: Vec<String> =
                twice.iter().take(NAMED).map(|(id, count)| format!("{id} {count} times")).collect();
            let what = format!("held more often than a crash excuses: {}{}", named.join(", "), more(twice.len()));
            return Err(Found::of(Promise::Once, what).with_twice(twice));
        }
        Ok(())
    }

    /// At rest all that the stream has is held.
    pub(super) fn complete(&self, stream: &[Record]) -> Result<(), Found> {
        let lost: Vec<RecordId> = stream.iter().map(Record::id).collect();
        let lost: Vec<RecordId> =
            lost.into_iter().filter(|id| !self.is_rejected(*id) && !self.counts.contains_key(id)).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let what = format!("all is archived, says the guard, and not held: {}", list(&lost));
        Err(Found::of(Promise::Kept, what).with_lost(lost))
    }

    /// The message this is, whether it is held as it was given, and whether its headers were read back.
    fn compare(&self, held: &Held) -> Result<(RecordId, bool), Found> {
        let unfaithful = |what: String| Found::of(Promise::Faithful, what);
        let id = RecordId::new(held.sequence, held.published);
        let Some(message) = self.messages.get(&self.key(id)) else {
            return Err(unfaithful(format!("{id} is held, and was never in the stream")));
        };
        let record = &message.record;
        let id = record.id();
        if message.rejected {
            return Err(Found::of(Promise::Answered, format!("{id} is held, and was rejected")));
        }
        if held.subject != record.subject.as_str() {
            return Err(unfaithful(format!(
                "{id} has subject {:?}, held as {:?}",
                record.subject.as_str(),
                held.subject
            )));
        }
        if held.payload != record.payload {
            let (given, found) = (record.payload.len(), held.payload.len());
            let at = record.payload.iter().zip(held.payload.iter()).position(|(given, found)| given != found);
            let at = at.map_or_else(String::new, |at| format!(", other from byte {at} on"));
            return Err(unfaithful(format!("{id} has {given} bytes of payload, held as {found} bytes{at}")));
        }
        match &held.headers {
            Some(headers) if *headers != record.headers => {
                Err(unfaithful(format!("{id} has headers {:?}, held as {headers:?}", record.headers)))
            }
            headers => Ok((id, headers.is_some())),
        }
    }
}

fn covers(coverage: &Coverage, id: RecordId) -> bool {
    coverage.find(id.sequence).is_some_and(|span| span.knows(id.published))
}

/// Some of the records, and how many more there are.
pub(super) fn list(ids: &[RecordId]) -> String {
    let named: Vec<String> = ids.iter().take(NAMED).map(ToString::to_string).collect();
    format!("{}{}", named.join(", "), more(ids.len()))
}

fn more(count: usize) -> String {
    let more = count.saturating_sub(NAMED);
    if more == 0 { String::new() } else { format!(" and {more} more") }
}
