//! What servers do, as far as this crate is built on it: one fact, one test, without the crate. A release that changes a fact
//! turns exactly that test red; `tests/README.md` says what is built on it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, Info, PullConsumer, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy, Source, Stream};
use async_nats::jetstream::{self, AckKind, Context, Message};
use async_nats::{HeaderMap, Request};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::driver::until;
use crate::nats::Server;
use crate::on_all_versions;

async fn stream_of(server: &Server, config: Config) -> (Context, Stream) {
    let context = jetstream::new(server.client().await.unwrap());
    let stream =
        context.create_stream(Config { name: "S".into(), subjects: vec!["s".into()], ..config }).await.unwrap();
    (context, stream)
}

async fn publish(context: &Context, count: usize) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    for _ in 0..count {
        // What is published again after an error may be stored already.
        let mut id = HeaderMap::new();
        id.insert("Nats-Msg-Id", NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
        until("it is stored", async || match context.publish_with_headers("s", id.clone(), "x".into()).await {
            Ok(ack) => ack.await.is_ok(),
            Err(_) => false,
        })
        .await;
    }
}

async fn make(stream: &Stream, config: pull::Config) -> PullConsumer {
    let config = pull::Config { durable_name: Some("c".into()), ..config };
    stream.create_consumer(config).await.unwrap()
}

async fn pull(consumer: &PullConsumer, count: usize, expires: Duration) -> Vec<Message> {
    let batch = consumer.batch().max_messages(count).expires(expires).messages().await.unwrap();
    batch.map(Result::unwrap).collect().await
}

/// What comes, so many at most: it ends with the last of them.
async fn pull_now(consumer: &PullConsumer, count: usize) -> Vec<Message> {
    pull(consumer, count, Duration::from_secs(10)).await
}

/// These come, and no more.
async fn assert_come(consumer: &PullConsumer, expected: &[u64]) {
    assert_eq!(sequences(&pull_now(consumer, expected.len()).await), expected);
    assert!(pull(consumer, 1, Duration::from_secs(1)).await.is_empty());
}

fn sequences(messages: &[Message]) -> Vec<u64> {
    messages.iter().map(|message| message.info().unwrap().stream_sequence).collect()
}

async fn pull_and_ack(consumer: &PullConsumer, count: usize) {
    for message in pull_now(consumer, count).await {
        message.double_ack().await.unwrap();
    }
}

async fn info(stream: &Stream) -> Info {
    stream.consumer_info("c").await.unwrap()
}

/// Delivered and ack floor, as the server says.
async fn stands(stream: &Stream) -> (u64, u64) {
    let info = info(stream).await;
    (info.delivered.stream_sequence, info.ack_floor.stream_sequence)
}

/// Waits until the stream answers again.
async fn back(stream: &Stream) {
    until("the stream answers", async || stream.get_info().await.is_ok()).await;
}

/// Stops the server cleanly, with 15 messages in the stream; then come so many more.
async fn stored_15(server: &mut Server, context: &Context, stream: &Stream, more: usize) -> std::path::PathBuf {
    publish(context, 15).await;
    server.stop().await.unwrap();
    let snapshot = server.snapshot_messages("S").unwrap();
    server.restart().await.unwrap();
    back(stream).await;
    publish(context, more).await;
    snapshot
}

/// The tail is lost: the stream is as it was, its consumers are not.
async fn lose_tail(server: &mut Server, stream: &Stream, snapshot: &std::path::Path) {
    server.stop().await.unwrap();
    server.restore_messages("S", snapshot).unwrap();
    server.restart().await.unwrap();
    back(stream).await;
}

