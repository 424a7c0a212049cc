//! Settings and states of a consumer in which an archiver can be caught, and what it costs while nothing happens.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};

use super::rig::{AckTap, CONSUMER, DEADLINE, Rig, spawn, until};
use super::sink::{Broken, Gate};
use crate::nats::{Server, V2_10, V2_12, V2_14, V2_15};
use crate::on_versions;

/// A sink that is down for longer than the server delivers a message. Every try costs a delivery of what it held, until the
/// server gives all of it up; the consumer is moved back, and every message survives.
async fn a6_a_sink_that_is_down_for_longer_than_max_deliver(version: &'static str) {
    let mut rig = Rig::new(Server::start(version).await.unwrap()).await;
    let ack_wait = Duration::from_millis(500);
    rig.make_consumer(pull::Config { max_deliver: 5, ack_wait, ..Default::default() }).await;
    let advisory = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{}.{CONSUMER}", rig.stream);
    let client = rig.server.client().await.unwrap();
    let mut given_up = client.subscribe(advisory).await.unwrap();
    client.flush().await.unwrap();
    let mut tap = AckTap::new(&rig).await;
    rig.archive.plan(|plan| plan.down = true);
    let archive = rig.archive.clone();
    let factory = move || {
        let sink = Ok::<_, Broken>(archive.sink());
        async { sink }
    };
    let builder = rig.builder().await.check_every(ack_wait);
    let running = spawn(builder.open_with(factory).await.unwrap());
    assert!(rig.event("setting").await.fields["setting"].contains("max_deliver is 5"));
    rig.publish(50).await;
    let mut gone = BTreeSet::new();
    while gone.len() < 50 {
        let advisory = tokio::time::timeout(DEADLINE, given_up.next()).await.expect("all are given up").unwrap();
        let advisory: Value = serde_json::from_slice(&advisory.payload).unwrap();
        assert_eq!(advisory["deliveries"], 5);
        gone.insert(advisory["stream_seq"].as_u64().unwrap());
    }
    assert_eq!(rig.archive.count(), 0);
    rig.archive.plan(|plan| plan.down = false);
    rig.durable(50).await;
    rig.publish(50).await;
    rig.durable(100).await;
    rig.acked().await;
    assert_eq!(running.stop().await.unwrap().floor, 100);
    assert!(!rig.events("passed_over").is_empty(), "moved back to what was given up");
    assert!(tap.take().await.iter().all(|(_, word)| word != "-NAK"), "a nak would burn a delivery");
    rig.assert_all_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_v2_10_26() {
    a6_a_sink_that_is_down_for_longer_than_max_deliver(V2_10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_v2_12_8() {
    a6_a_sink_that_is_down_for_longer_than_max_deliver(V2_12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_v2_14_6() {
    a6_a_sink_that_is_down_for_longer_than_max_deliver(V2_14).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_v2_15_1() {
    a6_a_sink_that_is_down_for_longer_than_max_deliver(V2_15).await;
}

/// Requests of the API for one stream, as an ordinary subscriber sees them.
struct Requests(async_nats::Subscriber);

impl Requests {
    async fn new(rig: &Rig) -> Self {
        let client = rig.server.client().await.unwrap();
        let subscriber = client.subscribe("$JS.API.>").await.unwrap();
        client.flush().await.unwrap();
        Self(subscriber)
    }

    async fn next(&mut self) -> String {
        tokio::time::timeout(DEADLINE, self.0.next()).await.expect("a request").unwrap().subject.to_string()
    }

    /// Waits for so many looks at the consumer, and gives every request from the first look up to the last.
    async fn looks(&mut self, count: usize) -> Vec<String> {
        while self.0.next().now_or_never().flatten().is_some() {}
        let mut requests: Vec<String> = Vec::new();
        let mut looks = 0;
        while looks < count {
            let request = self.next().await;
            looks += usize::from(request.contains(".CONSUMER.INFO."));
            if looks > 0 {
                requests.push(request);
            }
        }
        requests
    }
}

/// Between two looks at the consumer: at most the stream and two messages of it, and no pull.
fn assert_only_looks(rig: &Rig, requests: &[String]) {
    for look in requests.split(|request| request.ends_with(&format!(".CONSUMER.INFO.{}.{CONSUMER}", rig.stream))) {
        let count =
            |kind: &str| look.iter().filter(|request| **request == format!("$JS.API.{kind}.{}", rig.stream)).count();
        let (infos, gets) = (count("STREAM.INFO"), count("STREAM.MSG.GET"));
        assert!(infos <= 1 && gets <= 2 && look.len() == infos + gets, "{look:?}");
    }
}

/// What would be a storm: none of it comes while nothing happens.
fn unquiet(rig: &Rig) -> usize {
    ["retry", "session_began", "session_ended", "unverified", "paused"].iter().map(|name| rig.events(name).len()).sum()
}

on_versions! {
    async fn a_sink_that_cannot_be_made_burns_no_delivery(server: Server) {
        let mut rig = Rig::new(server).await;
        let ack_wait = Duration::from_millis(300);
        rig.make_consumer(pull::Config { max_deliver: 3, ack_wait, ..Default::default() }).await;
        rig.publish(20).await;
        rig.archive.plan(|plan| plan.fail_flush = Some(1));
        let archive = rig.archive.clone();
        let (second, fifth) = (Gate::new(), Gate::new());
        second.close();
        fifth.close();
        let (mut calls, gates) = (0, [second.clone(), fifth.clone()]);
        let factory = move || {
            calls += 1;
            let sink = if (2..=5).contains(&calls) { Err(Broken("no sink")) } else { Ok(archive.sink()) };
            let gate = match calls {
                2 => gates.first().cloned(),
                5 => gates.last().cloned(),
                _ => None,
            };
            async move {
                if let Some(gate) = gate {
                    gate.pass().await;
                }
                sink
            }
        };
        let running = spawn(rig.builder().await.open_with(factory).await.unwrap());
        // Between these calls there is no session, and the ack deadline passes more than once.
        second.reached().await;
        let before = rig.info().await.delivered.consumer_sequence;
        second.open();
        fifth.reached().await;
        assert_eq!((before >= 20, rig.info().await.delivered.consumer_sequence), (true, before));
        fifth.open();
        rig.durable(20).await;
        rig.acked().await;
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }

    async fn a_consumer_that_allows_only_small_pulls(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config {
            max_batch: 3,
            max_bytes: 2_000,
            max_expires: Duration::from_secs(1),
            max_waiting: 1,
            ..Default::default()
        })
        .await;
        let running = rig.start().await;
        until("a session", async || running.now().sessions == 1).await;
        for number in 0..5_u8 {
            rig.publish(20).await;
            // More than a pull may ask for in bytes.
            rig.context.publish(rig.subject("a"), vec![number; 10_000].into()).await.unwrap().await.unwrap();
            rig.durable(21 * (usize::from(number) + 1)).await;
        }
        // Pulls end, and begin again.
        let mut requests = Requests::new(&rig).await;
        let mut pulls = 0;
        while pulls < 3 {
            pulls += usize::from(requests.next().await.contains(".MSG.NEXT."));
        }
        rig.publish(1).await;
        rig.durable(106).await;
        rig.acked().await;
        assert_eq!(running.now().sessions, 1, "{:?}", rig.events("session_ended"));
        running.stop().await.unwrap();
        rig.assert_stream_once().await;
    }

    async fn a_consumer_that_allows_only_short_pulls(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { max_expires: Duration::from_millis(200), ..Default::default() }).await;
        let running = rig.start().await;
        until("a session", async || running.now().sessions == 1).await;
        // Nothing comes, and no pull that ends in its time makes the next one wait longer.
        let mut requests = Requests::new(&rig).await;
        let mut pulls = 0;
        while pulls < 50 {
            pulls += usize::from(requests.next().await.contains(".MSG.NEXT."));
        }
        rig.publish(1).await;
        rig.durable(1).await;
        rig.acked().await;
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }

    async fn memory_is_bounded_by_the_flush(server: Server) {
        const SIZE: usize = 500_000;
        let rig = Rig::new(server).await;
        for number in 0..60_u8 {
            rig.context.publish(rig.subject("a"), vec![number; SIZE].into()).await.unwrap().await.unwrap();
        }
        rig.archive.writing.close();
        let running = rig.start_with(|builder| builder.flush_bytes(4_000_000)).await;
        rig.archive.writing.reached().await;
        // What was delivered and is not acked is in the sink, or waits in two pulls at most.
        let most = 3 * 4_000_000 / SIZE;
        let bounded = async || {
            let waiting = rig.info().await.num_ack_pending;
            assert!(waiting <= most, "{waiting} messages are in memory");
            waiting
        };
        until("a pull has come", async || bounded().await > 4).await;
        rig.archive.writing.open();
        until("all is durable", async || {
            bounded().await;
            rig.archive.count() == 60
        })
        .await;
        rig.acked().await;
        running.stop().await.unwrap();
        rig.assert_stream_once().await;
    }

    async fn an_idle_stream_costs_a_look_now_and_then(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(10).await;
        let running = rig.start_with(|builder| builder.check_every(Duration::from_millis(500))).await;
        rig.durable(10).await;
        rig.acked().await;
        let mut requests = Requests::new(&rig).await;
        let before = unquiet(&rig);
        let seen = requests.looks(5).await;
        assert_only_looks(&rig, &seen);
        assert!(seen.iter().any(|request| request.contains(".MSG.GET.")), "the newest message is read back: {seen:?}");
        assert_eq!((unquiet(&rig), running.now().sessions), (before, 1));
        running.stop().await.unwrap();
    }

    async fn a_paused_consumer_is_waited_for(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config::default()).await;
        let pause = format!("CONSUMER.PAUSE.{}.{CONSUMER}", rig.stream);
        let until_then = json!({ "pause_until": "2100-01-01T00:00:00Z" });
        if !rig.server.is_at_least("2.11.0").unwrap() {
            let answer: Result<Value, _> = rig.context.request(pause, &until_then).await;
            assert!(answer.is_err(), "it cannot be paused: {answer:?}");
            return;
        }
        let answer: Value = rig.context.request(pause.clone(), &until_then).await.unwrap();
        assert_eq!(answer["paused"], true);
        let running = rig.start_with(|builder| builder.check_every(Duration::from_millis(500))).await;
        let paused = rig.event("paused").await;
        let second = 1_000_000_000;
        assert_eq!((paused.number("until") + second / 2) / second, 4_102_444_800, "2100-01-01");
        rig.publish(10).await;
        until("a session", async || running.now().sessions == 1).await;
        let mut requests = Requests::new(&rig).await;
        let before = unquiet(&rig);
        let seen = requests.looks(5).await;
        assert_only_looks(&rig, &seen);
        assert_eq!((unquiet(&rig), running.now().sessions, rig.archive.count()), (before, 1, 0));
        let answer: Value = rig.context.request(pause, &json!({})).await.unwrap();
        assert_eq!(answer["paused"], false);
        rig.durable(10).await;
        rig.acked().await;
        running.stop().await.unwrap();
        assert_eq!(rig.events("paused").len(), 1);
        rig.assert_all_once().await;
    }

    async fn a_consumer_with_priority_groups_is_refused(server: Server) {
        let rig = Rig::new(server).await;
        let create = format!("CONSUMER.CREATE.{}.{CONSUMER}", rig.stream);
        let config = json!({ "name": CONSUMER, "durable_name": CONSUMER, "ack_policy": "explicit",
            "priority_groups": ["g"], "priority_policy": "overflow" });
        let request = json!({ "stream_name": rig.stream, "config": config });
        let made: Value = rig.context.request(create, &request).await.unwrap();
        if !rig.server.is_at_least("2.11.0").unwrap() {
            assert!(made["config"]["priority_groups"].is_null(), "{made}");
            rig.open().await.unwrap();
            return;
        }
        assert_eq!(made["config"]["priority_groups"][0], "g", "{made}");
        let error = rig.open().await.unwrap_err();
        assert!(error.is_setting() && error.to_string().contains("priority group g"), "{error}");
    }

    async fn what_the_stream_makes_of_a_new_consumer_is_said(server: Server) {
        let limits = async_nats::jetstream::stream::ConsumerLimits {
            inactive_threshold: Duration::from_secs(60),
            ..Default::default()
        };
        let rig = Rig::with(server, |config| async_nats::jetstream::stream::Config {
            consumer_limits: Some(limits),
            ..config
        })
        .await;
        drop(rig.open().await.unwrap());
        let setting = rig.event("setting").await;
        assert!(setting.fields["setting"].contains("inactive_threshold is 60s"), "{setting:?}");
    }
}
