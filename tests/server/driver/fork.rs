//! The stream lost its tail, and gives the same sequences to new messages.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::stream::RetentionPolicy;
use replay_guard::DriverBuilder;

use super::rig::{AckTap, CONSUMER, Rig, Running, spawn, until};
use super::sink::Gate;
use super::store::held_up;
use crate::on_all_versions;

/// Puts the store back to the state of 900 messages, with the consumer's state of now or of then.
struct At900 {
    snapshot: PathBuf,
}

impl At900 {
    /// Archives 900 and keeps the store. The driver goes on.
    async fn reach(rig: &mut Rig) -> (Self, Running) {
        Self::reach_with(rig, |builder| builder).await
    }

    async fn reach_with(
        rig: &mut Rig,
        change: impl Fn(DriverBuilder) -> DriverBuilder + Send + Sync,
    ) -> (Self, Running) {
        rig.publish(900).await;
        let running = rig.start_with(change).await;
        rig.durable(900).await;
        rig.acked().await;
        let this = Self::keep(rig).await;
        (this, running)
    }

    async fn keep(rig: &mut Rig) -> Self {
        rig.server.stop().await.unwrap();
        let snapshot = rig.server.snapshot_store().unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        Self { snapshot }
    }

    async fn put_back(&self, rig: &mut Rig, consumer_state: Option<Vec<u8>>) {
        rig.cut(|server, stream| {
            server.restore_store(&self.snapshot).unwrap();
            if let Some(state) = consumer_state {
                server.put_consumer_state(stream, CONSUMER, &state).unwrap();
            }
        })
        .await;
        assert_eq!(rig.stream_state().await.last_sequence, 900);
    }
}

/// A hundred records are one flush, however long they take to come.
fn by_count(builder: DriverBuilder) -> DriverBuilder {
    builder.flush_every(100, Duration::from_secs(20))
}

/// The consumer's state of now.
async fn consumer_state(rig: &Rig) -> Vec<u8> {
    rig.acked().await;
    rig.consumer_written().await;
    rig.server.consumer_state(&rig.stream, CONSUMER).unwrap()
}

/// One fork at 900, 901..1000 of the old life kept, everything of the new life written.
async fn assert_forked(rig: &Rig) {
    rig.durable(1_200).await;
    rig.acked().await;
    rig.assert_all_once().await;
    let forks = rig.events("fork");
    assert_eq!(forks.len(), 1, "{forks:?}");
    assert_eq!(forks[0].number("at"), 900, "{forks:?}");
    assert_eq!(rig.events("consumer_moved")[0].number("to"), 901);
}

