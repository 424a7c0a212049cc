//! A stream, an archive and a state directory, and drivers between them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{Config, Info, PullConsumer, pull};
use async_nats::jetstream::stream::{self, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt as _;
use replay_guard::{Driver, DriverBuilder, DriverError, Ended, OpenError, RecordId, Status, StoreError};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, unconstrained};

use super::events::{self, Event};
use super::sink::{Archive, MemorySink};
use crate::nats::Server;

/// How long anything may take on a busy machine.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);
/// How long the producers and the tests wait for an answer.
const ANSWER: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// The consumer of every driver that is not told otherwise.
pub(super) const CONSUMER: &str = "archiver";

/// Looks until it is so.
pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !so().await {
        assert!(Instant::now() < deadline, "still not so: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// How long the process stood still at most, looked at again and again: one that did could keep no delivery alive.
#[derive(Debug)]
pub(super) struct Still {
    looked: Instant,
    most: Duration,
}

impl Still {
    pub(super) fn new() -> Self {
        Self { looked: Instant::now(), most: Duration::ZERO }
    }

    pub(super) fn look(&mut self) {
        self.most = self.most.max(self.looked.elapsed());
        self.looked = Instant::now();
    }

    /// Waits until it is so. What is asked of the server there shows how long that one stood still.
    pub(super) async fn until(&mut self, what: &str, mut so: impl AsyncFnMut() -> bool) {
        until(what, async || {
            self.look();
            so().await
        })
        .await;
        self.look();
    }

    pub(super) fn longer_than(&self, milliseconds: u64) -> bool {
        self.most > Duration::from_millis(milliseconds)
    }
}

/// A consumer whose deliveries come again so late that no busy machine makes them.
pub(super) fn patient(builder: DriverBuilder) -> DriverBuilder {
    builder.consumer_config(Config { ack_wait: DEADLINE, max_ack_pending: 1_000, ..Default::default() })
}

/// A driver that runs.
pub(super) struct Running {
    task: JoinHandle<Result<Ended, DriverError>>,
    stop: oneshot::Sender<()>,
    pub(super) status: watch::Receiver<Status>,
}

impl Running {
    pub(super) fn now(&self) -> Status {
        *self.status.borrow()
    }

    /// The wish to stop, and the end.
    pub(super) async fn stop(self) -> Result<Ended, DriverError> {
        let _ = self.stop.send(());
        tokio::time::timeout(DEADLINE, self.task).await.expect("the driver did not stop").unwrap()
    }

    /// The end that comes by itself.
    pub(super) async fn end(self) -> DriverError {
        let ended = tokio::time::timeout(DEADLINE, self.task).await.expect("the driver did not end").unwrap();
        ended.expect_err("the driver ended without being told")
    }

    /// As a kill of the process does: nothing is flushed.
    pub(super) async fn abort(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

/// Runs a driver that is open.
pub(super) fn spawn<S: replay_guard::Sink + 'static>(driver: Driver<S>) -> Running {
    let status = driver.status();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(driver.run_until(async {
        let _ = stopped.await;
    }));
    Running { task, stop, status }
}

/// What one test works with.
pub(super) struct Rig {
    pub(super) server: Server,
    /// The producers' and the tests' own connection.
    pub(super) context: Context,
    pub(super) stream: String,
    pub(super) archive: Archive,
    state: tempfile::TempDir,
    /// Every payload that was ever published, in order.
    pub(super) payloads: Vec<String>,
}

impl Rig {
    /// A stream over `<name>.>`, a new name each time.
    pub(super) async fn new(server: Server) -> Self {
        Self::with(server, |config| config).await
    }

    pub(super) async fn retaining(server: Server, retention: RetentionPolicy) -> Self {
        Self::with(server, |config| stream::Config { retention, ..config }).await
    }

    pub(super) async fn with(server: Server, config: impl FnOnce(stream::Config) -> stream::Config) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        events::keep();
        let name = format!("S{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let mut context = jetstream::new(server.client().await.unwrap());
        context.set_timeout(ANSWER);
        let subjects = vec![format!("{name}.>")];
        let made = context.create_stream(config(stream::Config { name: name.clone(), subjects, ..Default::default() }));
        made.await.unwrap();
        let state = tempfile::tempdir().unwrap();
        Self { server, context, stream: name, archive: Archive::new(), state, payloads: Vec::new() }
    }

    pub(super) fn state_dir(&self) -> PathBuf {
        self.state.path().to_owned()
    }

    /// The checkpoint files.
    pub(super) fn checkpoints(&self) -> Vec<PathBuf> {
        let directories = std::fs::read_dir(self.state.path()).unwrap();
        let files = directories.flat_map(|directory| std::fs::read_dir(directory.unwrap().path()).unwrap());
        let paths = files.map(|file| file.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|kind| kind == "ckpt")).collect()
    }

    /// The checkpoint file of the only source.
    pub(super) fn checkpoint(&self) -> PathBuf {
        self.checkpoints().remove(0)
    }

    pub(super) fn subject(&self, end: &str) -> String {
        format!("{}.{end}", self.stream)
    }

    /// Publishes messages with payloads of their own, and waits for the server's word for each. Gives the last sequence.
    pub(super) async fn publish(&mut self, count: u64) -> u64 {
        self.publish_to(&["a"], count).await
    }

    /// The same, to these subjects in turn.
    pub(super) async fn publish_to(&mut self, ends: &[&str], count: u64) -> u64 {
        let subjects: Vec<String> = ends.iter().map(|end| self.subject(end)).collect();
        let mut last = 0;
        let mut left = count;
        let mut turn = subjects.iter().cycle();
        while left > 0 {
            let mut acks = Vec::new();
            for _ in 0..left.min(100) {
                let payload = format!("{}-{}", self.stream, self.payloads.len());
                let subject = turn.next().unwrap().clone();
                self.payloads.push(payload.clone());
                acks.push(self.context.publish(subject, payload.into()).await.unwrap());
            }
            left -= acks.len() as u64;
            for ack in acks {
                last = ack.await.unwrap().sequence;
            }
        }
        last
    }

    /// A builder that flushes every 100 records or 200 ms and reads what is archived, on a connection of its own. An ack that is lost on purpose
    /// makes its message come again soon.
    pub(super) async fn builder(&self) -> DriverBuilder {
        self.builder_of(&self.stream).await
    }

    /// The same for another stream.
    pub(super) async fn builder_of(&self, stream: &str) -> DriverBuilder {
        self.builder_on(jetstream::new(self.server.client().await.unwrap()), stream)
    }

    /// The same on a connection that is there.
    pub(super) fn builder_on(&self, context: Context, stream: &str) -> DriverBuilder {
        Driver::builder(context, stream)
            .consumer(CONSUMER)
            .consumer_config(Config { ack_wait: Duration::from_secs(3), max_ack_pending: 1_000, ..Default::default() })
            .state_dir(self.state_dir())
            .flush_every(100, Duration::from_millis(200))
            .fast_forward(false)
    }

    pub(super) async fn open(&self) -> Result<Driver<MemorySink>, DriverError> {
        self.open_unless(|builder| builder, DriverError::is_setting).await
    }

    /// Opens again what a slow answer ended.
    async fn open_unless(
        &self,
        change: impl Fn(DriverBuilder) -> DriverBuilder + Send + Sync,
        wrong: impl Fn(&DriverError) -> bool + Send + Sync,
    ) -> Result<Driver<MemorySink>, DriverError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let opening = Box::pin(change(self.builder().await).open(self.archive.sink()));
            match opening.await {
                Err(error) if !wrong(&error) && Instant::now() < deadline => tokio::time::sleep(POLL).await,
                done => return done,
            }
        }
    }

    pub(super) async fn start(&self) -> Running {
        self.start_with(|builder| builder).await
    }

    /// A driver with other settings.
    pub(super) async fn start_with(&self, change: impl Fn(DriverBuilder) -> DriverBuilder + Send + Sync) -> Running {
        spawn(self.open_unless(change, DriverError::is_setting).await.unwrap())
    }

    /// A driver after one that was aborted: a save of that one may still go on, and keeps the lock.
    pub(super) async fn start_after_abort(&self) -> Running {
        let is_locked = |error: &_| matches!(error, DriverError::Open(OpenError::Store(StoreError::Locked { .. })));
        let wrong = |error: &DriverError| error.is_setting() && !is_locked(error);
        spawn(self.open_unless(|builder| builder, wrong).await.unwrap())
    }

    /// Runs a driver until a session has begun, and stops it.
    pub(super) async fn look_once(&self) -> Ended {
        let running = self.start().await;
        until("a session", async || running.now().sessions > 0).await;
        running.stop().await.unwrap()
    }

    /// Runs a driver until so many records are durable, and stops it.
    pub(super) async fn archive_to(&self, count: usize) -> Ended {
        let running = self.start().await;
        self.durable(count).await;
        running.stop().await.unwrap()
    }

    /// Waits for so many, as long as they become more.
    pub(super) async fn durable(&self, count: usize) {
        let mut durable = 0;
        while durable < count {
            until(&format!("{count} durable, {durable} are"), async || self.archive.count() > durable).await;
            durable = self.archive.count();
        }
    }

    /// Waits until the consumer delivered all and everything is acked.
    pub(super) async fn acked(&self) {
        self.acked_of(CONSUMER).await;
    }

    pub(super) async fn acked_of(&self, consumer: &str) {
        self.acked_but(consumer, 0).await;
    }

    /// Waits until all is delivered and so many wait for an ack, as long as it becomes less.
    pub(super) async fn acked_but(&self, consumer: &str, waiting: usize) {
        let mut least = u64::MAX;
        loop {
            let mut done = false;
            until("all is acked", async || {
                let Ok(info) = self.try_info(consumer).await else { return false };
                done = info.num_ack_pending == waiting && info.num_pending == 0;
                let left = info.num_pending + info.num_ack_pending as u64;
                let less = left < least;
                least = least.min(left);
                done || less
            })
            .await;
            if done {
                return;
            }
        }
    }

    async fn try_info(&self, consumer: &str) -> Result<Info, Box<dyn std::error::Error>> {
        let stream = self.context.get_stream(&self.stream).await?;
        Ok(stream.consumer_info(consumer).await?)
    }

    pub(super) async fn info(&self) -> Info {
        self.try_info(CONSUMER).await.unwrap()
    }

    pub(super) async fn stream_state(&self) -> jetstream::stream::State {
        self.context.get_stream(&self.stream).await.unwrap().cached_info().state.clone()
    }

    pub(super) async fn make_consumer(&self, config: pull::Config) -> PullConsumer {
        let config = pull::Config { durable_name: Some(CONSUMER.to_owned()), ..config };
        self.context.get_stream(&self.stream).await.unwrap().create_consumer(config).await.unwrap()
    }

    /// Every message that the stream holds: id and payload.
    pub(super) async fn stream_holds(&self) -> Vec<(RecordId, Vec<u8>)> {
        let stream = self.context.get_stream(&self.stream).await.unwrap();
        let mut left = stream.cached_info().state.messages;
        // On a busy machine heartbeats come late: this one begins anew where it stood.
        let mut messages =
            stream.create_consumer(pull::OrderedConfig::default()).await.unwrap().messages().await.unwrap();
        let mut held = Vec::new();
        while left > 0 {
            let message = tokio::time::timeout(DEADLINE, messages.next()).await.expect("a message").unwrap().unwrap();
            let reply = message.reply.as_ref().unwrap();
            let tokens: Vec<&str> = reply.split('.').collect();
            let id = RecordId::new(tokens[5].parse().unwrap(), tokens[7].parse().unwrap());
            held.push((id, message.payload.to_vec()));
            left -= 1;
        }
        held
    }

    /// Each message that was ever published is durable exactly once, and nothing else is.
    pub(super) fn assert_published_once(&self) {
        let mut copies: HashMap<String, usize> = HashMap::new();
        for record in self.archive.durable() {
            *copies.entry(String::from_utf8(record.payload.to_vec()).unwrap()).or_default() += 1;
        }
        let missing: Vec<&String> = self.payloads.iter().filter(|payload| !copies.contains_key(*payload)).collect();
        assert!(missing.is_empty(), "{} missing: {:?}", missing.len(), &missing[..missing.len().min(5)]);
        let twice: Vec<&String> = copies.iter().filter(|(_, count)| **count > 1).map(|(payload, _)| payload).collect();
        assert!(twice.is_empty(), "{} twice: {:?}", twice.len(), &twice[..twice.len().min(5)]);
        assert_eq!(copies.len(), self.payloads.len());
    }

    /// Each message that the stream holds is durable exactly once: this sequence, publish time and payload.
    pub(super) async fn assert_stream_once(&self) {
        let copies = self.archive.copies();
        for message in self.stream_holds().await {
            assert_eq!(copies.get(&message), Some(&1), "{} ({})", message.0, String::from_utf8_lossy(&message.1));
        }
    }

    /// Both, for a stream that keeps what is acked.
    pub(super) async fn assert_all_once(&self) {
        self.assert_published_once();
        self.assert_stream_once().await;
    }

    /// The events of one name, in the order they came.
    pub(super) fn events(&self, name: &str) -> Vec<Event> {
        let name = format!("replay_guard.{name}");
        events::of(&self.stream).into_iter().filter(|event| event.name == name).collect()
    }

    pub(super) async fn event(&self, name: &str) -> Event {
        until(&format!("the event {name}"), async || !self.events(name).is_empty()).await;
        self.events(name).remove(0)
    }

    /// Power is cut and comes back: the server gets no chance to write anything; `damage` happens meanwhile.
    pub(super) async fn cut(&mut self, damage: impl FnOnce(&Server, &str)) {
        self.server.kill().unwrap();
        damage(&self.server, &self.stream);
        self.server.restart().await.unwrap();
        self.back().await;
    }

    /// Waits until our own connection is up and the stream answers.
    pub(super) async fn back(&self) {
        until("the stream answers", async || self.context.get_stream(&self.stream).await.is_ok()).await;
    }

    /// Waits until the server has written down what the consumer's info says now.
    pub(super) async fn consumer_written(&self) {
        self.consumer_written_of(CONSUMER).await;
    }

    pub(super) async fn consumer_written_of(&self, consumer: &str) {
        let directory = self.server.consumer_directory(&self.stream, consumer);
        until("the consumer's state is on disk", async || {
            // Asked each time: acks may still be on their way.
            let Ok(info) = self.try_info(consumer).await else { return false };
            let Ok(state) = std::fs::read(directory.join("o.dat")) else { return false };
            positions_in(&state) == Some((info.ack_floor.stream_sequence, info.delivered.stream_sequence))
        })
        .await;
    }
}

