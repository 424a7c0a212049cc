//! Accidents in random order on a real server, then rest, then the books are checked.
//!
//! `REPLAY_GUARD_CHAOS` says how many lives instead of the few fixed ones, `REPLAY_GUARD_CHAOS_SEED` the first seed. A life
//! that fails prints its seed and what happened in it.

mod accident;
#[path = "../../../src/rng.rs"]
mod rng;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, Config};
use async_nats::jetstream::stream::{self, RetentionPolicy};
use replay_guard::{Driver, DriverBuilder};

use self::rng::Rng;
use super::rig::{CONSUMER, Rig, Running, spawn};
use crate::nats::{Server, VERSIONS, versions};

const NAMES: [&str; 3] = [CONSUMER, "archiver-rg", "archiver-rg2"];

impl Rng {
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

/// A store that can be put back, and what was published by then.
struct Snapshot {
    path: PathBuf,
    published: usize,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Life {
    rng: Rng,
    rig: Rig,
    retention: RetentionPolicy,
    ack_all: bool,
    per_subject: i64,
    filtered: bool,
    flush: (u64, Duration),
    fast_forward: bool,
    client: async_nats::Client,
    running: Option<Running>,
    snapshot: Option<Snapshot>,
    old_state: Option<Vec<u8>>,
    /// A consumer may stand beyond the end of an interest stream: the server takes what comes there for acked.
    ahead: bool,
    /// Payloads that the server may have dropped unseen.
    excused: HashSet<String>,
    /// How many records may be there twice.
    allowed: usize,
    history: Vec<String>,
}

impl Life {
    async fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let version = rng.of(&versions(&VERSIONS));
        let retention = rng.of(&[
            RetentionPolicy::Limits,
            RetentionPolicy::Limits,
            RetentionPolicy::WorkQueue,
            RetentionPolicy::Interest,
        ]);
        let limits = retention == RetentionPolicy::Limits;
        let ack_all = limits && rng.one_in(3);
        let per_subject = if limits && rng.one_in(4) { 20 } else { -1 };
        let filtered = limits && rng.one_in(3);
        let flush = (rng.of(&[1, 7, 30, 100]), Duration::from_millis(rng.of(&[0, 50, 200])));
        let fast_forward = rng.one_in(2);
        let server = Server::start(version).await.unwrap();
        let rig =
            Rig::with(server, |config| stream::Config { retention, max_messages_per_subject: per_subject, ..config })
                .await;
        let keep_back = if rng.one_in(4) { 5 } else { 0 };
        let full = rng.one_in(4).then_some(4);
        rig.archive.plan(|plan| (plan.keep_back, plan.full_after) = (keep_back, full));
        let client = rig.server.client().await.unwrap();
        let history = vec![format!(
            "seed {seed} {version} {retention:?} ack all {ack_all} per subject {per_subject} filtered {filtered} flush {flush:?} forward {fast_forward} keep back {keep_back} full {full:?}"
        )];
        Self {
            rng,
            rig,
            retention,
            ack_all,
            per_subject,
            filtered,
            flush,
            fast_forward,
            client,
            running: None,
            snapshot: None,
            old_state: None,
            ahead: false,
            excused: HashSet::new(),
            allowed: 0,
            history,
        }
    }

    fn note(&mut self, what: impl std::fmt::Display) {
        let floor = self.running.as_ref().map_or(0, |running| running.now().floor);
        self.history.push(format!(
            "{what} | archived {} published {} floor {floor}",
            self.rig.archive.count(),
            self.rig.payloads.len()
        ));
    }

    fn builder(&self) -> DriverBuilder {
        let ack_policy = if self.ack_all { AckPolicy::All } else { AckPolicy::Explicit };
        let config =
            Config { ack_wait: Duration::from_secs(2), max_ack_pending: 300, ack_policy, ..Default::default() };
        let builder = Driver::builder(jetstream::new(self.client.clone()), self.rig.stream.as_str())
            .consumer(CONSUMER)
            .consumer_config(config)
            .state_dir(self.rig.state_dir())
            .flush_every(self.flush.0, self.flush.1)
            .fast_forward(self.fast_forward);
        if self.filtered { builder.filter(self.rig.subject("a")).filter(self.rig.subject("b.*")) } else { builder }
    }

