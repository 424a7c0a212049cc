//! Orders of events that once broke a driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::RetentionPolicy;
use futures_util::future::BoxFuture;
use replay_guard::Guard;
use replay_guard::jetstream::StreamObserver;
use replay_guard::{
    CheckpointStore, Driver, DriverError, Durable, FileStore, Flush, GuardError, Reason, Record, Sink, Source,
    StoreError, Stored, Written,
};

use super::rig::{CONSUMER, Rig, spawn, until};
use super::sink::{Archive, Broken, Gate};
use crate::nats::{Server, V2_15};
use crate::on_versions;

const OTHER: &str = "archiver-rg";

/// Keeps everything back but when all must be durable, and counts how often it is asked.
struct Miser {
    archive: Archive,
    held: Vec<Record>,
    flushes: Arc<AtomicU64>,
}

impl Sink for Miser {
    type Error = Broken;

    async fn write(&mut self, record: Record) -> Result<Written, Self::Error> {
        self.held.push(record);
        Ok(Written::Full)
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, Self::Error> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if flush.reason() == Reason::Due {
            return Ok(Durable::Only(Vec::new()));
        }
        let mut sink = self.archive.sink();
        for record in self.held.drain(..) {
            let _ = sink.write(record).await?;
        }
        sink.flush(flush).await
    }
}

on_versions! {
    async fn a_sink_that_keeps_all_back_is_not_asked_in_a_tight_loop(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { max_ack_pending: 20, ..Default::default() }).await;
        let flushes = Arc::<AtomicU64>::default();
        let sink = Miser { archive: rig.archive.clone(), held: Vec::new(), flushes: Arc::clone(&flushes) };
        let running = spawn(rig.builder().await.flush_every(1, Duration::ZERO).open(sink).await.unwrap());
        rig.publish(40).await;
        // Only a full window makes it let go, so records must be taken beside those that it keeps.
        rig.durable(40).await;
        rig.acked().await;
        let asked = flushes.load(Ordering::Relaxed);
        assert!(asked < 200, "asked {asked} times for 40 records");
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }

    async fn a_connection_that_never_lasts_as_long_as_a_flush_may_wait(server: Server) {
        let mut rig = Rig::new(server).await;
        let client = rig.server.client().await.unwrap();
        let builder = Driver::builder(jetstream::new(client.clone()), rig.stream.as_str())
            .consumer(CONSUMER)
            .state_dir(rig.state_dir())
            .flush_every(1_000, Duration::from_secs(5));
        let running = spawn(builder.open(rig.archive.sink()).await.unwrap());
        rig.publish(50).await;
        until("all is written", async || rig.archive.written() == 50).await;
        let breaker = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(1_500));
            loop {
                ticks.tick().await;
                let _ = client.force_reconnect().await;
            }
        });
        until("it is flushed while the connection comes and goes", async || rig.archive.count() == 50).await;
        breaker.abort();
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }

    async fn a_stop_while_a_new_sink_is_being_made(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.archive.plan(|plan| plan.fail_flush = Some(1));
        let (archive, gate) = (rig.archive.clone(), Gate::new());
        let held = gate.clone();
        let factory = move || {
            let (sink, held) = (archive.sink(), held.clone());
            async move {
                held.pass().await;
                Ok::<_, Broken>(sink)
            }
        };
        let running = spawn(rig.builder().await.open_with(factory).await.unwrap());
        gate.close();
        rig.publish(10).await;
        gate.reached().await;
        let error = running.stop().await.unwrap_err();
        assert!(matches!(&error, DriverError::Guard(GuardError::Sink { .. })), "what went wrong is said: {error}");
        gate.open();
        rig.archive_to(10).await;
        rig.assert_all_once().await;
    }

    async fn ack_all_goes_on_where_the_newest_record_was_deleted(server: Server) {
        let mut rig = Rig::new(server).await;
        let config = pull::Config { ack_policy: AckPolicy::All, max_ack_pending: 50, ..Default::default() };
        rig.make_consumer(config).await;
        rig.publish(20).await;
        rig.archive_to(20).await;
        rig.context.get_stream(&rig.stream).await.unwrap().delete_message(20).await.unwrap();
        let running = rig.start().await;
        rig.publish(100).await;
        // Nothing is acked above the floor, and nothing is delivered beyond the window.
        rig.durable(120).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 120);
        rig.assert_published_once();
    }
}

/// A store that is held up the first time it is to save that the other consumer takes over.
struct Held {
    inner: FileStore,
    gate: Gate,
    armed: Arc<AtomicBool>,
}

