//! The server forgot what was acked.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::{self, consumer::Config};
use replay_guard::DriverBuilder;

use super::rig::{AckTap, CONSUMER, Rig, patient, spawn, until};
use super::sink::Gate;
use super::store::held_up;
use crate::on_all_versions;

on_all_versions! {
    async fn r1_an_emptied_consumer_state_writes_nothing_again(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        let running = rig.start_with(patient).await;
        rig.durable(1_000).await;
        rig.acked().await;
        rig.cut(|server, stream| server.empty_consumer_state(stream, CONSUMER).unwrap()).await;
        until("all was skipped", async || running.now().counters.skipped >= 1_000).await;
        rig.acked().await;
        let floor = running.now().floor;
        assert_eq!(floor, 1_000, "the floor is not moved back");
        running.stop().await.unwrap();
        assert_eq!(rig.archive.written(), 1_000);
        rig.assert_all_once().await;
        let rewinds = rig.events("rewind");
        assert_eq!(rewinds.len(), 1, "{rewinds:?}");
        let runs = rig.events("skip_run");
        assert_eq!(runs.len(), 1, "{runs:?}");
        assert_eq!((runs[0].number("count"), runs[0].number("first"), runs[0].number("last")), (1_000, 1, 1_000));
    }

    async fn r1_while_the_archiver_is_away(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        rig.archive_to(1_000).await;
        rig.consumer_written().await;
        rig.cut(|server, stream| server.empty_consumer_state(stream, CONSUMER).unwrap()).await;
        rig.publish(50).await;
        let ended = rig.archive_to(1_050).await;
        assert_eq!((ended.floor, ended.counters.written), (1_050, 50));
        assert_eq!(rig.archive.written(), 1_050);
        rig.assert_all_once().await;
    }

    async fn r2_a_consumer_state_from_half_way(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        let running = rig.start_with(patient).await;
        rig.durable(500).await;
        rig.acked().await;
        rig.consumer_written().await;
        let half = rig.server.consumer_state(&rig.stream, CONSUMER).unwrap();
        rig.publish(500).await;
        rig.durable(1_000).await;
        rig.acked().await;
        rig.consumer_written().await;
        rig.cut(|server, stream| server.put_consumer_state(stream, CONSUMER, &half).unwrap()).await;
        rig.publish(100).await;
        rig.durable(1_100).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 1_100);
        assert_eq!(rig.archive.written(), 1_100, "only what is above the checkpoint is written");
        rig.assert_all_once().await;
        let runs = rig.events("skip_run");
        assert_eq!((runs.len(), runs[0].number("first"), runs[0].number("last")), (1, 501, 1_000), "{runs:?}");
    }

    async fn r4_an_emptied_consumer_configuration(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        let running = rig.start_with(patient).await;
        rig.durable(1_000).await;
        rig.acked().await;
        rig.consumer_written().await;
        rig.cut(|server, stream| server.empty_consumer_meta(stream, CONSUMER).unwrap()).await;
        rig.publish(100).await;
        rig.durable(1_100).await;
        rig.acked().await;
        let made = rig.event("consumer_made").await;
        assert_eq!(made.number("from"), 1_001, "made again above the floor");
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.skipped), (1_100, 0));
        rig.assert_all_once().await;
    }

    async fn r4_a_lost_consumer_while_the_archiver_is_away(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        rig.archive_to(1_000).await;
        rig.cut(|server, stream| server.remove_consumer(stream, CONSUMER).unwrap()).await;
        rig.publish(100).await;
        let ended = rig.archive_to(1_100).await;
        assert_eq!((ended.floor, ended.counters.skipped, ended.counters.written), (1_100, 0, 100));
        rig.assert_all_once().await;
    }

    async fn r5_an_ephemeral_consumer_over_two_runs(server: Server) {
        let mut rig = Rig::new(server).await;
        let ephemeral = |builder: DriverBuilder| {
            builder.consumer_config(Config { inactive_threshold: Duration::from_secs(1), ..Default::default() })
        };
        rig.publish(1_000).await;
        let running = rig.start_with(ephemeral).await;
        rig.durable(1_000).await;
        rig.acked().await;
        running.stop().await.unwrap();
        let stream = rig.context.get_stream(&rig.stream).await.unwrap();
        until("the consumer is gone", async || stream.consumer_info(CONSUMER).await.is_err()).await;
        rig.publish(100).await;
        let running = rig.start_with(ephemeral).await;
        rig.durable(1_100).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written, ended.counters.skipped), (1_100, 100, 0));
        rig.assert_all_once().await;
    }

    async fn r6_acks_lost_with_the_connection(server: Server) {
        let mut rig = Rig::new(server).await;
        let gate = Gate::new();
        let client = rig.server.client().await.unwrap();
        let connects = || client.statistics().connects.load(Ordering::Relaxed);
        let builder = rig.builder_on(jetstream::new(client.clone()), &rig.stream).store(held_up(&rig, &gate));
        // One flush, however long the records take to come.
        let builder = builder.flush_every(100, Duration::from_secs(20));
        let running = spawn(builder.open(rig.archive.sink()).await.unwrap());
        until("a session", async || running.now().sessions == 1).await;
        let mut tap = AckTap::new(&rig).await;
        gate.close();
        rig.publish(100).await;
        // Durable and verified; the connection is cut before the checkpoint is.
        gate.reached().await;
        let before = connects();
        client.force_reconnect().await.unwrap();
        until("another connection", async || connects() > before).await;
        gate.open();
        until("all is skipped", async || running.now().counters.skipped >= 100).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written, ended.counters.skipped), (100, 100, 100));
        let acks = tap.take().await.into_iter().filter(|(_, word)| word == "+ACK").count();
        assert_eq!(acks, 100, "one for each, after the redelivery");
        assert_eq!(rig.events("rewind").len(), 1);
        rig.assert_all_once().await;
    }

    async fn r7_a_consumer_deleted_while_the_archiver_runs(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(100).await;
        let running = rig.start().await;
        rig.durable(100).await;
        rig.acked().await;
        let stream = rig.context.get_stream(&rig.stream).await.unwrap();
        for round in 1..=3_u64 {
            stream.delete_consumer(CONSUMER).await.unwrap();
            rig.publish(50).await;
            rig.durable(usize::try_from(100 + 50 * round).unwrap()).await;
            rig.acked().await;
        }
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written), (250, 250));
        rig.assert_all_once().await;
    }

    async fn w1_an_operators_reset_is_skipped_and_reported(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        rig.archive_to(500).await;
        operators_reset(&rig).await;
        let running = rig.start().await;
        until("all was skipped", async || running.now().counters.skipped >= 500).await;
        rig.acked().await;
        running.stop().await.unwrap();
        assert_eq!(rig.archive.written(), 500);
        let run = rig.event("skip_run").await;
        assert_eq!((run.number("count"), run.number("first"), run.number("last")), (500, 1, 500));
    }

    async fn w1_an_operators_reset_while_the_archiver_runs(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        let running = rig.start().await;
        rig.durable(500).await;
        rig.acked().await;
        operators_reset(&rig).await;
        rig.publish(50).await;
        rig.durable(550).await;
        rig.acked().await;
        running.stop().await.unwrap();
        assert_eq!(rig.archive.written(), 550);
        rig.assert_all_once().await;
    }

    async fn w1_the_operators_override_writes_again_once(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        rig.archive_to(500).await;
        let mut driver = rig.open().await.unwrap();
        driver.replay_from(201).await.unwrap();
        let running = spawn(driver);
        rig.durable(800).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 500);
        let wanted = rig.event("replay_wanted").await;
        assert_eq!((wanted.number("from"), wanted.number("last")), (201, 500));
        rig.publish(10).await;
        let ended = rig.archive_to(810).await;
        assert_eq!((ended.counters.written, ended.counters.skipped), (10, 0), "once, not with every start");
        for ((id, _), copies) in rig.archive.copies() {
            assert_eq!(copies, if (201..=500).contains(&id.sequence) { 2 } else { 1 }, "{id}");
        }
    }
}

/// Moves the consumer back to 1, as an operator does: by a reset where the server has it, else by making it anew.
async fn operators_reset(rig: &Rig) {
    let subject = format!("CONSUMER.RESET.{}.{CONSUMER}", rig.stream);
    if rig.server.is_at_least("2.14.0").unwrap() {
        let request = serde_json::json!({ "seq": 1 });
        let answer: serde_json::Value = rig.context.request(subject, &request).await.unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        return;
    }
    let stream = rig.context.get_stream(&rig.stream).await.unwrap();
    let mut config = stream.consumer_info(CONSUMER).await.unwrap().config;
    stream.delete_consumer(CONSUMER).await.unwrap();
    config.deliver_policy = async_nats::jetstream::consumer::DeliverPolicy::All;
    stream.create_consumer(config).await.unwrap();
}
