//! First openings.

use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures_util::StreamExt as _;
use replay_guard::{DriverError, Start, StartError, Trust};

use super::rig::{CONSUMER, DEADLINE, Rig, spawn};
use crate::on_versions;

/// What another archiver did: takes and acks so many messages.
async fn acked_by_another(rig: &Rig, count: usize) {
    let ack_wait = DEADLINE;
    let consumer =
        rig.make_consumer(pull::Config { ack_policy: AckPolicy::Explicit, ack_wait, ..Default::default() }).await;
    let mut messages = consumer.fetch().max_messages(count).messages().await.unwrap();
    while let Some(message) = messages.next().await {
        message.unwrap().double_ack().await.unwrap();
    }
    assert_eq!(rig.info().await.ack_floor.stream_sequence, count as u64);
}

on_versions! {
    async fn from_where_the_consumer_stands(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        acked_by_another(&rig, 500).await;
        let driver = rig.open().await.unwrap();
        assert_eq!((driver.report().origin, driver.report().trust.clone()), (501, Trust::New));
        let running = spawn(driver);
        rig.durable(500).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written), (1_000, 500));
        assert!(rig.archive.durable().iter().all(|record| record.sequence > 500));
        // The origin is kept.
        let again = rig.open().await.unwrap();
        assert_eq!((again.report().origin, again.report().floor, again.report().spans), (501, 1_000, 1));
    }

    async fn adopting_what_another_archiver_acked(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        acked_by_another(&rig, 500).await;
        let driver = rig.builder().await.start(Start::Adopt).open(rig.archive.sink()).await.unwrap();
        assert_eq!((driver.report().origin, driver.report().floor), (1, 500));
        let running = spawn(driver);
        rig.durable(500).await;
        rig.acked().await;
        rig.consumer_written().await;
        rig.cut(|server, stream| server.empty_consumer_state(stream, CONSUMER).unwrap()).await;
        rig.publish(10).await;
        rig.durable(510).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written, ended.counters.skipped), (1_010, 510, 1_000));
        assert!(rig.archive.durable().iter().all(|record| record.sequence > 500));
    }

    async fn from_the_beginning(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        acked_by_another(&rig, 500).await;
        let running = rig.start_with(|builder| builder.start(Start::Beginning)).await;
        rig.durable(1_000).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 1_000);
        rig.assert_all_once().await;
        // Counts only the first time.
        let running = rig.start_with(|builder| builder.start(Start::Beginning)).await;
        rig.publish(10).await;
        rig.durable(1_010).await;
        assert_eq!(running.stop().await.unwrap().counters.written, 10);
    }

    async fn nothing_to_adopt(server: Server) {
        let rig = Rig::new(server).await;
        let error = rig.builder().await.start(Start::Adopt).open(rig.archive.sink()).await.unwrap_err();
        assert!(matches!(error, DriverError::Start(StartError::NothingToAdopt { .. })) && error.is_setting(), "{error}");
    }

    async fn a_lost_checkpoint_needs_a_decision(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(100).await;
        rig.archive_to(100).await;
        std::fs::remove_file(rig.checkpoint()).unwrap();
        let error = rig.open().await.unwrap_err();
        assert!(matches!(error, DriverError::Start(StartError::LostCheckpoint { .. })) && error.is_setting(), "{error}");
        let text = error.to_string();
        for choice in ["Start::Beginning", "Start::Adopt", "Start::Consumer", rig.state_dir().to_str().unwrap()] {
            assert!(text.contains(choice), "{text}");
        }
        rig.acked().await;
        assert_eq!(rig.info().await.ack_floor.stream_sequence, 100, "nothing was changed");
        let running = rig.start_with(|builder| builder.start(Start::Beginning)).await;
        rig.durable(200).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 100);
        assert!(rig.archive.copies().values().all(|copies| *copies == 2));
        assert_eq!(rig.look_once().await.counters.written, 0, "the mark is of the new archive");
    }

    async fn a_consumer_beyond_the_stream_needs_a_decision(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(400).await;
        rig.server.stop().await.unwrap();
        let snapshot = rig.server.snapshot_store().unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        rig.publish(100).await;
        acked_by_another(&rig, 500).await;
        rig.consumer_written().await;
        let consumer = rig.server.consumer_directory(&rig.stream, CONSUMER);
        rig.cut(|server, _| {
            let kept: Vec<_> = std::fs::read_dir(&consumer).unwrap().map(|file| file.unwrap()).collect();
            let kept: Vec<_> = kept.iter().map(|file| (file.path(), std::fs::read(file.path()).unwrap())).collect();
            server.restore_store(&snapshot).unwrap();
            std::fs::create_dir_all(&consumer).unwrap();
            for (path, bytes) in kept {
                std::fs::write(path, bytes).unwrap();
            }
        })
        .await;
        if rig.info().await.delivered.stream_sequence > 400 {
            let error = rig.open().await.unwrap_err();
            assert!(matches!(error, DriverError::Start(StartError::Beyond { position: 500, last: 400, .. })), "{error}");
            assert!(error.is_setting());
        } else {
            // From 2.14 on the server pulls it back by itself.
            assert!(rig.server.is_at_least("2.14.0").unwrap());
        }
        let running = rig.start_with(|builder| builder.start(Start::Beginning)).await;
        rig.publish(100).await;
        rig.durable(500).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 500);
        rig.assert_stream_once().await;
    }

    async fn a_stream_that_does_not_exist(server: Server) {
        let rig = Rig::new(server).await;
        rig.context.delete_stream(&rig.stream).await.unwrap();
        let error = rig.open().await.unwrap_err();
        assert!(error.is_setting() && error.to_string().contains(&rig.stream), "{error}");
    }
}
