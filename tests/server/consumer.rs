//! What becomes of real consumers.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config as ConsumerConfig, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy, Stream};
use async_nats::jetstream::{self, Context, Message};
use futures_util::StreamExt;
use replay_guard::Source;
use replay_guard::jetstream::{Consumer, ConsumerError, Expected, Position};

use crate::nats::Server;
use crate::on_versions;

const EXPECTED: Expected = Expected::new(500, Duration::from_secs(10));
const MARK: &str = "4711";

/// A stream with ten messages: odd sequences `s.odd`, even ones `s.even`.
async fn stream(server: &Server, retention: RetentionPolicy) -> (Context, Stream) {
    let context = jetstream::new(server.client().await.unwrap());
    let config = Config { name: "S".into(), subjects: vec!["s.>".into()], retention, ..Default::default() };
    let stream = context.create_stream(config).await.unwrap();
    (context, stream)
}

async fn publish(context: &Context, count: u64) {
    for _ in 0..count {
        let last = context.get_stream("S").await.unwrap().cached_info().state.last_sequence;
        let subject = if last % 2 == 0 { "s.odd" } else { "s.even" };
        context.publish(subject, "x".into()).await.unwrap().await.unwrap();
    }
}

fn consumer(context: &Context, filters: &[&str]) -> Consumer {
    Consumer::new(context.clone(), &Source::new("S").with_filters(filters.iter().copied()), "c").unwrap()
}

/// The next messages, as many as there are up to a count.
async fn pull(stream: &Stream, count: usize) -> Vec<Message> {
    let consumer: PullConsumer = stream.get_consumer("c").await.unwrap();
    let batch = consumer.fetch().max_messages(count).messages().await.unwrap();
    batch.map(Result::unwrap).collect().await
}

async fn pull_and_ack(stream: &Stream, count: usize) -> Vec<u64> {
    let messages = pull(stream, count).await;
    for message in &messages {
        message.double_ack().await.unwrap();
    }
    sequences(&messages)
}

fn sequences(messages: &[Message]) -> Vec<u64> {
    messages.iter().map(|message| message.info().unwrap().stream_sequence).collect()
}

/// All that an operator may have set, without what the server or the mark adds.
fn operators(position: &Position) -> ConsumerConfig {
    let mut config = position.config.clone();
    config.metadata.retain(|key, _| key == "team");
    config.deliver_policy = DeliverPolicy::All;
    config
}

fn operators_own(filter: &str) -> pull::Config {
    pull::Config {
        durable_name: Some("c".into()),
        description: Some("the archive".into()),
        ack_wait: Duration::from_secs(77),
        max_ack_pending: 1_234,
        max_waiting: 9,
        backoff: vec![Duration::from_secs(60), Duration::from_secs(120)],
        max_deliver: 50,
        filter_subject: filter.into(),
        metadata: [("team".to_owned(), "x".to_owned())].into(),
        ..Default::default()
    }
}

fn has_reset(server: &Server) -> bool {
    server.is_at_least("2.14.0").unwrap()
}