on_all_versions! {
    async fn f1_archiver_back_before_the_producers(server: Server) {
        let mut rig = Rig::new(server).await;
        let (store, running) = At900::reach(&mut rig).await;
        rig.publish(100).await;
        rig.durable(1_000).await;
        store.put_back(&mut rig, None).await;
        rig.event("consumer_moved").await;
        rig.publish(200).await;
        assert_forked(&rig).await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.forks, ended.counters.moves), (1_100, 1, 1));
    }

    async fn f1_producers_back_before_the_archiver(server: Server) {
        let mut rig = Rig::new(server).await;
        let (store, running) = At900::reach(&mut rig).await;
        rig.publish(100).await;
        rig.durable(1_000).await;
        running.stop().await.unwrap();
        store.put_back(&mut rig, None).await;
        rig.publish(200).await;
        let running = rig.start().await;
        assert_forked(&rig).await;
        assert_eq!(running.stop().await.unwrap().floor, 1_100);
    }

    async fn f1_producers_and_archiver_back_at_once(server: Server) {
        let mut rig = Rig::new(server).await;
        let (store, running) = At900::reach(&mut rig).await;
        rig.publish(100).await;
        rig.durable(1_000).await;
        store.put_back(&mut rig, None).await;
        rig.publish(200).await;
        assert_forked(&rig).await;
        running.stop().await.unwrap();
    }

    async fn f2_consumer_ahead_archiver_back_before_the_producers(server: Server) {
        let mut rig = Rig::new(server).await;
        let (store, running) = At900::reach(&mut rig).await;
        rig.publish(100).await;
        rig.durable(1_000).await;
        let state = consumer_state(&rig).await;
        store.put_back(&mut rig, Some(state)).await;
        rig.event("consumer_moved").await;
        rig.publish(200).await;
        assert_forked(&rig).await;
        running.stop().await.unwrap();
    }

    async fn f2_consumer_ahead_producers_back_before_the_archiver(server: Server) {
        let mut rig = Rig::new(server).await;
        let (store, running) = At900::reach(&mut rig).await;
        rig.publish(100).await;
        rig.durable(1_000).await;
        let state = consumer_state(&rig).await;
        running.stop().await.unwrap();
        store.put_back(&mut rig, Some(state)).await;
        rig.publish(200).await;
        let running = rig.start().await;
        assert_forked(&rig).await;
        running.stop().await.unwrap();
    }

    // The consumer's configuration is lost too: the one made anew adopts the old state, far above the stream.
    async fn f2_a_new_consumer_adopts_the_state_of_the_old_life(server: Server) {
        let mut rig = Rig::new(server).await;
        let (store, running) = At900::reach(&mut rig).await;
        rig.publish(100).await;
        rig.durable(1_000).await;
        let state = consumer_state(&rig).await;
        running.stop().await.unwrap();
        rig.cut(|server, stream| {
            server.restore_store(&store.snapshot).unwrap();
            server.put_consumer_state(stream, CONSUMER, &state).unwrap();
            server.remove_consumer_meta(stream, CONSUMER).unwrap();
        })
        .await;
        rig.publish(200).await;
        let running = rig.start().await;
        rig.durable(1_200).await;
        rig.acked().await;
        rig.assert_all_once().await;
        running.stop().await.unwrap();
    }

    async fn f3_records_in_the_sink_when_the_tail_is_lost(server: Server) {
        let rig = Rig::new(server).await;
        pending_in_the_sink(rig).await;
    }

    async fn f3_records_in_the_sink_when_the_tail_of_a_work_queue_is_lost(server: Server) {
        let rig = Rig::retaining(server, RetentionPolicy::WorkQueue).await;
        let rig = pending_in_the_sink(rig).await;
        assert_eq!(rig.stream_state().await.messages, 0, "all was acked");
    }

    async fn f3_tail_lost_between_checkpoint_and_ack(server: Server) {
        let rig = Rig::new(server).await;
        between_checkpoint_and_ack(rig).await;
    }

    async fn f3_tail_of_a_work_queue_lost_between_checkpoint_and_ack(server: Server) {
        let rig = Rig::retaining(server, RetentionPolicy::WorkQueue).await;
        between_checkpoint_and_ack(rig).await;
    }

    async fn f3_deliveries_in_the_buffer_when_the_tail_is_lost(server: Server) {
        let rig = Rig::new(server).await;
        in_the_buffer(rig, false).await.assert_stream_once().await;
    }

    async fn f3_deliveries_that_were_kept_alive_in_the_buffer_when_the_tail_is_lost(server: Server) {
        let rig = Rig::new(server).await;
        in_the_buffer(rig, true).await.assert_stream_once().await;
    }

    async fn f3_deliveries_of_a_work_queue_kept_alive_in_the_buffer_when_the_tail_is_lost(server: Server) {
        let rig = Rig::retaining(server, RetentionPolicy::WorkQueue).await;
        let rig = in_the_buffer(rig, true).await;
        assert_eq!(rig.stream_state().await.messages, 0, "all was acked");
    }
}