    async fn start(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let archive = self.rig.archive.clone();
            let factory = move || {
                let sink = archive.sink();
                async { Ok::<_, super::sink::Broken>(sink) }
            };
            match self.builder().open_with(factory).await {
                Ok(driver) => {
                    self.running = Some(spawn(driver));
                    return;
                }
                Err(error) => {
                    self.note(format!("open: {error}"));
                    // One that was killed within this process may still be writing.
                    assert!(
                        !error.is_setting() || error.to_string().contains("is in use"),
                        "an opening was refused: {error}"
                    );
                    assert!(Instant::now() < deadline, "no opening: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            // A sink that never ends a flush is not the driver's fault.
            self.rig.archive.flushing.open();
            match running.stop().await {
                Ok(ended) => self.allowed += ended.unverified,
                Err(error) => panic!("the driver ended: {error:?}"),
            }
        }
    }

    /// What the sink holds or made durable without a checkpoint may come again.
    fn abort_costs(&self) -> usize {
        300.max(usize::try_from(self.flush.0).unwrap())
    }

    async fn publish(&mut self) {
        let count = 1 + self.rng.below(120);
        let ends: &[&str] = if self.filtered { &["a", "b.1", "other", "b.2"] } else { &["a", "b.1", "b.2"] };
        let from = self.rig.payloads.len();
        let before = self.is_interested().await;
        self.rig.publish_to(ends, count).await;
        if !before || self.ahead || !self.is_interested().await {
            let dropped = self.rig.payloads[from..].to_vec();
            self.excused.extend(dropped);
        }
    }

    /// Waits until all seems archived, or not.
    async fn archived_a_while(&mut self) {
        let deadline = Instant::now() + Duration::from_millis(1_500);
        while Instant::now() < deadline {
            let state = self.rig.stream_state().await;
            if self.running.as_ref().is_some_and(|running| running.now().floor >= state.last_sequence) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether the server keeps what is published now.
    async fn is_interested(&self) -> bool {
        if self.retention != RetentionPolicy::Interest {
            return true;
        }
        let stream = self.rig.context.get_stream(&self.rig.stream).await.unwrap();
        for name in NAMES {
            if stream.consumer_info(name).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// A consumer that has a state file.
    fn with_state(&self) -> Option<&'static str> {
        NAMES.into_iter().find(|name| self.rig.server.consumer_directory(&self.rig.stream, name).join("o.dat").exists())
    }

    fn excuse_all(&mut self) {
        let all: Vec<String> = self.rig.payloads.clone();
        self.excused.extend(all);
    }

    async fn live(&mut self) {
        Box::pin(self.start()).await;
        for _ in 0..10 + self.rng.below(25) {
            if self.rng.one_in(3) {
                self.publish().await;
                if self.rng.one_in(2) {
                    self.archived_a_while().await;
                }
            } else {
                Box::pin(self.accident()).await;
            }
            if self.running.as_ref().is_some_and(Running::is_over) {
                let error = self.running.take().unwrap().end().await;
                panic!("the driver ended by itself: {error:?}");
            }
        }
        self.rig.archive.flushing.open();
        self.rig.archive.plan(|plan| plan.keep_back = 0);
        self.note("--- rest");
        self.publish().await;
        for _ in 0..2 {
            self.stop().await;
            Box::pin(self.start()).await;
            self.settle().await;
        }
        self.stop().await;
        self.check();
    }

    fn ours(&self, subject: &str) -> bool {
        !self.filtered || subject.split('.').nth(1) != Some("other")
    }

    async fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let missing = self.missing().await;
            // A message of an interest stream stays where the consumer that was to ack it was lost.
            let removed = self.retention == RetentionPolicy::WorkQueue;
            let left = self.rig.stream_state().await.messages;
            if missing.is_empty() && (!removed || left == 0) {
                return;
            }
            if self.running.as_ref().is_some_and(Running::is_over) {
                let error = self.running.take().unwrap().end().await;
                panic!("the driver ended by itself: {error:?}");
            }
            assert!(
                Instant::now() < deadline,
                "never archived: {} {:?}; {left} left",
                missing.len(),
                &missing[..missing.len().min(5)]
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What the stream holds and the archive does not.
    async fn missing(&mut self) -> Vec<String> {
        let held = self.rig.archive.durable();
        let held: HashSet<(u64, Vec<u8>)> =
            held.iter().map(|record| (record.sequence, record.payload.to_vec())).collect();
        let stream = self.rig.context.get_stream(&self.rig.stream).await.unwrap();
        let state = stream.cached_info().state.clone();
        let mut missing = Vec::new();
        for sequence in state.first_sequence.max(1)..=state.last_sequence {
            if let Ok(raw) = stream.get_raw_message(sequence).await
                && self.ours(&raw.subject)
                && !held.contains(&(sequence, raw.payload.to_vec()))
            {
                missing.push(format!("{sequence} {}", String::from_utf8_lossy(&raw.payload)));
            }
        }
        missing
    }

    fn check(&self) {
        let mut copies: HashMap<String, usize> = HashMap::new();
        for record in self.rig.archive.durable() {
            *copies.entry(String::from_utf8(record.payload.to_vec()).unwrap()).or_default() += 1;
        }
        if !self.filtered && self.per_subject < 0 {
            let missing: Vec<&String> = self
                .rig
                .payloads
                .iter()
                .filter(|payload| !copies.contains_key(*payload) && !self.excused.contains(*payload))
                .collect();
            assert!(missing.is_empty(), "{} lost: {:?}", missing.len(), &missing[..missing.len().min(5)]);
        }
        let twice: usize = copies.values().map(|count| count - 1).sum();
        assert!(twice <= self.allowed, "{twice} twice, {} allowed", self.allowed);
    }
}

async fn live(seed: u64) -> Result<(), String> {
    let mut life = Life::new(seed).await;
    let outcome = {
        use futures_util::FutureExt as _;
        let lived = tokio::time::timeout(Duration::from_secs(900), Box::pin(life.live()));
        std::panic::AssertUnwindSafe(lived).catch_unwind().await
    };
    let why = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(_)) => "it takes for ever".to_owned(),
        Err(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
            .unwrap_or_default(),
    };
    let events: Vec<String> = super::events::of(&life.rig.stream)
        .iter()
        .rev()
        .take(60)
        .rev()
        .map(|event| format!("{} {:?}", event.name, event.fields))
        .collect();
    Err(format!("seed {seed}: {why}\n{}\n{}", life.history.join("\n"), events.join("\n")))
}

#[test]
fn accidents_in_any_order() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (lives, first) = (number("REPLAY_GUARD_CHAOS").unwrap_or(4), number("REPLAY_GUARD_CHAOS_SEED").unwrap_or(1));
    let (next, failed) = (std::sync::atomic::AtomicU64::new(first), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= first + lives {
                        return;
                    }
                    if let Err(why) = runtime.block_on(live(seed)) {
                        eprintln!("{why}\n");
                        failed.lock().unwrap().push(why.lines().next().unwrap_or_default().to_owned());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {lives} lives failed: {failed:#?}", failed.len());
}