/// The stream sequences of ack floor and last delivery in a consumer's state file: after magic and version come variable
/// integers, of which they are the second and the fourth.
fn positions_in(state: &[u8]) -> Option<(u64, u64)> {
    let mut numbers = Vec::new();
    let (mut number, mut shift) = (0, 0);
    for byte in state.get(2..)? {
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            numbers.push(number);
            (number, shift) = (0, 0);
            if let [_, floor, _, delivered] = numbers[..] {
                return Some((floor, delivered));
            }
        }
    }
    None
}

/// Every ack that reached the server, as an ordinary subscriber sees it: id and word.
pub(super) struct AckTap {
    client: async_nats::Client,
    subscriber: async_nats::Subscriber,
}

impl AckTap {
    pub(super) async fn new(rig: &Rig) -> Self {
        let client = rig.server.client().await.unwrap();
        let subscriber = client.subscribe(format!("$JS.ACK.{}.>", rig.stream)).await.unwrap();
        client.flush().await.unwrap();
        Self { client, subscriber }
    }

    /// The acks that came since this was asked last.
    pub(super) async fn take(&mut self) -> Vec<(RecordId, String)> {
        use futures_util::FutureExt as _;
        // What the server sent before it answers this has come.
        until("an answer", async || jetstream::new(self.client.clone()).query_account().await.is_ok()).await;
        let mut acks = Vec::new();
        // Within its budget tokio would give no more than some hundred.
        while let Some(Some(message)) = unconstrained(self.subscriber.next()).now_or_never() {
            let tokens: Vec<&str> = message.subject.split('.').collect();
            let id = RecordId::new(tokens[5].parse().unwrap(), tokens[7].parse().unwrap());
            acks.push((id, String::from_utf8(message.payload.to_vec()).unwrap()));
        }
        acks
    }
}
