//! Records that the sink rejects: reported first, and only then terminated.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, stream};
use async_nats::{HeaderMap, HeaderValue};
use futures_util::StreamExt as _;
use replay_guard::{DeadLetter, DeadLetterSubject, DriverBuilder};

use super::rig::{AckTap, CONSUMER, DEADLINE, Rig, Running, spawn, until};
use super::sink::{Broken, Gate};
use crate::nats::{Server, V2_10, V2_12, V2_14, V2_15};
use crate::{on_all_versions, on_versions};

const ORIGINAL_ID: &str = "order-42";

/// The letters' own stream, and the hook that publishes to it.
struct Dead {
    context: jetstream::Context,
    subject: String,
    name: String,
}

impl Dead {
    async fn new(rig: &Rig) -> Self {
        let (name, subject) = (format!("DEAD-{}", rig.stream), format!("dead.{}", rig.stream));
        let config = stream::Config { name: name.clone(), subjects: vec![subject.clone()], ..Default::default() };
        rig.context.create_stream(config).await.unwrap();
        Self { context: jetstream::new(rig.server.client().await.unwrap()), subject, name }
    }

    fn hook(&self) -> DeadLetterSubject {
        DeadLetterSubject::new(self.context.clone(), self.subject.clone())
    }

    async fn count(&self) -> u64 {
        self.context.get_stream(&self.name).await.unwrap().cached_info().state.messages
    }

    /// The n-th letter, as it is delivered: what is read back has lost repeated header names.
    async fn letter(&self, number: usize) -> jetstream::Message {
        let stream = self.context.get_stream(&self.name).await.unwrap();
        let messages = stream.create_consumer(pull::OrderedConfig::default()).await.unwrap().messages().await.unwrap();
        let letter = tokio::time::timeout(DEADLINE, messages.skip(number - 1).boxed().next()).await;
        letter.expect("a letter").unwrap().unwrap()
    }
}

/// A hundred messages, of which number 42 can never be stored. It carries headers that the server acts upon.
async fn poison(rig: &mut Rig) -> String {
    rig.publish(41).await;
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", ORIGINAL_ID);
    headers.insert("Nats-Expected-Stream", rig.stream.as_str());
    headers.insert("Nats-Expected-Last-Sequence", "41");
    headers.append("Twice", "1");
    headers.append("Twice", "2");
    let poison = format!("{}-bad", rig.stream);
    let publish = rig.context.publish_with_headers(rig.subject("bad"), headers, poison.clone().into());
    assert_eq!(publish.await.unwrap().await.unwrap().sequence, 42);
    rig.publish(58).await;
    rig.archive.plan(|plan| plan.reject.push(poison.clone()));
    poison
}

/// The hundred messages are one flush, however long they take to come.
fn by_count(builder: DriverBuilder) -> DriverBuilder {
    builder.flush_every(100, Duration::from_secs(3_600))
}

async fn start(rig: &Rig, hook: impl FnOnce(DriverBuilder) -> DriverBuilder) -> Running {
    spawn(hook(rig.builder().await).open(rig.archive.sink()).await.unwrap())
}

async fn a7(version: &'static str, ack_policy: AckPolicy) {
    let mut rig = Rig::new(Server::start(version).await.unwrap()).await;
    let dead = Dead::new(&rig).await;
    // Somebody else's letter has the id that the record has in its own stream.
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", ORIGINAL_ID);
    dead.context.publish_with_headers(dead.subject.clone(), headers, "other".into()).await.unwrap().await.unwrap();
    let payload = poison(&mut rig).await;
    rig.make_consumer(pull::Config { ack_policy, ..Default::default() }).await;
    let mut tap = AckTap::new(&rig).await;
    let running = start(&rig, |builder| builder.dead_letters(dead.hook())).await;
    rig.durable(99).await;
    rig.acked().await;
    let ended = running.stop().await.unwrap();
    let counters = ended.counters;
    assert_eq!((ended.floor, ended.unverified), (100, 0));
    assert_eq!((counters.archived, counters.rejected, counters.reported, counters.reports_failed), (99, 1, 1, 0));
    rig.assert_published_once();
    assert_eq!(rig.event("rejected").await.number("sequence"), 42);
    assert_eq!(rig.event("reported").await.number("sequence"), 42);
    assert!(rig.events("no_dead_letters").is_empty());

    let acks = tap.take().await;
    let terminated: Vec<u64> =
        acks.iter().filter(|(_, word)| word == "+TERM").map(|(record, _)| record.sequence).collect();
    let expected: &[u64] = if ack_policy == AckPolicy::All { &[] } else { &[42] };
    assert_eq!(terminated, expected);

    assert_eq!(dead.count().await, 2);
    let letter = dead.letter(2).await;
    assert_eq!(letter.payload, payload);
    let headers = letter.headers.clone().unwrap();
    let get = |name: &str| headers.get_all(name).map(HeaderValue::as_str).collect::<Vec<_>>();
    assert_eq!(get("Replay-Guard-Reason"), ["it can never be stored"]);
    assert_eq!((get("Replay-Guard-Stream"), get("Replay-Guard-Sequence")), (vec![&*rig.stream], vec!["42"]));
    assert_eq!(get("Replay-Guard-Subject"), [rig.subject("bad")]);
    let published = rig.stream_holds().await[41].0.published.to_string();
    assert_eq!(get("Replay-Guard-Published"), [published.as_str()]);
    assert_eq!(get("Replay-Guard-Original-nats-msg-id"), [ORIGINAL_ID]);
    assert_eq!(get("Replay-Guard-Original-nats-expected-stream"), [rig.stream.as_str()]);
    assert_eq!(get("Replay-Guard-Original-nats-expected-last-sequence"), ["41"]);
    assert_eq!(get("Twice"), ["1", "2"]);
    assert!(get("Nats-Msg-Id")[0].contains(&published) && get("Nats-Expected-Stream").is_empty());

    let again = start(&rig, |builder| builder.dead_letters(dead.hook())).await;
    until("a session", async || again.now().sessions == 1).await;
    assert_eq!(again.stop().await.unwrap().counters.offered, 0);
    assert_eq!(dead.count().await, 2);
}

