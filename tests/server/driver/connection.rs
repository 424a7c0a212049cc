//! The server goes away and comes back.

use std::time::Duration;

use async_nats::jetstream::consumer::pull;

use super::rig::{CONSUMER, Rig, until};
use crate::on_versions;

on_versions! {
    async fn m1_restarts_in_the_middle_of_pulls(server: Server) {
        let mut rig = Rig::new(server).await;
        let running = rig.start().await;
        for round in 1..=3_usize {
            rig.publish(2_000).await;
            rig.durable(2_000 * (round - 1) + 300).await;
            if round % 2 == 0 {
                rig.server.stop().await.unwrap();
            }
            rig.server.restart().await.unwrap();
            rig.back().await;
        }
        rig.durable(6_000).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.forks), (6_000, 0));
        rig.assert_all_once().await;
    }

    async fn m1_records_in_the_sink_over_a_restart_are_flushed_in_time(server: Server) {
        let mut rig = Rig::new(server).await;
        let ack_wait = Duration::from_secs(120);
        rig.make_consumer(pull::Config { ack_wait, ..Default::default() }).await;
        // 50 records, and neither count nor age makes a flush due before the restart.
        let running = rig.start_with(|builder| builder.flush_every(1_000, Duration::from_secs(10))).await;
        rig.publish(50).await;
        until("all is written", async || rig.archive.written() == 50).await;
        assert_eq!(rig.archive.count(), 0);
        rig.server.restart().await.unwrap();
        rig.back().await;
        // New records come at once, old ones only after the ack deadline: longer than this waits.
        rig.publish(10).await;
        until("all is flushed", async || rig.archive.count() == 60).await;
        let ended = running.stop().await.unwrap();
        assert_eq!(ended.floor, 60);
        rig.assert_all_once().await;
    }

    async fn a_server_that_is_away_long_enough_to_be_asked_in_vain(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(100).await;
        let running = rig.start().await;
        rig.durable(100).await;
        rig.archive.flushing.close();
        rig.publish(50).await;
        rig.archive.flushing.reached().await;
        rig.server.kill().unwrap();
        rig.archive.flushing.open();
        rig.event("unverified").await;
        assert!(rig.archive.count() > 100, "durable, and held");
        rig.server.restart().await.unwrap();
        rig.back().await;
        rig.publish(100).await;
        rig.durable(250).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.unverified), (250, 0));
        rig.assert_all_once().await;
    }

    async fn a_sink_that_keeps_records_back_while_the_server_is_away(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_wait: Duration::from_secs(2), ..Default::default() }).await;
        rig.archive.plan(|plan| plan.keep_back = 10);
        // By count: ten that came late would all be kept back, and nothing would be to verify.
        let running = rig.start_with(|builder| builder.flush_every(50, Duration::from_secs(20))).await;
        rig.archive.flushing.close();
        rig.publish(50).await;
        rig.archive.flushing.reached().await;
        rig.server.kill().unwrap();
        rig.archive.flushing.open();
        rig.event("unverified").await;
        rig.server.restart().await.unwrap();
        rig.back().await;
        rig.publish(100).await;
        until("all but what is kept back is archived", async || rig.archive.count() >= 140 || running.is_over()).await;
        assert_eq!(running.stop().await.unwrap().floor, 150);
        let running = rig.start().await;
        rig.acked().await;
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }

    async fn a_clean_stop_flushes_and_acks(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(250).await;
        let running = rig.start_with(|builder| builder.flush_every(1_000, Duration::from_secs(3_600))).await;
        until("all is written", async || rig.archive.written() == 250).await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.unverified, ended.counters.archived), (250, 0, 250));
        // The acks are on their way; the server takes its time with them.
        rig.acked().await;
        let info = rig.info().await;
        assert_eq!((info.num_ack_pending, info.num_pending, info.ack_floor.stream_sequence), (0, 0, 250));
        assert_eq!(info.config.durable_name.as_deref(), Some(CONSUMER), "a configuration without a name is given one");
        let running = rig.start().await;
        until("a session", async || running.now().sessions == 1).await;
        let again = running.stop().await.unwrap();
        assert_eq!((again.counters.offered, again.counters.written, again.counters.skipped, again.floor), (0, 0, 0, 250));
        rig.assert_all_once().await;
    }

    async fn a_stop_while_the_server_is_away_takes_seconds(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(50).await;
        let running = rig.start_with(|builder| builder.flush_every(1_000, Duration::from_secs(3_600))).await;
        until("all is written", async || rig.archive.written() == 50).await;
        rig.server.kill().unwrap();
        let ended = running.stop().await.unwrap();
        assert_eq!(ended.unverified, 50, "said, not hidden");
        rig.server.restart().await.unwrap();
        rig.back().await;
        let ended = rig.start().await;
        // What was durable without a checkpoint is written again, for a sink that keeps no claims; nothing is missing.
        until("all is archived", async || ended.now().floor == 50).await;
        ended.stop().await.unwrap();
        rig.acked().await;
    }

    async fn an_aborted_archiver_loses_nothing(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_wait: Duration::from_secs(1), ..Default::default() }).await;
        rig.publish(1_000).await;
        for at in [100, 500, 900] {
            let running = rig.start_after_abort().await;
            rig.durable(at).await;
            running.abort().await;
        }
        let running = rig.start_after_abort().await;
        until("all is archived", async || running.now().floor == 1_000).await;
        running.stop().await.unwrap();
        let copies = rig.archive.copies();
        assert_eq!(copies.len(), 1_000);
        let twice = copies.values().filter(|count| **count > 1).count();
        assert!(twice <= 300, "{twice} twice: more than one flush each");
    }
}
