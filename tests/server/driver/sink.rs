//! A sink in memory that can fail, refuse, hold back and be held up, and a gate to hold it up with.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use replay_guard::{Durable, Flush, Reason, Record, RecordId, Sink, Source, Written};
use tokio::sync::watch;

/// What went wrong, on purpose.
#[derive(Debug)]
pub(super) struct Broken(pub(super) &'static str);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}

/// A place where a sink waits while it is closed.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    open: watch::Sender<bool>,
    waiting: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self { open: watch::Sender::new(true), waiting: watch::Sender::new(false) }
    }

    pub(super) fn close(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until somebody waits there.
    pub(super) async fn reached(&self) {
        let mut waiting = self.waiting.subscribe();
        let reached = waiting.wait_for(|waiting| *waiting);
        tokio::time::timeout(super::rig::DEADLINE, reached).await.expect("nobody came to the gate").unwrap();
    }

    pub(super) async fn pass(&self) {
        if !*self.open.borrow() {
            self.waiting.send_replace(true);
            self.open.subscribe().wait_for(|open| *open).await.unwrap();
            self.waiting.send_replace(false);
        }
    }
}

/// What the sink does beside storing.
#[derive(Default)]
pub(super) struct Plan {
    /// The write with this number, counted from 1 over all sinks of the archive, fails.
    pub(super) fail_write: Option<u64>,
    pub(super) fail_flush: Option<u64>,
    /// Every flush fails.
    pub(super) down: bool,
    /// These payloads can never be stored.
    pub(super) reject: Vec<String>,
    /// So many of the newest records are kept back by a flush that is due.
    pub(super) keep_back: usize,
    /// How long it takes over each record.
    pub(super) write_takes: Duration,
    /// Full after so many records since the last flush.
    pub(super) full_after: Option<usize>,
    /// It says which records are durable, when it is asked after a fork.
    pub(super) tells: bool,
}

#[derive(Default)]
struct Inner {
    plan: Plan,
    writes: u64,
    flushes: u64,
    sinks: u64,
    written: Vec<Record>,
    durable: Vec<Record>,
}

/// What was archived, over all sinks; a test looks at it while drivers run.
#[derive(Clone)]
pub(super) struct Archive {
    inner: Arc<Mutex<Inner>>,
    pub(super) writing: Gate,
    pub(super) flushing: Gate,
}

impl Archive {
    pub(super) fn new() -> Self {
        Self { inner: Arc::default(), writing: Gate::new(), flushing: Gate::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// A new sink. What an earlier one took and did not make durable is lost with it.
    pub(super) fn sink(&self) -> MemorySink {
        self.lock().sinks += 1;
        MemorySink { archive: self.clone(), held: Vec::new() }
    }

    pub(super) fn sinks(&self) -> u64 {
        self.lock().sinks
    }

    pub(super) fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.lock().plan);
    }

    /// How many records were handed to a sink.
    pub(super) fn written(&self) -> usize {
        self.lock().written.len()
    }

    pub(super) fn flushes(&self) -> u64 {
        self.lock().flushes
    }

    pub(super) fn durable(&self) -> Vec<Record> {
        self.lock().durable.clone()
    }

    pub(super) fn count(&self) -> usize {
        self.lock().durable.len()
    }

    /// How often each record is durable.
    pub(super) fn copies(&self) -> HashMap<(RecordId, Vec<u8>), usize> {
        let mut copies = HashMap::new();
        for record in &self.lock().durable {
            *copies.entry((record.id(), record.payload.to_vec())).or_default() += 1;
        }
        copies
    }
}

/// One sink of an archive.
pub(super) struct MemorySink {
    archive: Archive,
    held: Vec<Record>,
}

impl Sink for MemorySink {
    type Error = Broken;

    async fn write(&mut self, record: Record) -> Result<Written, Self::Error> {
        self.archive.writing.pass().await;
        let takes = self.archive.lock().plan.write_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        let mut inner = self.archive.lock();
        inner.writes += 1;
        if inner.plan.fail_write == Some(inner.writes) {
            return Err(Broken("the write failed"));
        }
        if inner.plan.reject.iter().any(|payload| payload.as_bytes() == record.payload) {
            return Ok(Written::Rejected("it can never be stored".to_owned()));
        }
        inner.written.push(record.clone());
        self.held.push(record);
        let full = inner.plan.full_after.is_some_and(|full| self.held.len() >= full);
        Ok(if full { Written::Full } else { Written::Accepted })
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, Self::Error> {
        self.archive.flushing.pass().await;
        let mut inner = self.archive.lock();
        inner.flushes += 1;
        if inner.plan.down || inner.plan.fail_flush == Some(inner.flushes) {
            return Err(Broken("the flush failed"));
        }
        let back = if flush.reason() == Reason::Due { inner.plan.keep_back.min(self.held.len()) } else { 0 };
        let kept = self.held.split_off(self.held.len() - back);
        let done = std::mem::replace(&mut self.held, kept);
        let ids = done.iter().map(Record::id).collect();
        inner.durable.extend(done);
        Ok(if back == 0 { Durable::All } else { Durable::Only(ids) })
    }

    async fn records_in(&mut self, _: &Source, sequences: RangeInclusive<u64>) -> Result<Vec<RecordId>, Self::Error> {
        let inner = self.archive.lock();
        let asked = inner.durable.iter().filter(|record| inner.plan.tells && sequences.contains(&record.sequence));
        Ok(asked.map(Record::id).collect())
    }
}