macro_rules! a7_on {
    ($($name:ident: $version:expr, $policy:expr;)*) => {
        mod a7_one_bad_record_of_a_hundred_is_reported_and_terminated {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    a7($version, $policy).await;
                }
            )*
        }
    };
}

a7_on! {
    explicit_v2_10_26: V2_10, AckPolicy::Explicit;
    explicit_v2_12_8: V2_12, AckPolicy::Explicit;
    explicit_v2_14_6: V2_14, AckPolicy::Explicit;
    explicit_v2_15_1: V2_15, AckPolicy::Explicit;
    all_v2_10_26: V2_10, AckPolicy::All;
    all_v2_12_8: V2_12, AckPolicy::All;
    all_v2_14_6: V2_14, AckPolicy::All;
    all_v2_15_1: V2_15, AckPolicy::All;
}

on_all_versions! {
    // On 2.10.26 a header whose name ends as that of the id does hides the id.
    async fn a_crash_between_hook_and_checkpoint(server: Server) {
        let mut rig = Rig::new(server).await;
        let dead = Dead::new(&rig).await;
        poison(&mut rig).await;
        let mut tap = AckTap::new(&rig).await;
        rig.archive.flushing.close();
        let running = start(&rig, |builder| by_count(builder).dead_letters(dead.hook())).await;
        rig.archive.flushing.reached().await;
        assert_eq!(dead.count().await, 1, "the hook is called before the flush");
        running.abort().await;
        assert_eq!(tap.take().await.iter().filter(|(_, word)| word != "+WPI").count(), 0);
        rig.archive.flushing.open();
        let running = start(&rig, |builder| builder.dead_letters(dead.hook())).await;
        rig.durable(99).await;
        rig.acked().await;
        running.stop().await.unwrap();
        assert_eq!(rig.events("reported").len(), 2, "handed over again");
        assert_eq!(dead.count().await, 1, "and known by its id");
        rig.assert_published_once();
    }
}

