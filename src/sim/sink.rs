//! A sink that loses with the process what it did not make durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use crate::dead_letter::{DeadLetter, Hook, shared};
use crate::{Claim, Coverage, Durable, Flush, Reason, Record, RecordId, Recovered, Sink, Source, Written};

use super::{Rng, Stutter, World};

#[derive(Clone, Debug)]
pub(crate) enum Partial {
    All,
    /// Only records of even sequence, whatever the reason of the flush says is due.
    Even,
    /// Any of them, sometimes all.
    Some(Rng),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recover {
    Unknown,
    AtLeast,
    Exactly(u64),
}

#[derive(Debug)]
pub(crate) struct Inside {
    /// What survives the process, in the order it was made durable.
    pub(crate) durable: Vec<Record>,
    /// What each flush kept: the claim and the records.
    pub(crate) files: Vec<(Claim, Vec<RecordId>)>,
    pub(crate) rejected: BTreeSet<RecordId>,
    pub(crate) hook: HookPlan,
    /// How often `write` was called.
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) fail_write: bool,
    pub(crate) fail_flush: bool,
    /// It cannot say which records it holds.
    pub(crate) fail_tell: bool,
    /// The next flush makes its records durable and never comes back.
    pub(crate) hang: bool,
    /// What is durable, by id: the payload of each time it was made so.
    index: BTreeMap<RecordId, Vec<Bytes>>,
    /// Subjects it can never store.
    pub(crate) rejects: BTreeSet<String>,
    /// Full whenever so many are in the buffer.
    pub(crate) full_at: Option<usize>,
    pub(crate) partial: Partial,
    pub(crate) recover: Recover,
    /// How often it was asked what it holds.
    pub(crate) asked: u64,
    /// Whether it says record by record what it holds; so many at a time.
    pub(crate) tells: Option<usize>,
    /// How often it was asked for that.
    pub(crate) told: u64,
    /// How often it is pending before it takes a record, and before it flushes.
    pub(crate) slow: (u32, u32),
}

/// The dead-letter hook, if there is one, and what it does.
#[derive(Debug, Default)]
pub(crate) struct HookPlan {
    pub(crate) there: bool,
    /// So many calls fail.
    pub(crate) fail: u32,
    /// The next call takes its record and never comes back.
    pub(crate) hang: bool,
    pub(crate) calls: u64,
    /// What it took, each time.
    pub(crate) taken: BTreeMap<RecordId, Vec<Bytes>>,
}

impl Inside {
    /// The ids of what is durable, through this sequence.
    pub(crate) fn through(&self, sequence: u64) -> impl Iterator<Item = &RecordId> {
        self.index.range(..=RecordId::new(sequence, i64::MAX)).rev().map(|(id, _)| id)
    }
}

/// What a sink leaves behind: the next one begins with it.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<Mutex<Inside>>);