on_versions! {
    async fn a_created_consumer_is_ours_and_fit(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        for filters in [&[][..], &["s.odd"], &["s.odd", "s.none"]] {
            let consumer = consumer(&context, filters);
            assert!(consumer.find().await.unwrap().is_none());
            let config = consumer.default_config(1_000);
            let made = consumer.create(&config, 4, MARK).await.unwrap();
            assert_eq!((made.to, made.created), (4, true));
            let found = consumer.find().await.unwrap().unwrap();
            assert_eq!(found.mark(), Some(MARK));
            assert_eq!((found.stands_at(), found.deliveries, found.ack_pending), (3, 0, 0));
            assert_eq!(found.ack_deadline(), Duration::from_secs(30));
            assert_eq!(consumer.check(&found.config, EXPECTED).unwrap(), []);
            let first = if filters.is_empty() { 4 } else { 5 };
            assert_eq!(sequences(&pull(&stream, 1).await), [first]);
            assert_eq!(consumer.find().await.unwrap().unwrap().stands_at(), 3);
            stream.delete_consumer("c").await.unwrap();
        }
    }

    async fn one_that_is_there_is_not_made_over(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        stream.create_consumer(operators_own("s.odd")).await.unwrap();
        let consumer = consumer(&context, &["s.odd"]);
        let error = consumer.create(&consumer.default_config(1_000), 1, MARK).await.unwrap_err();
        assert!(matches!(error, ConsumerError::Rejected { .. }), "{error}");
        let found = consumer.find().await.unwrap().unwrap();
        assert_eq!((found.config.max_ack_pending, found.mark()), (1_234, None));
    }

    async fn marking_changes_nothing_else(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        let consumer = consumer(&context, &["s.odd"]);
        assert!(matches!(consumer.mark(MARK).await.unwrap_err(), ConsumerError::Missing { .. }));
        let policy = DeliverPolicy::ByStartSequence { start_sequence: 2 };
        stream.create_consumer(pull::Config { deliver_policy: policy, ..operators_own("s.odd") }).await.unwrap();
        assert_eq!(pull_and_ack(&stream, 1).await, [3]);
        assert_eq!(sequences(&pull(&stream, 2).await), [5, 7]);
        let before = consumer.find().await.unwrap().unwrap();
        assert_eq!(before.mark(), None);
        consumer.mark(MARK).await.unwrap();
        let after = consumer.mark(MARK).await.unwrap();
        assert_eq!(after.mark(), Some(MARK));
        assert_eq!(operators(&after), operators(&before));
        assert_eq!(after.config.deliver_policy, policy);
        assert_eq!((after.delivered, after.ack_floor, after.ack_pending, after.pending, after.deliveries), (7, 3, 2, 1, 3));
        assert_eq!((before.created, before.stands_at()), (after.created, after.stands_at()));
        let again = consumer.mark("other").await.unwrap();
        assert_eq!(again.mark(), Some("other"));
        assert_eq!(sequences(&pull(&stream, 1).await), [9]);
    }

    async fn unfit_consumers_are_refused(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        let consumer = consumer(&context, &["s.odd"]);
        let none = pull::Config { ack_policy: AckPolicy::None, backoff: vec![], ..operators_own("s.odd") };
        let none = pull::Config { max_deliver: 0, max_ack_pending: 0, ack_wait: Duration::ZERO, ..none };
        let headers = pull::Config { headers_only: true, ..operators_own("s.odd") };
        for (config, word) in [(none, "none"), (headers, "headers"), (operators_own("s.even"), "s.even")] {
            stream.create_consumer(config).await.unwrap();
            let found = consumer.find().await.unwrap().unwrap();
            let error = consumer.check(&found.config, EXPECTED).unwrap_err();
            assert!(matches!(error, ConsumerError::Refused { .. }) && error.to_string().contains(word), "{error}");
            stream.delete_consumer("c").await.unwrap();
        }
        stream.create_consumer(operators_own("s.odd")).await.unwrap();
        let found = consumer.find().await.unwrap().unwrap();
        assert_eq!(consumer.check(&found.config, EXPECTED).unwrap().len(), 1, "max_deliver only");
    }

    async fn moved_forward_and_back_on_limits(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        stream.create_consumer(operators_own("s.odd")).await.unwrap();
        let consumer = consumer(&context, &["s.odd"]);
        let before = consumer.find().await.unwrap().unwrap();
        let other = consumer.default_config(1);
        assert_eq!(pull_and_ack(&stream, 2).await, [1, 3]);
        assert_eq!(sequences(&pull(&stream, 1).await), [5]);
        // To a sequence, where it stands then, and what comes first.
        for (to, stands, first) in [(6, 5, 7), (6, 5, 7), (9, 8, 9), (2, 1, 3), (1, 0, 1), (0, 0, 1), (5, 4, 5)] {
            let moved = consumer.move_to(to, &other, MARK).await.unwrap();
            assert_eq!((moved.to, moved.created), (to.max(1), !has_reset(&server)), "to {to}");
            let found = consumer.find().await.unwrap().unwrap();
            assert_eq!((found.stands_at(), found.ack_pending, found.deliveries), (stands, 0, 0), "to {to}");
            assert_eq!((found.mark(), operators(&found)), (Some(MARK), operators(&before)), "to {to}");
            assert_eq!(sequences(&pull(&stream, 1).await), [first], "to {to}");
            assert_eq!(pull_and_ack(&stream, 1).await.len(), usize::from(first != 9), "to {to}");
        }
    }

    async fn never_moved_beyond_what_comes_next(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 3).await;
        let consumer = consumer(&context, &[]);
        let config = consumer.default_config(1_000);
        for existing in [false, true] {
            let moved = consumer.move_to(100, &config, MARK).await.unwrap();
            assert_eq!((moved.to, moved.created), (4, !(existing && has_reset(&server))));
        }
        publish(&context, 1).await;
        assert_eq!(sequences(&pull(&stream, 5).await), [4]);
    }

    async fn a_stream_that_begins_above_is_no_reason_to_try_again(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        stream.purge().sequence(6).await.unwrap();
        let consumer = consumer(&context, &["s.odd"]);
        let config = consumer.default_config(1_000);
        for to in [1, 3, 6, 1] {
            consumer.move_to(to, &config, MARK).await.unwrap();
            assert_eq!(sequences(&pull(&stream, 1).await), [7], "to {to}");
        }
        stream.purge().await.unwrap();
        for to in [1, 11, 3] {
            stream.delete_consumer("c").await.unwrap();
            consumer.create(&config, to, MARK).await.unwrap();
        }
        publish(&context, 1).await;
        assert_eq!(sequences(&pull(&stream, 5).await), [11]);
        assert!(!server.log().contains("[FTL]"));
    }

    async fn moved_after_a_deletion(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        let consumer = consumer(&context, &[]);
        let config = consumer.default_config(1_000);
        consumer.create(&config, 9, MARK).await.unwrap();
        assert_eq!(pull_and_ack(&stream, 2).await, [9, 10]);
        stream.delete_consumer("c").await.unwrap();
        let moved = consumer.move_to(4, &config, MARK).await.unwrap();
        assert_eq!((moved.to, moved.created, moved.position.mark()), (4, true, Some(MARK)));
        assert_eq!(sequences(&pull(&stream, 1).await), [4]);
        // Below the start it was made with, which a reset does not allow.
        let moved = consumer.move_to(2, &config, MARK).await.unwrap();
        assert_eq!((moved.to, moved.created), (2, true));
        assert_eq!(sequences(&pull(&stream, 1).await), [2]);
    }

    async fn where_a_reset_is_refused_it_is_made_again(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        for deliver_policy in [DeliverPolicy::New, DeliverPolicy::Last, DeliverPolicy::LastPerSubject] {
            stream.create_consumer(pull::Config { deliver_policy, ..operators_own("s.>") }).await.unwrap();
            let consumer = consumer(&context, &["s.>"]);
            let before = consumer.find().await.unwrap().unwrap();
            let moved = consumer.move_to(4, &before.config, MARK).await.unwrap();
            assert!(moved.created);
            assert_eq!(operators(&moved.position), operators(&before));
            assert_eq!(sequences(&pull(&stream, 2).await), [4, 5]);
            stream.delete_consumer("c").await.unwrap();
        }
    }

    async fn a_work_queue_delivers_all_it_still_holds(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::WorkQueue).await;
        publish(&context, 10).await;
        let consumer = consumer(&context, &[]);
        let config = consumer.default_config(1_000);
        consumer.create(&config, 5, MARK).await.unwrap();
        assert_eq!(pull_and_ack(&stream, 3).await, [1, 2, 3]);
        assert_eq!(sequences(&pull(&stream, 4).await), [4, 5, 6, 7]);
        for existing in [true, true, false] {
            if !existing {
                stream.delete_consumer("c").await.unwrap();
            }
            let moved = consumer.move_to(6, &config, MARK).await.unwrap();
            assert_eq!((moved.to, moved.created), (1, !(existing && has_reset(&server))));
            assert_eq!(sequences(&pull(&stream, 7).await), [4, 5, 6, 7, 8, 9, 10]);
        }
        assert_eq!(stream.get_info().await.unwrap().state.messages, 7);
    }

    async fn interest_is_never_dropped(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Interest).await;
        let consumer = consumer(&context, &[]);
        let config = consumer.default_config(1_000);
        consumer.create(&config, 1, MARK).await.unwrap();
        publish(&context, 10).await;
        assert_eq!(pull_and_ack(&stream, 3).await, [1, 2, 3]);
        assert_eq!(sequences(&pull(&stream, 7).await), [4, 5, 6, 7, 8, 9, 10]);
        let moved = consumer.move_to(4, &config, MARK).await;
        assert_eq!(stream.get_info().await.unwrap().state.messages, 7);
        if has_reset(&server) {
            assert!(!moved.unwrap().created);
            assert_eq!(sequences(&pull(&stream, 7).await), [4, 5, 6, 7, 8, 9, 10]);
            return;
        }
        let error = moved.unwrap_err();
        assert!(matches!(error, ConsumerError::Unsupported { .. }) && !error.is_retriable());
        let text = error.to_string();
        assert!(text.contains("interest") && text.contains(&server.version().unwrap()), "{text}");
        assert_eq!(consumer.find().await.unwrap().unwrap().ack_pending, 7);
    }

    async fn an_adopted_state_is_undone(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        let consumer = consumer(&context, &[]);
        let config = consumer.default_config(1_000);
        consumer.create(&config, 1, MARK).await.unwrap();
        assert_eq!(pull_and_ack(&stream, 8).await, [1, 2, 3, 4, 5, 6, 7, 8]);
        for (empty, to) in [(false, 4), (true, 6), (false, 1), (true, 10), (false, 11)] {
            server.stop().await.unwrap();
            server.empty_consumer_meta("S", "c").unwrap();
            if empty {
                server.empty_consumer_state("S", "c").unwrap();
            }
            server.restart().await.unwrap();
            assert!(consumer.find().await.unwrap().is_none(), "not loaded");
            let moved = consumer.move_to(to, &config, MARK).await.unwrap();
            assert_eq!((moved.to, moved.position.stands_at()), (to, to - 1), "empty {empty}");
            let first = sequences(&pull(&stream, 1).await);
            assert_eq!(first, if to > 10 { vec![] } else { vec![to] }, "empty {empty}");
        }
    }

    async fn a_damaged_state_is_told_apart(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        let consumer = consumer(&context, &[]);
        let config = consumer.default_config(1_000);
        consumer.create(&config, 1, MARK).await.unwrap();
        assert_eq!(pull_and_ack(&stream, 3).await, [1, 2, 3]);
        server.stop().await.unwrap();
        server.zero_fill_consumer_state("S", "c").unwrap();
        server.restart().await.unwrap();
        let found = consumer.find().await.unwrap().map(|position| position.delivered);
        assert_eq!(found, if server.is_at_least("2.11.0").unwrap() { None } else { Some(u64::MAX) });
        let moved = consumer.move_to(4, &config, MARK).await;
        if !server.is_at_least("2.14.6").unwrap() {
            assert_eq!(moved.unwrap().position.stands_at(), 3);
            assert_eq!(sequences(&pull(&stream, 1).await), [4]);
            return;
        }
        let error = moved.unwrap_err();
        assert!(matches!(&error, ConsumerError::Damaged { consumer, .. } if consumer == "c"), "{error}");
        assert!(!error.is_retriable());
        let other = Consumer::new(context.clone(), &Source::new("S"), "c-rg").unwrap();
        let moved = other.move_to(4, &other.default_config(1_000), MARK).await.unwrap();
        assert_eq!(moved.position.stands_at(), 3);
    }

    async fn a_consumer_ahead_of_its_stream_is_moved_back(server: Server) {
        let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
        publish(&context, 10).await;
        let consumer = consumer(&context, &[]);
        let config = consumer.default_config(1_000);
        consumer.create(&config, 1, MARK).await.unwrap();
        server.stop().await.unwrap();
        let snapshot = server.snapshot_store().unwrap();
        server.restart().await.unwrap();
        publish(&context, 10).await;
        assert_eq!(pull_and_ack(&stream, 20).await.len(), 20);
        server.stop().await.unwrap();
        let state = server.consumer_state("S", "c").unwrap();
        server.restore_store(&snapshot).unwrap();
        server.put_consumer_state("S", "c", &state).unwrap();
        server.restart().await.unwrap();
        let moved = consumer.move_to(21, &config, MARK).await.unwrap();
        assert_eq!(moved.to, 11, "not where it was, but where the stream ends now");
        publish(&context, 3).await;
        assert_eq!(pull_and_ack(&stream, 3).await, [11, 12, 13]);
    }

    async fn names_and_absence(server: Server) {
        let (context, _) = stream(&server, RetentionPolicy::Limits).await;
        let source = Source::new("S");
        for name in ["", "a b", "a.b", "a*", ">", "a/b", "a\\b", "a\nb"] {
            let error = Consumer::new(context.clone(), &source, name).unwrap_err();
            assert!(matches!(error, ConsumerError::InvalidName { .. }), "{error}");
        }
        let absent = Consumer::new(context, &Source::new("T"), "c").unwrap();
        let config = absent.default_config(1);
        for error in [
            absent.find().await.unwrap_err(),
            absent.mark(MARK).await.unwrap_err(),
            absent.create(&config, 1, MARK).await.unwrap_err(),
            absent.move_to(1, &config, MARK).await.unwrap_err(),
        ] {
            assert!(matches!(&error, ConsumerError::NoStream { stream } if stream == "T"), "{error}");
        }
        server.kill().unwrap();
        let error = absent.find().await.unwrap_err();
        assert!(error.is_retriable(), "{error}");
    }
}

/// On 2.10 a damaged state is loaded all the same, with numbers that mean nothing.
#[tokio::test]
async fn a_damaged_state_on_2_10_26_is_moved_away_from() {
    let mut server = Server::start(crate::nats::V2_10).await.unwrap();
    let (context, stream) = stream(&server, RetentionPolicy::Limits).await;
    publish(&context, 10).await;
    let consumer = consumer(&context, &[]);
    let config = consumer.default_config(1_000);
    consumer.create(&config, 1, MARK).await.unwrap();
    assert_eq!(pull_and_ack(&stream, 3).await, [1, 2, 3]);
    server.stop().await.unwrap();
    server.zero_fill_consumer_state("S", "c").unwrap();
    server.restart().await.unwrap();
    assert_eq!(consumer.find().await.unwrap().unwrap().delivered, u64::MAX);
    let moved = consumer.move_to(4, &config, MARK).await.unwrap();
    assert_eq!((moved.created, moved.position.stands_at()), (true, 3));
    assert_eq!(sequences(&pull(&stream, 1).await), [4]);
}