impl CheckpointStore for Held {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        self.inner.open()
    }
    fn save(&mut self, version: u16, body: bytes::Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let switches = body.windows(OTHER.len()).any(|part| part == OTHER.as_bytes());
            if switches && self.armed.swap(false, Ordering::Relaxed) {
                self.gate.pass().await;
            }
            self.inner.save(version, body).await
        })
    }
    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        self.inner.set_aside()
    }
    fn location(&self) -> String {
        self.inner.location()
    }
}

/// A consumer that can be neither made nor deleted; the server goes away while the other name takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_while_the_other_name_takes_over() {
    let mut rig = Rig::new(Server::start(V2_15).await.unwrap()).await;
    rig.publish(500).await;
    rig.archive_to(500).await;
    rig.acked().await;
    rig.consumer_written().await;
    rig.cut(|server, stream| server.zero_fill_consumer_state(stream, CONSUMER).unwrap()).await;
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(true)));
    gate.close();
    let (held, state) = (gate.clone(), rig.state_dir());
    let store = move |source: &Source| {
        let inner = FileStore::new(&state, source);
        Box::new(Held { inner, gate: held.clone(), armed: Arc::clone(&armed) }) as Box<dyn CheckpointStore>
    };
    let running = spawn(rig.builder().await.store(store).open(rig.archive.sink()).await.unwrap());
    gate.reached().await;
    let retries = rig.events("retry").len();
    rig.server.kill().unwrap();
    gate.open();
    // The request that makes the other one gets no answer.
    until("it is noticed", async || rig.events("retry").len() > retries).await;
    rig.server.restart().await.unwrap();
    rig.back().await;
    rig.publish(100).await;
    until("it goes on", async || rig.archive.count() >= 600 || running.is_over()).await;
    rig.acked_of(OTHER).await;
    running.stop().await.unwrap();
    rig.assert_all_once().await;
}

/// A fresh consumer is moved forward by hand, over messages that are still to come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_fresh_consumer_was_moved_over_is_not_archived() {
    let mut rig = Rig::new(Server::start(V2_15).await.unwrap()).await;
    let running = rig.start().await;
    until("a session", async || running.now().sessions == 1).await;
    let subject = format!("CONSUMER.RESET.{}.{CONSUMER}", rig.stream);
    let _: serde_json::Value = rig.context.request(subject, &serde_json::json!({ "seq": 50 })).await.unwrap();
    rig.publish(60).await;
    rig.durable(11).await;
    rig.acked().await;
    assert_eq!(running.stop().await.unwrap().floor, 0, "1..49 were never delivered");
    // Looked at every minute, and whenever a session begins.
    let running = rig.start().await;
    rig.durable(60).await;
    until("all is archived", async || running.now().floor == 60).await;
    assert_eq!(rig.event("passed_over").await.number("sequence"), 1);
    running.stop().await.unwrap();
    rig.assert_all_once().await;
}

on_versions! {
    // An interest stream is put back to when the consumer in use stood too high and the one of the other name kept what is
    // not archived: that one must not be deleted before another stands where it did.
    async fn both_names_on_an_interest_stream(server: Server) {
        let mut rig = Rig::retaining(server, RetentionPolicy::Interest).await;
        let driver = rig.open().await.unwrap();
        let mark = driver.report().state_id.to_string();
        let running = spawn(driver);
        rig.publish(20).await;
        rig.durable(20).await;
        rig.acked().await;
        running.stop().await.unwrap();
        // The other name is in use from now on, as the checkpoint says.
        let other = |at: u64| pull::Config {
            durable_name: Some(OTHER.to_owned()),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: at },
            metadata: [("replay-guard".to_owned(), mark.clone())].into(),
            ..Default::default()
        };
        let source = Source::new(rig.stream.as_str());
        let stream = rig.context.get_stream(&rig.stream).await.unwrap();
        let observer = StreamObserver::new(rig.context.clone(), &source);
        let store = FileStore::new(rig.state_dir(), &source);
        let mut guard = Guard::open(source, rig.archive.sink(), store, observer).await.unwrap();
        guard.use_consumer(OTHER).await.unwrap();
        drop(guard);
        let low = pull::Config { durable_name: Some(CONSUMER.to_owned()), ..other(21) };
        let _ = stream.delete_consumer(CONSUMER).await;
        let _: PullConsumer = stream.create_consumer(low).await.unwrap();
        rig.publish(30).await;
        let _: PullConsumer = stream.create_consumer(other(51)).await.unwrap();
        let running = rig.start().await;
        rig.durable(50).await;
        until("the stream is empty", async || rig.stream_state().await.messages == 0).await;
        running.stop().await.unwrap();
        rig.assert_published_once();
    }
}