on_versions! {
    async fn a_hook_that_fails_three_times(server: Server) {
        let mut rig = Rig::new(server).await;
        poison(&mut rig).await;
        let mut tap = AckTap::new(&rig).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let gate = Gate::new();
        gate.close();
        let last = gate.clone();
        let hook = move |letter: DeadLetter| {
            let (call, gate) = (counted.fetch_add(1, Ordering::Relaxed), last.clone());
            async move {
                assert_eq!((letter.record.sequence, letter.record.headers.len()), (42, 4));
                if call < 3 {
                    return Err(Broken("no place for it"));
                }
                gate.pass().await;
                Ok(())
            }
        };
        let running = start(&rig, |builder| by_count(builder).dead_letters(hook)).await;
        gate.reached().await;
        assert_eq!((rig.archive.count(), rig.events("report_failed").len()), (99, 3), "the others are archived");
        rig.acked_but(CONSUMER, 1).await;
        assert_eq!(rig.info().await.ack_floor.stream_sequence, 41);
        let answered: Vec<u64> =
            tap.take().await.iter().filter(|(_, word)| word != "+WPI").map(|(id, _)| id.sequence).collect();
        assert_eq!((answered.len(), answered.contains(&42)), (99, false));
        gate.open();
        rig.acked().await;
        let counters = running.stop().await.unwrap().counters;
        assert_eq!((counters.reports_failed, counters.reported, counters.archived), (3, 1, 99));
        assert_eq!(rig.events("report_failed")[0].fields["error"], "no place for it");
        assert!(rig.events("retry").iter().filter(|event| event.fields["what"] == "dead-letter").count() == 3);
        let terminated = tap.take().await.into_iter().filter(|(_, word)| word == "+TERM").count();
        assert_eq!((terminated, calls.load(Ordering::Relaxed)), (1, 4));
    }

    async fn a_hook_that_is_down_when_the_archiver_stops(server: Server) {
        let mut rig = Rig::new(server).await;
        poison(&mut rig).await;
        for hangs in [false, true] {
            let context = jetstream::new(rig.server.client().await.unwrap());
            let running = if hangs {
                let hook = |_: DeadLetter| std::future::pending::<Result<(), Broken>>();
                start(&rig, |builder| builder.dead_letters(hook)).await
            } else {
                // No stream keeps it.
                let hook = DeadLetterSubject::new(context, format!("nowhere.{}", rig.stream));
                let running = start(&rig, |builder| builder.dead_letters(hook)).await;
                rig.event("report_failed").await;
                rig.durable(99).await;
                running
            };
            until("the record came", async || running.now().sessions > 0 && rig.events("rejected").len() > usize::from(hangs)).await;
            let ended = running.stop().await.unwrap();
            assert_eq!((ended.unverified, ended.counters.reported, ended.floor), (1, 0, 41));
            let failed = rig.events("report_failed");
            assert!(failed.last().is_some_and(|event| event.number("sequence") == 42), "{failed:?}");
            assert_eq!(failed.iter().any(|event| event.fields["error"].contains("cut off")), hangs, "{failed:?}");
            rig.acked_but(CONSUMER, 1).await;
            assert_eq!(rig.info().await.ack_floor.stream_sequence, 41);
        }
        let dead = Dead::new(&rig).await;
        let running = start(&rig, |builder| builder.dead_letters(dead.hook())).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 100);
        assert_eq!(dead.count().await, 1);
        rig.assert_published_once();
    }

    async fn what_waits_for_the_hook_is_bounded(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        let all = std::mem::take(&mut rig.payloads);
        rig.archive.plan(|plan| plan.reject = all);
        let up = Arc::new(AtomicUsize::new(0));
        let is_up = Arc::clone(&up);
        let hook = move |_: DeadLetter| {
            let up = is_up.load(Ordering::Relaxed) > 0;
            async move { if up { Ok(()) } else { Err(Broken("down")) } }
        };
        let running = start(&rig, |builder| builder.dead_letters(hook)).await;
        until("it failed", async || rig.events("report_failed").len() >= 4).await;
        let rejected = running.now().counters.rejected;
        assert!((1..=100).contains(&rejected), "{rejected} wait for the hook, a flush holds 100");
        assert_eq!(rig.info().await.ack_floor.stream_sequence, 0);
        up.store(1, Ordering::Relaxed);
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.reported, ended.counters.rejected), (1_000, 1_000, 1_000));
    }

    async fn letters_that_would_come_back(server: Server) {
        let mut rig = Rig::new(server).await;
        poison(&mut rig).await;
        let context = jetstream::new(rig.server.client().await.unwrap());
        let hook = DeadLetterSubject::new(context, rig.subject("dead"));
        let running = start(&rig, |builder| builder.dead_letters(hook)).await;
        until("it is refused", async || rig.events("report_failed").len() >= 3).await;
        let ended = running.stop().await.unwrap();
        assert_eq!(ended.counters.reported, 0);
        assert!(rig.events("report_failed").iter().all(|event| event.fields["error"].contains("come back")));
        assert_eq!(rig.stream_state().await.messages, 101, "once, and no more");
        assert!(ended.floor < 42, "{}", ended.floor);
    }

    async fn without_a_hook_opening_says_so_once(server: Server) {
        let mut rig = Rig::new(server).await;
        poison(&mut rig).await;
        let mut tap = AckTap::new(&rig).await;
        let running = rig.start_with(|builder| builder.flush_every(10, Duration::from_millis(50))).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.counters.rejected, ended.counters.reported), (1, 0));
        assert_eq!(rig.events("no_dead_letters").len(), 1);
        let terminated: Vec<_> = tap.take().await.into_iter().filter(|(_, word)| word == "+TERM").collect();
        assert_eq!(terminated.iter().map(|(record, _)| record.sequence).collect::<Vec<_>>(), [42]);
    }
}
