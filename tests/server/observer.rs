//! What the observer says about real streams.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context, stream::Config, stream::Stream};
use replay_guard::jetstream::{Consumer, ConsumerError, Denials, StreamObserver};
use replay_guard::{ObserveError, Observer, Reading, RecordId, Source, Witness};

use crate::nats::Server;
use crate::on_versions;

/// How long an answer may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

async fn stream(server: &Server) -> (Context, Stream) {
    let context = jetstream::new(server.client().await.unwrap());
    let config = Config { name: "S".into(), subjects: vec!["s.>".into()], ..Default::default() };
    let stream = context.create_stream(config).await.unwrap();
    (context, stream)
}

async fn publish(context: &Context, subject: &str, payload: impl Into<Vec<u8>>) -> u64 {
    let payload: Vec<u8> = payload.into();
    context.publish(subject.to_owned(), payload.into()).await.unwrap().await.unwrap().sequence
}

/// The witness of a message as a consumer would have delivered it, with the time of the ack subject.
async fn delivered(stream: &Stream, sequence: u64) -> Witness {
    use futures_util::StreamExt;
    let config = jetstream::consumer::pull::OrderedConfig {
        deliver_policy: jetstream::consumer::DeliverPolicy::ByStartSequence { start_sequence: sequence },
        ..Default::default()
    };
    let mut messages = stream.create_consumer(config).await.unwrap().messages().await.unwrap();
    let message = messages.next().await.unwrap().unwrap();
    let reply = message.reply.clone().unwrap();
    let tokens: Vec<&str> = reply.split('.').collect();
    assert_eq!(tokens[5], sequence.to_string());
    Witness::new(RecordId::new(sequence, tokens[7].parse().unwrap()), &message.subject, &message.payload)
}

fn sequence(found: Option<Witness>) -> Option<u64> {
    found.map(|witness| witness.sequence())
}