impl Disk {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Inside {
            durable: Vec::new(),
            files: Vec::new(),
            rejected: BTreeSet::new(),
            hook: HookPlan::default(),
            writes: 0,
            flushes: 0,
            fail_write: false,
            fail_flush: false,
            fail_tell: false,
            hang: false,
            index: BTreeMap::new(),
            rejects: BTreeSet::new(),
            full_at: None,
            partial: Partial::All,
            recover: Recover::Unknown,
            asked: 0,
            tells: None,
            told: 0,
            slow: (0, 0),
        })))
    }

    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    /// What is durable, by sequence.
    pub(crate) fn sequences(&self) -> Vec<u64> {
        let mut sequences: Vec<u64> = self.inside().durable.iter().map(|record| record.sequence).collect();
        sequences.sort_unstable();
        sequences
    }

    pub(crate) fn holds(&self, record: &Record) -> bool {
        self.has(record.id(), &record.payload)
    }

    pub(crate) fn has(&self, id: RecordId, payload: &[u8]) -> bool {
        let inside = self.inside();
        let done = if inside.hook.there {
            inside.hook.taken.get(&id).is_some_and(|taken| taken.iter().any(|taken| taken == payload))
        } else {
            inside.rejected.contains(&id)
        };
        done || inside.index.get(&id).is_some_and(|held| held.iter().any(|held| held == payload))
    }

    /// Whether it was rejected, and the hook, if there is one, took it.
    pub(crate) fn is_buried(&self, id: RecordId) -> bool {
        let inside = self.inside();
        if inside.hook.there { inside.hook.taken.contains_key(&id) } else { inside.rejected.contains(&id) }
    }

    pub(crate) fn count(&self, id: RecordId) -> usize {
        self.inside().index.get(&id).map_or(0, Vec::len)
    }

    /// Records that were there before.
    pub(crate) fn keep(&self, records: impl IntoIterator<Item = Record>) {
        let mut inside = self.inside();
        for record in records {
            inside.index.entry(record.id()).or_default().push(record.payload.clone());
            inside.durable.push(record);
        }
    }

    /// What was made durable more than once, and how often.
    pub(crate) fn repeated(&self) -> Vec<(RecordId, usize)> {
        let inside = self.inside();
        if inside.index.len() == inside.durable.len() {
            return Vec::new();
        }
        inside.index.iter().filter(|(_, held)| held.len() > 1).map(|(id, held)| (*id, held.len())).collect()
    }

    /// The dead-letter hook, if there is one.
    pub(crate) fn hook(&self, world: &World) -> Option<Hook> {
        let (disk, world) = (self.clone(), world.clone());
        let there = self.inside().hook.there;
        there.then(|| {
            shared(move |letter: DeadLetter| {
                let (disk, world) = (disk.clone(), world.clone());
                async move {
                    world.stutter().await;
                    let hang = disk.bury(&letter)?;
                    if hang {
                        std::future::pending::<()>().await;
                    }
                    world.stutter().await;
                    Ok::<(), Broken>(())
                }
            })
        })
    }

    fn bury(&self, letter: &DeadLetter) -> Result<bool, Broken> {
        let mut inside = self.inside();
        assert!(inside.rejected.contains(&letter.record.id()), "{} was never rejected", letter.record.id());
        inside.hook.calls += 1;
        if let Some(left) = inside.hook.fail.checked_sub(1) {
            inside.hook.fail = left;
            return Err(Broken);
        }
        inside.hook.taken.entry(letter.record.id()).or_default().push(letter.record.payload.clone());
        Ok(std::mem::take(&mut inside.hook.hang))
    }

    /// A sink as a process that just started has it.
    pub(crate) fn sink(&self, world: &World) -> TestSink {
        TestSink { disk: self.clone(), world: world.clone(), buffer: Vec::new() }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the disk is broken")]
pub(crate) struct Broken;

#[derive(Debug)]
pub(crate) struct TestSink {
    disk: Disk,
    world: World,
    buffer: Vec<Record>,
}

impl TestSink {
    fn make_durable(&mut self, flush: &Flush<'_>) -> Result<Durable, Broken> {
        let mut inside = self.disk.inside();
        inside.flushes += 1;
        if inside.fail_flush {
            return Err(Broken);
        }
        let everything = flush.reason() == Reason::Everything;
        let keep = |record: &Record, partial: &mut Partial| match partial {
            Partial::All => true,
            Partial::Even => record.sequence.is_multiple_of(2),
            Partial::Some(rng) => everything || !rng.one_in(3),
        };
        let (now, later): (Vec<Record>, Vec<Record>) =
            std::mem::take(&mut self.buffer).into_iter().partition(|record| keep(record, &mut inside.partial));
        self.buffer = later;
        let ids: Vec<RecordId> = now.iter().map(Record::id).collect();
        let claim = if self.buffer.is_empty() { flush.claim() } else { flush.claim_for(&ids) };
        inside.files.push((claim, ids.clone()));
        for record in now {
            inside.index.entry(record.id()).or_default().push(record.payload.clone());
            inside.durable.push(record);
        }
        Ok(if self.buffer.is_empty() { Durable::All } else { Durable::Only(ids) })
    }
}

impl Sink for TestSink {
    type Error = Broken;

    async fn write(&mut self, record: Record) -> Result<Written, Broken> {
        self.world.stutter().await;
        let slow = self.disk.inside().slow.0;
        Stutter(slow).await;
        let written = {
            let mut inside = self.disk.inside();
            inside.writes += 1;
            if inside.fail_write {
                return Err(Broken);
            }
            if inside.rejects.contains(record.subject.as_str()) {
                inside.rejected.insert(record.id());
                Written::Rejected("never".into())
            } else {
                self.buffer.push(record);
                let full = inside.full_at.is_some_and(|at| self.buffer.len() >= at);
                if full { Written::Full } else { Written::Accepted }
            }
        };
        self.world.stutter().await;
        Ok(written)
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, Broken> {
        self.world.stutter().await;
        let slow = self.disk.inside().slow.1;
        Stutter(slow).await;
        let durable = self.make_durable(&flush)?;
        if std::mem::take(&mut self.disk.inside().hang) {
            std::future::pending::<()>().await;
        }
        self.world.stutter().await;
        Ok(durable)
    }

    async fn recover(&mut self, _: &Source) -> Result<Recovered, Broken> {
        self.world.stutter().await;
        let inside = self.disk.inside();
        let claims = inside.files.iter().map(|(claim, _)| claim.clone()).collect();
        Ok(match inside.recover {
            Recover::Unknown => Recovered::Unknown,
            Recover::AtLeast => Recovered::AtLeast(claims),
            Recover::Exactly(from) => Recovered::Exactly { from, claims },
        })
    }

    /// Every second time, at least, it leaves out what the checkpoint has.
    async fn recover_beyond(&mut self, source: &Source, checkpoint: &Coverage) -> Result<Recovered, Broken> {
        let known = {
            let mut inside = self.disk.inside();
            inside.asked += 1;
            let leaves_out = inside.recover == Recover::AtLeast && inside.asked % 2 == 1;
            let known = |ids: &[RecordId]| {
                ids.iter().min().zip(ids.iter().max()).is_some_and(|(first, last)| checkpoint.holds(*first, *last))
            };
            let named = inside.files.iter().filter(|(_, ids)| !known(ids)).map(|(claim, _)| claim.clone()).collect();
            leaves_out.then_some(Recovered::AtLeast(named))
        };
        match known {
            Some(recovered) => {
                self.world.stutter().await;
                Ok(recovered)
            }
            None => self.recover(source).await,
        }
    }

    /// Names no more sequences than it was told to, evenly spread.
    async fn records_in(&mut self, _: &Source, sequences: RangeInclusive<u64>) -> Result<Vec<RecordId>, Broken> {
        self.world.stutter().await;
        let mut inside = self.disk.inside();
        inside.told += 1;
        if inside.fail_tell {
            return Err(Broken);
        }
        let Some(limit) = inside.tells else { return Ok(Vec::new()) };
        let held: Vec<RecordId> = inside.index.keys().copied().filter(|id| sequences.contains(&id.sequence)).collect();
        let mut named: Vec<&[RecordId]> = held.chunk_by(|a, b| a.sequence == b.sequence).collect();
        let each = named.len().div_ceil(limit.max(1)).max(1);
        named = named.into_iter().step_by(each).collect();
        Ok(named.concat())
    }
}