on_all_versions! {
    async fn a_lost_tail_gives_its_numbers_again_and_the_creation_time_stays(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        let snapshot = stored_15(&mut server, &context, &stream, 5).await;
        let before = stream.get_info().await.unwrap();
        lose_tail(&mut server, &stream, &snapshot).await;
        assert_eq!(context.publish("s", "new".into()).await.unwrap().await.unwrap().sequence, 16);
        let after = stream.get_info().await.unwrap();
        assert_eq!((before.state.last_sequence, after.state.last_sequence, after.created), (20, 16, before.created));
    }

    // Since 2.14 it is put back to the stream's end; before, it delivers nothing that comes below where it stands.
    async fn a_consumer_ahead_of_its_stream(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        let snapshot = stored_15(&mut server, &context, &stream, 5).await;
        let consumer = make(&stream, pull::Config::default()).await;
        pull_and_ack(&consumer, 20).await;
        lose_tail(&mut server, &stream, &snapshot).await;
        publish(&context, 6).await;
        let come = if server.is_at_least("2.14.0").unwrap() { (16..=21).collect() } else { vec![21] };
        assert_come(&consumer, &come).await;
    }

    async fn an_ack_of_the_old_life_acks_a_new_message(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        let snapshot = stored_15(&mut server, &context, &stream, 5).await;
        let consumer = make(&stream, pull::Config::default()).await;
        pull_and_ack(&consumer, 15).await;
        let old = pull_now(&consumer, 5).await;
        assert_eq!(sequences(&old), [16, 17, 18, 19, 20]);
        lose_tail(&mut server, &stream, &snapshot).await;
        publish(&context, 5).await;
        if server.is_at_least("2.14.0").unwrap() {
            assert_eq!(sequences(&pull_now(&consumer, 5).await), [16, 17, 18, 19, 20]);
        }
        let before = info(&stream).await.num_ack_pending;
        for message in old {
            context.client().publish(message.reply.clone().unwrap(), "+ACK".into()).await.unwrap();
        }
        until("new messages are acked", async || info(&stream).await.num_ack_pending == 0).await;
        assert_eq!(before, 5);
    }

    async fn an_emptied_state_file_is_a_consumer_that_never_delivered(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 5).await;
        let consumer = make(&stream, pull::Config::default()).await;
        pull_and_ack(&consumer, 5).await;
        server.stop().await.unwrap();
        server.empty_consumer_state("S", "c").unwrap();
        server.restart().await.unwrap();
        back(&stream).await;
        let again = pull_now(&consumer, 5).await;
        assert_eq!(sequences(&again), [1, 2, 3, 4, 5]);
        assert!(again.iter().all(|message| message.info().unwrap().delivered == 1), "nothing tells that they were seen");
    }

    // 2.10: loaded, with numbers that mean nothing. Then deleted at the start, to be made again. Since 2.14.6 neither loaded
    // nor made nor deleted.
    async fn a_state_file_of_zeros(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 5).await;
        let consumer = make(&stream, pull::Config::default()).await;
        pull_and_ack(&consumer, 5).await;
        server.stop().await.unwrap();
        server.zero_fill_consumer_state("S", "c").unwrap();
        server.restart().await.unwrap();
        back(&stream).await;
        let found = stream.consumer_info("c").await.ok().map(|info| info.delivered.stream_sequence);
        let config = json!({ "stream_name": "S", "config": { "durable_name": "c", "ack_policy": "explicit" } });
        let made: Value = context.request("CONSUMER.CREATE.S.c", &config).await.unwrap();
        let refused = made["error"]["err_code"].as_u64();
        let expected = match (server.is_at_least("2.11.0").unwrap(), server.is_at_least("2.14.6").unwrap()) {
            (false, _) => (Some(u64::MAX), None),
            (true, false) => (None, None),
            (true, true) => (None, Some(10012)),
        };
        assert_eq!((found, refused), expected, "{made}");
    }

    async fn a_consumer_made_again_adopts_the_state_file_it_finds(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 5).await;
        let consumer = make(&stream, pull::Config::default()).await;
        pull_and_ack(&consumer, 4).await;
        server.stop().await.unwrap();
        server.empty_consumer_meta("S", "c").unwrap();
        server.restart().await.unwrap();
        back(&stream).await;
        assert!(stream.consumer_info("c").await.is_err(), "it is not loaded");
        make(&stream, pull::Config::default()).await;
        assert_eq!(stands(&stream).await, (4, 4));
    }

    // 2.10 begins at what comes next; later servers wait for the number.
    async fn a_start_beyond_the_end(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 3).await;
        let deliver_policy = DeliverPolicy::ByStartSequence { start_sequence: 6 };
        let consumer = make(&stream, pull::Config { deliver_policy, ..Default::default() }).await;
        publish(&context, 4).await;
        let come = if server.is_at_least("2.11.0").unwrap() { vec![6, 7] } else { vec![4, 5, 6, 7] };
        assert_come(&consumer, &come).await;
    }

    // Before 2.14 the floor is said to be 0.
    async fn a_consumer_that_begins_at_a_sequence(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 15).await;
        let deliver_policy = DeliverPolicy::ByStartSequence { start_sequence: 11 };
        make(&stream, pull::Config { deliver_policy, ..Default::default() }).await;
        let floor = if server.is_at_least("2.14.0").unwrap() { 10 } else { 0 };
        assert_eq!(stands(&stream).await, (10, floor));
    }

    async fn an_interest_stream_whose_only_consumer_is_made_anew_is_empty(server: Server) {
        let retention = RetentionPolicy::Interest;
        let (context, stream) = stream_of(&server, Config { retention, ..Default::default() }).await;
        make(&stream, pull::Config::default()).await;
        publish(&context, 10).await;
        stream.delete_consumer("c").await.unwrap();
        make(&stream, pull::Config::default()).await;
        until("it is empty", async || stream.get_info().await.unwrap().state.messages == 0).await;
    }

    // A floor is no proof that anybody acked.
    async fn the_ack_floor_passes_what_was_purged(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 5).await;
        let consumer = make(&stream, pull::Config::default()).await;
        assert_eq!(pull_now(&consumer, 3).await.len(), 3);
        stream.purge().await.unwrap();
        until("the floor is above", async || stands(&stream).await == (5, 5)).await;
        let state = stream.get_info().await.unwrap().state;
        assert_eq!((state.first_sequence, state.last_sequence), (6, 5), "an empty stream begins above its end");
    }

    // 2.10 moves the floor over it at once. No server says that anything is left to be done.
    async fn a_message_that_was_delivered_too_often_is_given_up(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 3).await;
        let ack_wait = Duration::from_millis(100);
        let consumer = make(&stream, pull::Config { max_deliver: 1, ack_wait, ..Default::default() }).await;
        assert_eq!(pull_now(&consumer, 3).await.len(), 3);
        until("it is given up", async || info(&stream).await.num_ack_pending == 0).await;
        let floor = if server.is_at_least("2.11.0").unwrap() { 0 } else { 3 };
        assert_eq!((stands(&stream).await, info(&stream).await.num_pending), ((3, floor), 0));
    }

    async fn a_termination_on_ack_all_acks_what_is_below(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 10).await;
        let consumer = make(&stream, pull::Config { ack_policy: AckPolicy::All, ..Default::default() }).await;
        let messages = pull_now(&consumer, 10).await;
        messages[6].ack_with(AckKind::Term).await.unwrap();
        until("it is acked", async || stands(&stream).await == (10, 7)).await;
    }

    // Since 2.14 there is a reset. It takes a sequence beyond the end, and says nothing of a consumer that does not exist.
    async fn a_consumer_is_reset(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        publish(&context, 10).await;
        let consumer = make(&stream, pull::Config::default()).await;
        pull_and_ack(&consumer, 10).await;
        let client = context.client();
        let reset = async |consumer: &str, to: u64, seconds: u64| {
            let body = serde_json::to_vec(&json!({ "seq": to })).unwrap();
            let request = Request::new().payload(body.into()).timeout(Some(Duration::from_secs(seconds)));
            let answer = client.send_request(format!("$JS.API.CONSUMER.RESET.S.{consumer}"), request).await.ok()?;
            Some(serde_json::from_slice::<Value>(&answer.payload).unwrap())
        };
        let is_known = server.is_at_least("2.14.0").unwrap();
        let back = reset("c", 4, if is_known { 30 } else { 2 }).await;
        if !is_known {
            assert!(back.is_none(), "{back:?}");
            return;
        }
        assert_eq!(back.unwrap()["reset_seq"], 4);
        let first = pull_now(&consumer, 1).await;
        let first = first[0].info().unwrap();
        assert_eq!((first.stream_sequence, first.consumer_sequence), (4, 1));
        assert_eq!(reset("c", 100, 30).await.unwrap()["reset_seq"], 100);
        assert_eq!(reset("other", 1, 2).await, None);
    }

    async fn a_direct_get_is_answered_by_a_mirror_that_has_more(server: Server) {
        let (context, stream) = stream_of(&server, Config { allow_direct: true, ..Default::default() }).await;
        let origin = Source { name: "S".into(), ..Default::default() };
        let config = Config { name: "M".into(), mirror: Some(origin), mirror_direct: true, ..Default::default() };
        let mirror = context.create_stream(config).await.unwrap();
        publish(&context, 5).await;
        until("the mirror has all", async || mirror.get_info().await.unwrap().state.last_sequence == 5).await;
        stream.delete_message(3).await.unwrap();
        until("it is found all the same", async || stream.direct_get(3).await.is_ok()).await;
        for _ in 0..40 {
            assert!(stream.get_raw_message(3).await.is_err(), "the leader knows");
        }
    }

    // A client writes headers in an order of its own, another one each time.
    async fn an_id_is_missed_behind_another_mention_of_its_name_on_2_10(server: Server) {
        let (context, stream) = stream_of(&server, Config::default()).await;
        let old = !server.is_at_least("2.11.0").unwrap();
        let headers = [("x-nats-msg-id", "a", false), ("X-Nats-Msg-Id", "a", old), ("X-Error", "no Nats-Msg-Id: a", old)];
        for (before, value, missed) in headers {
            stream.purge().await.unwrap();
            for number in 0..80 {
                let mut headers = async_nats::HeaderMap::new();
                headers.insert(before, value);
                headers.insert("Nats-Msg-Id", format!("{before}-{}", number % 40));
                context.publish_with_headers("s", headers, "x".into()).await.unwrap().await.unwrap();
            }
            let stored = stream.get_info().await.unwrap().state.messages;
            assert_eq!(stored > 40, missed, "{before}: {stored}");
        }
    }
}