on_versions! {
    async fn what_is_read_equals_what_was_delivered(server: Server) {
        let (context, stream) = stream(&server).await;
        let observer = StreamObserver::new(context.clone(), &Source::new("S"));
        publish(&context, "s.a", "hello").await;
        publish(&context, "s.a", "").await;
        publish(&context, "s.b.c", vec![0xff; 1_000_000]).await;
        let mut headers = HeaderMap::new();
        headers.append("Twice", "1");
        headers.append("Twice", "2");
        let ack = context.publish_with_headers("s.a", headers, "h".into()).await.unwrap().await.unwrap();
        assert_eq!(ack.sequence, 4);
        for sequence in 1..=4 {
            let witness = delivered(&stream, sequence).await;
            assert_eq!(observer.read(sequence).await.unwrap(), Reading::Message(witness));
            assert_eq!(observer.next(sequence).await.unwrap(), Some(witness));
        }
        let view = observer.stream().await.unwrap();
        let last = delivered(&stream, 4).await;
        assert_eq!((view.first, view.last, view.last_published), (1, 4, last.id.published));
        assert!(view.created > 1_700_000_000_000_000_000 && view.created < last.id.published, "{view:?}");
    }

    async fn an_empty_stream_has_nothing(server: Server) {
        let (context, _) = stream(&server).await;
        let observer = StreamObserver::new(context, &Source::new("S"));
        let view = observer.stream().await.unwrap();
        assert_eq!((view.first, view.last, view.last_published), (0, 0, 0));
        assert_eq!(observer.next(1).await.unwrap(), None);
        assert_eq!(observer.next(0).await.unwrap(), None);
        assert_eq!(observer.read(0).await.unwrap(), Reading::Gone);
        assert_eq!(observer.read(1).await.unwrap(), Reading::Above);
    }

    async fn gone_is_not_above(server: Server) {
        let (context, stream) = stream(&server).await;
        let observer = StreamObserver::new(context.clone(), &Source::new("S"));
        for number in 1..=10 {
            publish(&context, "s.a", number.to_string()).await;
        }
        assert!(stream.delete_message(5).await.unwrap());
        stream.purge().sequence(3).await.unwrap();
        for sequence in [1, 2, 5] {
            assert_eq!(observer.read(sequence).await.unwrap(), Reading::Gone, "{sequence}");
        }
        assert!(matches!(observer.read(4).await.unwrap(), Reading::Message(_)));
        assert_eq!(sequence(observer.next(1).await.unwrap()), Some(3));
        assert_eq!(sequence(observer.next(5).await.unwrap()), Some(6));
        let asked = Instant::now();
        assert_eq!(observer.read(11).await.unwrap(), Reading::Above);
        assert!(asked.elapsed() >= Duration::from_secs(1), "seen twice, a second apart");
        assert_eq!(observer.read(u64::MAX).await.unwrap(), Reading::Above);
        stream.purge().await.unwrap();
        assert_eq!(observer.read(10).await.unwrap(), Reading::Gone, "the last, purged");
        assert_eq!(observer.read(11).await.unwrap(), Reading::Above);
        let view = observer.stream().await.unwrap();
        assert_eq!((view.first, view.last), (11, 10));
    }

    async fn what_arrives_within_the_second_is_read(server: Server) {
        let (context, _) = stream(&server).await;
        let observer = StreamObserver::new(context.clone(), &Source::new("S"));
        for next in 1.. {
            let asked = Instant::now();
            let (reading, stored) = tokio::join!(observer.read(next), async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                publish(&context, "s.a", "late").await;
                asked.elapsed()
            });
            match reading.unwrap() {
                Reading::Message(witness) => {
                    assert_eq!(witness.sequence(), next);
                    break;
                }
                // It may have come after the second look, on a busy machine.
                Reading::Above if stored > Duration::from_millis(900) => {}
                other => panic!("{other:?}, stored after {stored:?}"),
            }
        }
    }

    async fn no_message_is_taken_for_gone_while_it_arrives(server: Server) {
        let (context, _) = stream(&server).await;
        let observer = StreamObserver::new(context.clone(), &Source::new("S"));
        let publisher = async {
            for number in 1..=2_000_u64 {
                publish(&context, "s.a", number.to_string()).await;
            }
        };
        let reader = async {
            let mut sequence = 1;
            while sequence <= 2_000 {
                match observer.read(sequence).await.unwrap() {
                    Reading::Message(_) => sequence += 1,
                    Reading::Gone => panic!("{sequence} never was there to go"),
                    Reading::Above => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::join!(publisher, reader);
    }

    async fn next_keeps_to_the_filters(server: Server) {
        let (context, stream) = stream(&server).await;
        for subject in ["s.a", "s.b", "s.c.x", "s.d", "s.a", "s.c.y", "s.d"] {
            publish(&context, subject, subject).await;
        }
        let of = |filters: &[&str]| {
            StreamObserver::new(context.clone(), &Source::new("S").with_filters(filters.iter().copied()))
        };
        let table: [(&[&str], [Option<u64>; 8]); 6] = [
            (&[], [Some(1), Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), Some(7)]),
            (&["s.a"], [Some(1), Some(1), Some(5), Some(5), Some(5), Some(5), None, None]),
            (&["s.c.*"], [Some(3), Some(3), Some(3), Some(3), Some(6), Some(6), Some(6), None]),
            (&["s.b", "s.c.>"], [Some(2), Some(2), Some(2), Some(3), Some(6), Some(6), Some(6), None]),
            (&["s.none"], [None; 8]),
            (&["s.none", "s.b"], [Some(2), Some(2), Some(2), None, None, None, None, None]),
        ];
        for (filters, expected) in table {
            let observer = of(filters);
            for (from, expected) in (0..).zip(expected) {
                assert_eq!(sequence(observer.next(from).await.unwrap()), expected, "{filters:?} from {from}");
            }
            assert_eq!(sequence(observer.next(8).await.unwrap()), None);
            assert_eq!(sequence(observer.next(u64::MAX).await.unwrap()), None);
        }
        stream.purge().filter("s.c.>").await.unwrap();
        assert_eq!(sequence(of(&["s.b", "s.c.>"]).next(3).await.unwrap()), None);
        // Read does not care for the filter.
        assert!(matches!(of(&["s.a"]).read(2).await.unwrap(), Reading::Message(_)));
        let many: Vec<String> = (0..50).map(|number| format!("s.none.{number}")).chain(["s.d".into()]).collect();
        let many = StreamObserver::new(context.clone(), &Source::new("S").with_filters(many));
        assert_eq!(sequence(many.next(5).await.unwrap()), Some(7));
    }

    async fn a_missing_stream_is_said(server: Server) {
        let (context, _) = stream(&server).await;
        let observer = StreamObserver::new(context, &Source::new("T"));
        for error in [
            observer.stream().await.unwrap_err(),
            observer.read(1).await.unwrap_err(),
            observer.next(1).await.unwrap_err(),
        ] {
            assert!(matches!(&error, ObserveError::NoStream { stream } if stream == "T"), "{error}");
        }
    }

    async fn a_dead_server_is_unavailable_and_one_that_is_back_is_asked_again(server: Server) {
        let (context, stream) = stream(&server).await;
        let observer = StreamObserver::new(context.clone(), &Source::new("S"));
        publish(&context, "s.a", "1").await;
        let witness = delivered(&stream, 1).await;
        let before = observer.stream().await.unwrap();
        server.kill().unwrap();
        let asked = Instant::now();
        let (read, next, view) = tokio::join!(observer.read(1), observer.next(1), observer.stream());
        for error in [read.unwrap_err(), next.unwrap_err(), view.unwrap_err()] {
            assert!(matches!(error, ObserveError::Unavailable { .. }) && error.is_retriable(), "{error}");
        }
        assert!(asked.elapsed() < DEADLINE, "{:?}", asked.elapsed());
        server.restart().await.unwrap();
        let deadline = Instant::now() + DEADLINE;
        loop {
            match observer.read(1).await {
                Ok(reading) => break assert_eq!(reading, Reading::Message(witness)),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
        assert_eq!(observer.stream().await.unwrap(), before);
    }

    async fn a_lost_tail_is_seen(server: Server) {
        let (context, stream) = stream(&server).await;
        let observer = StreamObserver::new(context.clone(), &Source::new("S"));
        publish(&context, "s.a", "1").await;
        server.stop().await.unwrap();
        let snapshot = server.snapshot_store().unwrap();
        server.restart().await.unwrap();
        publish(&context, "s.a", "2").await;
        publish(&context, "s.a", "3").await;
        let (one, old) = (delivered(&stream, 1).await, delivered(&stream, 2).await);
        let created = observer.stream().await.unwrap().created;
        server.kill().unwrap();
        server.restore_store(&snapshot).unwrap();
        server.restart().await.unwrap();
        publish(&context, "s.a", "2").await;
        assert_eq!(observer.read(1).await.unwrap(), Reading::Message(one));
        let Reading::Message(new) = observer.read(2).await.unwrap() else { panic!("2 is there") };
        assert_ne!(new, old);
        assert_eq!(new.digest, old.digest, "the same words at another time are another message");
        assert_eq!(observer.read(3).await.unwrap(), Reading::Above);
        assert_eq!(observer.stream().await.unwrap().created, created);
    }

    async fn a_refused_request_is_an_error_within_the_deadline(server: Server) {
        let (context, _) = stream(&server).await;
        publish(&context, "s.a", "1").await;
        server
            .configure(
                r#"authorization { users = [
                    { user: "u", password: "p", permissions: { publish: { deny: ["$JS.API.STREAM.MSG.GET.>", "$JS.API.CONSUMER.>"] } } }
                ] }"#,
            )
            .unwrap();
        server.stop().await.unwrap();
        server.restart().await.unwrap();
        let denials = Denials::default();
        let noted = denials.clone();
        let options = crate::nats::options().user_and_password("u".into(), "p".into()).event_callback(move |event| {
            noted.note(&event);
            async {}
        });
        let context = jetstream::new(server.client_with(options).await.unwrap());
        let observer = StreamObserver::new(context.clone(), &Source::new("S"));
        assert_eq!(observer.stream().await.unwrap().last, 1);
        let asked = Instant::now();
        let error = observer.read(1).await.unwrap_err();
        assert!(matches!(error, ObserveError::Unavailable { .. }), "{error}");
        let observer = observer.with_denials(denials.clone());
        let error = observer.next(1).await.unwrap_err();
        assert!(matches!(error, ObserveError::Denied { .. }) && !error.is_retriable(), "{error}");
        assert!(asked.elapsed() < DEADLINE, "{:?}", asked.elapsed());
        let consumer = Consumer::new(context, &Source::new("S"), "c").unwrap().with_denials(denials);
        let error = consumer.find().await.unwrap_err();
        assert!(matches!(error, ConsumerError::Denied { .. }) && !error.is_retriable(), "{error}");
    }
}
