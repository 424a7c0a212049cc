//! What lies between the messages of a source, and what it costs to know.

use std::time::Duration;

use async_nats::jetstream;
use futures_util::StreamExt as _;
use tokio::task::unconstrained;

use super::rig::{Rig, spawn, until};
use super::sink::Gate;
use super::store::held_up;
use crate::on_versions;

/// Counts what the driver asks the server, as an ordinary subscriber sees it.
struct Requests {
    client: async_nats::Client,
    subscriber: async_nats::Subscriber,
}

impl Requests {
    async fn watch(rig: &Rig) -> Self {
        let client = rig.server.client().await.unwrap();
        let subscriber = client.subscribe("$JS.API.>").await.unwrap();
        client.flush().await.unwrap();
        Self { client, subscriber }
    }

    /// The requests that came since this was asked last.
    async fn take(&mut self) -> Vec<String> {
        use futures_util::FutureExt as _;
        // What the server sent before it answers this has come.
        until("an answer", async || jetstream::new(self.client.clone()).query_account().await.is_ok()).await;
        let mut subjects = Vec::new();
        // Within its budget tokio would give no more than some hundred.
        while let Some(Some(message)) = unconstrained(self.subscriber.next()).now_or_never() {
            subjects.push(message.subject.to_string());
        }
        subjects
    }
}

/// More acks than the client queues, and more than the socket takes.
const COUNT: u64 = 60_000;

on_versions! {
    async fn a_filtered_source_over_100_reconnects_is_one_span(server: Server) {
        const ROUNDS: u64 = 100;
        let mut rig = Rig::new(server).await;
        let context = jetstream::new(rig.server.client().await.unwrap());
        let client = context.client();
        let builder = rig.builder_on(context.clone(), &rig.stream);
        let builder = builder.filter(rig.subject("a")).filter(rig.subject("b.*"));
        let running = spawn(builder.open(rig.archive.sink()).await.unwrap());
        until("a session", async || running.now().sessions == 1).await;
        let mut requests = Requests::watch(&rig).await;
        for round in 1..=ROUNDS {
            let last = rig.publish_to(&["other", "a", "other", "b.x", "other"], 10).await;
            // A request that is on its way when the connection goes is waited for in vain, for seconds.
            until("the floor", async || running.now().floor == last - 1).await;
            assert_eq!(rig.archive.count() as u64, 4 * round);
            // What comes before the next session is delivered to the one that ended, and again after the ack deadline.
            let before = running.now().sessions;
            client.force_reconnect().await.unwrap();
            until("another session", async || running.now().sessions > before).await;
        }
        let last = rig.publish_to(&["other", "a"], 2).await;
        until("the floor", async || running.now().floor == last).await;
        rig.acked().await;
        let asked = requests.take().await;
        assert!(asked.len() as u64 > ROUNDS, "{}", asked.len());
        let of = |verb: &str| asked.iter().filter(|subject| subject.contains(verb)).count() as u64;
        let status = running.now();
        assert!(status.sessions > ROUNDS, "{}", status.sessions);
        assert_eq!((status.counters.moves, status.counters.forks), (0, 0));
        // A session start asks for a handful of messages, a flush for three or so, with a gap closed in each session.
        let reads = of("STREAM.MSG.GET");
        assert!(reads <= 12 * (status.sessions + ROUNDS), "{reads} reads in {} sessions", status.sessions);
        assert_eq!(of("DIRECT.GET"), 0, "a mirror may answer that");
        assert_eq!((of("CONSUMER.DELETE"), of("CONSUMER.RESET"), of("CONSUMER.CREATE")), (0, 0, 0));
        let ended = running.stop().await.unwrap();
        assert_eq!(ended.counters.written, 4 * ROUNDS + 1);
        assert!(rig.archive.copies().values().all(|copies| *copies == 1));
        let again = rig.builder().await.filter(rig.subject("a")).filter(rig.subject("b.*"));
        let driver = again.open(rig.archive.sink()).await.unwrap();
        assert_eq!((driver.report().spans, driver.report().floor), (1, last));
    }

    async fn a_stop_while_nobody_takes_the_acks(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(async_nats::jetstream::consumer::pull::Config {
            max_ack_pending: -1,
            // What comes again before the flush counts as well, and leaves others without one.
            ack_wait: Duration::from_secs(20),
            ..Default::default()
        })
        .await;
        let gate = Gate::new();
        let store = held_up(&rig, &gate);
        rig.publish(COUNT).await;
        let builder = rig.builder().await.flush_every(COUNT, Duration::from_secs(3_600)).store(store);
        gate.open();
        let driver = builder.open(rig.archive.sink()).await.unwrap();
        gate.close();
        let running = spawn(driver);
        gate.reached().await;
        rig.server.pause().unwrap();
        gate.open();
        rig.durable(usize::try_from(COUNT).unwrap()).await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.saves), (COUNT, ended.counters.saves));
        rig.server.resume().unwrap();
        // The acks that were dropped are answered by the checkpoint.
        rig.back().await;
        let again = rig.start().await;
        rig.acked().await;
        assert_eq!(again.stop().await.unwrap().counters.written, 0);
        assert_eq!(rig.archive.count(), usize::try_from(COUNT).unwrap());
    }
}
