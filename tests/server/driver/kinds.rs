//! Kinds of streams, consumers, filters and messages.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull, push};
use async_nats::jetstream::stream::RetentionPolicy;

use super::rig::{CONSUMER, Rig, spawn, until};
use super::sink::Archive;
use crate::nats::Server;
use crate::on_versions;

/// Archives a stream that removes what is acked, over restarts of the server.
async fn archived_and_empty(server: Server, retention: RetentionPolicy) -> Rig {
    let mut rig = Rig::retaining(server, retention).await;
    let running = rig.start().await;
    for round in 1..=2 {
        rig.publish(525).await;
        rig.durable(525 * round).await;
        rig.server.restart().await.unwrap();
        rig.back().await;
    }
    until("the stream is empty", async || rig.stream_state().await.messages == 0).await;
    let ended = running.stop().await.unwrap();
    assert_eq!(ended.counters.forks, 0);
    assert_eq!(rig.open().await.unwrap().report().floor, 1_050);
    rig.assert_published_once();
    rig
}

on_versions! {
    async fn three_guards_on_one_stream_in_one_directory(server: Server) {
        let mut rig = Rig::new(server).await;
        let mut all = Vec::new();
        for end in ["a", "b", "c.>"] {
            let archive = Archive::new();
            let builder = rig.builder().await.consumer(format!("for-{}", &end[..1])).filter(rig.subject(end));
            all.push((end, archive.clone(), spawn(builder.open(archive.sink()).await.unwrap())));
        }
        for _ in 0..3 {
            rig.publish_to(&["a", "b", "c.x", "b", "c.y", "other"], 300).await;
            rig.server.restart().await.unwrap();
            rig.back().await;
        }
        let mut durable = 0;
        for (end, archive, running) in all {
            let expected = if end == "a" { 150 } else { 300 };
            until("all of a subject is durable", async || archive.count() >= expected).await;
            rig.acked_of(&format!("for-{}", &end[..1])).await;
            running.stop().await.unwrap();
            assert_eq!(archive.copies().len(), expected);
            assert!(archive.copies().values().all(|copies| *copies == 1));
            let prefix = rig.subject(&end[..1]);
            assert!(archive.durable().iter().all(|record| record.subject.starts_with(&prefix)));
            durable += archive.count();
        }
        assert_eq!(durable, 750);
        let directories: Vec<_> = std::fs::read_dir(rig.state_dir()).unwrap().collect();
        assert_eq!(directories.len(), 1, "one directory for the stream");
    }

    async fn a_filtered_source_over_reconnects_is_one_span(server: Server) {
        let mut rig = Rig::new(server).await;
        let open = async |rig: &Rig| {
            let builder = rig.builder().await.filter(rig.subject("a")).filter(rig.subject("b.*"));
            builder.open(rig.archive.sink()).await.unwrap()
        };
        let running = spawn(open(&rig).await);
        for round in 1..=4 {
            rig.publish_to(&["other", "a", "other", "b.x", "other"], 250).await;
            rig.durable(100 * round).await;
            rig.server.restart().await.unwrap();
            rig.back().await;
        }
        rig.publish_to(&["other", "a", "b.y"], 3).await;
        rig.durable(402).await;
        rig.acked().await;
        let sessions = running.now().sessions;
        assert!(sessions >= 5, "{sessions}");
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written), (1_003, 402));
        assert!(rig.archive.copies().values().all(|copies| *copies == 1));
        let driver = open(&rig).await;
        assert_eq!((driver.report().spans, driver.report().floor), (1, 1_003));
    }

    async fn ack_all_and_explicit_acks(server: Server) {
        let mut rig = Rig::new(server).await;
        for (name, ack_policy) in [("explicit", AckPolicy::Explicit), ("all", AckPolicy::All)] {
            let end = format!("for.{name}");
            let stream = rig.context.get_stream(&rig.stream).await.unwrap();
            let durable_name = Some(name.to_owned());
            let filter_subject = rig.subject(&end);
            let ack_wait = Duration::from_secs(3);
            let config = pull::Config { durable_name, ack_policy, ack_wait, filter_subject, ..Default::default() };
            stream.create_consumer(config).await.unwrap();
            let archive = Archive::new();
            let start = async |rig: &Rig| {
                let builder = rig.builder().await.consumer(name).filter(rig.subject(&end));
                spawn(builder.open(archive.sink()).await.unwrap())
            };
            let running = start(&rig).await;
            let last = rig.publish_to(&[&end], 1_050).await;
            until("all is durable", async || archive.count() >= 1_050).await;
            rig.acked_of(name).await;
            rig.server.restart().await.unwrap();
            rig.back().await;
            let last = last + 50;
            assert_eq!(rig.publish_to(&[&end], 50).await, last);
            until("all is durable", async || archive.count() >= 1_100).await;
            rig.acked_of(name).await;
            assert_eq!(running.stop().await.unwrap().floor, last);
            let info = stream.consumer_info(name).await.unwrap();
            assert_eq!((info.num_ack_pending, info.num_pending, info.ack_floor.stream_sequence), (0, 0, last));
            let again = start(&rig).await;
            until("a session", async || again.now().sessions == 1).await;
            assert_eq!(again.stop().await.unwrap().counters.offered, 0);
            assert!(archive.copies().values().all(|copies| *copies == 1) && archive.copies().len() == 1_100);
        }
    }

    async fn ack_all_with_records_that_are_rejected_and_kept_back(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_policy: AckPolicy::All, ack_wait: Duration::from_secs(2), ..Default::default() }).await;
        rig.archive.plan(|plan| {
            plan.keep_back = 20;
            plan.reject = [7, 250, 251].map(|number| format!("{}-{number}", rig.stream)).into();
        });
        let running = rig.start().await;
        rig.publish(500).await;
        rig.durable(477).await;
        let info = rig.info().await;
        assert!(info.ack_floor.stream_sequence <= 480, "nothing that is kept back is acked: {info:?}");
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.rejected), (500, 3));
        rig.acked().await;
        assert_eq!(rig.archive.copies().len(), 497);
        assert!(rig.archive.copies().values().all(|copies| *copies == 1));
    }

    async fn consumers_that_cannot_feed_an_archive(server: Server) {
        let rig = Rig::new(server).await;
        let stream = rig.context.get_stream(&rig.stream).await.unwrap();
        let none = pull::Config { ack_policy: AckPolicy::None, ..Default::default() };
        let headers = pull::Config { headers_only: true, ..Default::default() };
        let filter = pull::Config { filter_subject: rig.subject("b"), ..Default::default() };
        for (config, said) in [(none, "ack policy is none"), (headers, "headers only"), (filter, "filter")] {
            rig.make_consumer(config).await;
            let error = rig.open().await.unwrap_err();
            assert!(error.is_setting() && error.to_string().contains(said), "{error}");
            stream.delete_consumer(CONSUMER).await.unwrap();
        }
        let durable_name = Some(CONSUMER.to_owned());
        let push = push::Config { durable_name, deliver_subject: "inbox".into(), ..Default::default() };
        stream.create_consumer(push).await.unwrap();
        let error = rig.open().await.unwrap_err();
        assert!(error.is_setting() && error.to_string().contains("push"), "{error}");
        assert_eq!(rig.checkpoints(), Vec::<std::path::PathBuf>::new(), "no checkpoint was made");
    }

    async fn a_work_queue_is_archived_and_empty_afterwards(server: Server) {
        let rig = archived_and_empty(server, RetentionPolicy::WorkQueue).await;
        // The removals and the acks are forgotten: all that comes again is skipped, and removed again.
        assert_eq!(rig.look_once().await.counters.written, 0);
    }

    async fn an_interest_stream_is_archived_and_empty_afterwards(server: Server) {
        archived_and_empty(server, RetentionPolicy::Interest).await;
    }

    async fn a_work_queue_whose_removals_are_forgotten(server: Server) {
        let mut rig = Rig::retaining(server, RetentionPolicy::WorkQueue).await;
        rig.publish(500).await;
        rig.server.stop().await.unwrap();
        let full = rig.server.snapshot_store().unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        rig.archive_to(500).await;
        rig.acked().await;
        rig.cut(|server, _| server.restore_store(&full).unwrap()).await;
        assert_eq!(rig.stream_state().await.messages, 500, "all is back");
        let running = rig.start().await;
        until("the stream is empty", async || rig.stream_state().await.messages == 0).await;
        let ended = running.stop().await.unwrap();
        assert_eq!(ended.counters.written, 0);
        rig.assert_published_once();
    }

    async fn last_per_subject_is_no_unbroken_chain(server: Server) {
        let mut rig = Rig::new(server).await;
        for subject in 0..10 {
            rig.publish_to(&[&format!("a.{subject}")], 10).await;
        }
        // The server wants a filter for it.
        let filter_subject = rig.subject("a.*");
        let deliver_policy = DeliverPolicy::LastPerSubject;
        rig.make_consumer(pull::Config { deliver_policy, filter_subject, ..Default::default() }).await;
        let open = async |rig: &Rig| {
            rig.builder().await.filter(rig.subject("a.*")).open(rig.archive.sink()).await.unwrap()
        };
        let running = spawn(open(&rig).await);
        rig.durable(10).await;
        rig.acked().await;
        running.stop().await.unwrap();
        let sequences: Vec<u64> = rig.archive.durable().iter().map(|record| record.sequence).collect();
        assert_eq!(sequences, (1..=10).map(|subject| subject * 10).collect::<Vec<_>>());
        let driver = open(&rig).await;
        assert_eq!(driver.report().spans, 10, "what was not delivered is not covered");
        // Archiving began where the consumer stood, above 9. What it passed over since is found and archived.
        let running = spawn(driver);
        rig.durable(91).await;
        assert_eq!(running.stop().await.unwrap().floor, 100);
        let copies = rig.archive.copies();
        assert!(copies.len() == 91 && copies.values().all(|copies| *copies == 1));
    }

    async fn payloads_larger_than_a_flush(server: Server) {
        let mut rig = Rig::new(server).await;
        let running = rig.start_with(|builder| builder.flush_bytes(64 * 1024)).await;
        for number in 0..5_u8 {
            let ack = rig.context.publish(rig.subject("a"), vec![number; 900 * 1024].into()).await.unwrap();
            ack.await.unwrap();
        }
        rig.publish(5).await;
        rig.durable(10).await;
        rig.acked().await;
        running.stop().await.unwrap();
        rig.assert_stream_once().await;
        assert!(rig.archive.flushes() >= 5, "{}", rig.archive.flushes());
    }

    async fn payloads_larger_than_a_pull(server: Server) {
        server.configure("max_payload: 8388608").unwrap();
        server.restart().await.unwrap();
        let mut rig = Rig::new(server).await;
        let running = rig.start_with(|builder| builder.flush_bytes(64 * 1024)).await;
        for number in 0..4_u8 {
            rig.publish(3).await;
            let ack = rig.context.publish(rig.subject("a"), vec![number; 8 * 1024 * 1024].into()).await.unwrap();
            ack.await.unwrap();
        }
        rig.durable(16).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written), (16, 16));
        rig.assert_stream_once().await;
    }
}