/// 99 deliveries of the old life wait in the client, behind one that the sink is taking, when the tail is lost.
/// `kept_alive`: in-progress acks of them were sent before.
async fn in_the_buffer(mut rig: Rig, kept_alive: bool) -> Rig {
    let (store, running) = At900::reach(&mut rig).await;
    rig.archive.writing.close();
    let mut tap = AckTap::new(&rig).await;
    rig.publish(100).await;
    rig.archive.writing.reached().await;
    until("all is delivered", async || rig.info().await.delivered.stream_sequence == 1_000).await;
    let mut kept = HashSet::new();
    until("all that waits is kept alive", async || {
        kept.extend(tap.take().await.into_iter().filter(|(_, word)| word == "+WPI").map(|(id, _)| id.sequence));
        !kept_alive || (902..=1_000).all(|sequence| kept.contains(&sequence))
    })
    .await;
    rig.consumer_written().await;
    let state = rig.server.consumer_state(&rig.stream, CONSUMER).unwrap();
    store.put_back(&mut rig, Some(state)).await;
    let old: HashSet<_> = rig.archive.durable().iter().map(replay_guard::Record::id).collect();
    rig.publish(100).await;
    rig.archive.writing.open();
    // The record that was being written is in the archive and in no checkpoint; the 99 behind it never come again.
    rig.durable(1_001).await;
    rig.acked().await;
    assert!(rig.archive.copies().values().all(|copies| *copies == 1));
    let ended = running.stop().await.unwrap();
    assert_eq!(ended.floor, 1_000);
    assert!(rig.archive.count() <= 1_001, "buffered deliveries of the lost connection were written");
    assert!(rig.archive.durable().iter().filter(|record| old.contains(&record.id())).count() == 900);
    rig
}

/// 100 records of the old life are with the sink when the tail is lost; it is flushed when the new life is there.
async fn pending_in_the_sink(mut rig: Rig) -> Rig {
    let (store, running) = At900::reach_with(&mut rig, by_count).await;
    rig.archive.flushing.close();
    rig.publish(100).await;
    rig.archive.flushing.reached().await;
    until("all is delivered", async || rig.info().await.delivered.stream_sequence == 1_000).await;
    rig.consumer_written().await;
    let state = rig.server.consumer_state(&rig.stream, CONSUMER).unwrap();
    store.put_back(&mut rig, Some(state)).await;
    let mut tap = AckTap::new(&rig).await;
    rig.publish(100).await;
    rig.archive.flushing.open();
    rig.durable(1_100).await;
    rig.acked().await;
    rig.assert_published_once();
    running.stop().await.unwrap();
    let fork = rig.event("fork").await;
    assert_eq!(fork.number("at"), 900);
    let durable: HashSet<_> = rig.archive.durable()[900..].iter().map(replay_guard::Record::id).collect();
    let acks = tap.take().await;
    let old_life =
        rig.archive.durable().iter().filter(|record| record.sequence > 900).map(|r| r.published).min().unwrap();
    let new: Vec<_> = acks.iter().filter(|(_, word)| word == "+ACK").collect();
    assert_eq!(new.len(), 100, "one ack for each new message");
    assert!(new.iter().all(|(id, _)| durable.contains(id) && id.published > old_life));
    rig
}

/// The records are durable and verified; while the checkpoint is saved the tail is lost and new messages take its place.
async fn between_checkpoint_and_ack(mut rig: Rig) {
    let gate = Gate::new();
    let store = held_up(&rig, &gate);
    rig.publish(900).await;
    let running = spawn(by_count(rig.builder().await).store(store).open(rig.archive.sink()).await.unwrap());
    rig.durable(900).await;
    rig.acked().await;
    let store = At900::keep(&mut rig).await;
    gate.close();
    rig.publish(100).await;
    gate.reached().await;
    assert_eq!(rig.archive.count(), 1_000);
    until("all is delivered", async || rig.info().await.delivered.stream_sequence == 1_000).await;
    rig.consumer_written().await;
    let state = rig.server.consumer_state(&rig.stream, CONSUMER).unwrap();
    store.put_back(&mut rig, Some(state)).await;
    let mut tap = AckTap::new(&rig).await;
    rig.publish(100).await;
    gate.open();
    rig.durable(1_100).await;
    rig.acked().await;
    rig.assert_published_once();
    running.stop().await.unwrap();
    let new: HashSet<_> = rig.archive.durable()[1_000..].iter().map(replay_guard::Record::id).collect();
    let acks = tap.take().await;
    assert!(acks.iter().all(|(id, _)| new.contains(id)), "an ack of the old life was sent");
    assert_eq!(acks.iter().filter(|(_, word)| word == "+ACK").count(), 100);
}
