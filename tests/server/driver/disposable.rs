//! The consumer is disposable, the checkpoint is not.

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::stream::RetentionPolicy;
use replay_guard::jetstream::Consumer;

use super::rig::{CONSUMER, Rig, until};
use crate::{on_all_versions, on_versions};

const OTHER: &str = "archiver-rg";

/// Whether a consumer of one of the two names exists.
async fn names(rig: &Rig) -> Vec<&'static str> {
    let stream = rig.context.get_stream(&rig.stream).await.unwrap();
    let mut names = Vec::new();
    for name in [CONSUMER, OTHER] {
        if stream.consumer_info(name).await.is_ok() {
            names.push(name);
        }
    }
    names
}

on_all_versions! {
    // Zeros in the consumer's state file, while the archiver runs and again while it is away. Since 2.14.6 the server can
    // neither load nor make the consumer under its name.
    async fn r3_zeroed_consumer_state(server: Server) {
        let in_use = if server.is_at_least("2.14.6").unwrap() { OTHER } else { CONSUMER };
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        let running = rig.start().await;
        rig.durable(500).await;
        rig.acked().await;
        rig.consumer_written().await;
        rig.cut(|server, stream| server.zero_fill_consumer_state(stream, CONSUMER).unwrap()).await;
        rig.publish(100).await;
        rig.durable(600).await;
        rig.acked_of(in_use).await;
        running.stop().await.unwrap();
        rig.assert_all_once().await;
        assert_eq!(names(&rig).await, [in_use]);

        // The checkpoint says which name is in use.
        rig.publish(100).await;
        let ended = rig.archive_to(700).await;
        assert_eq!((ended.floor, ended.counters.written, ended.counters.skipped), (700, 100, 0));
        assert_eq!(rig.events("consumer_switched").len(), usize::from(in_use == OTHER));
        rig.assert_all_once().await;
        assert_eq!(names(&rig).await, [in_use]);
    }
}

on_all_versions! {
    // The consumer that took over is damaged by the next cut, and so on: no name is the last one.
    async fn every_cut_damages_the_consumer_in_use(server: Server) {
        let kept = server.is_at_least("2.14.6").unwrap();
        let mut rig = Rig::new(server).await;
        rig.publish(100).await;
        let running = rig.start().await;
        rig.durable(100).await;
        rig.acked().await;
        let mut in_use = CONSUMER.to_owned();
        for next in Consumer::names(CONSUMER).skip(1).take(3) {
            rig.consumer_written_of(&in_use).await;
            rig.cut(|server, stream| server.zero_fill_consumer_state(stream, &in_use).unwrap()).await;
            if kept {
                in_use = next;
            }
            rig.publish(50).await;
            rig.durable(rig.payloads.len()).await;
            rig.acked_of(&in_use).await;
        }
        running.stop().await.unwrap();
        rig.assert_all_once().await;
        assert_eq!(rig.events("consumer_switched").len(), if kept { 3 } else { 0 });
        rig.publish(50).await;
        let ended = rig.archive_to(300).await;
        assert_eq!((ended.floor, ended.counters.written, ended.counters.skipped), (300, 50, 0));
        rig.assert_all_once().await;
    }
}

on_versions! {
    async fn an_interest_stream_loses_nothing_when_its_consumer_must_go_back(server: Server) {
        let mut rig = Rig::retaining(server, RetentionPolicy::Interest).await;
        // Interest begins with the consumer.
        let running = rig.start().await;
        until("the consumer is there", async || !names(&rig).await.is_empty()).await;
        rig.publish(100).await;
        rig.durable(100).await;
        rig.acked().await;
        running.stop().await.unwrap();
        rig.publish(100).await;
        let old = { rig.server.stop().await.unwrap(); let old = rig.server.snapshot_store().unwrap(); rig.server.restart().await.unwrap(); rig.back().await; old };
        let lost = rig.publish(100).await;
        // Within a flush the tail will end, wherever the flushes end.
        rig.archive.plan(|plan| plan.tells = true);
        let first_life = rig.start_with(|builder| builder.flush_every(37, std::time::Duration::from_millis(200))).await;
        rig.durable(300).await;
        first_life.stop().await.unwrap();
        assert_eq!(lost, 300);
        // The tail is lost with its numbers; the archive goes back for what the stream holds now.
        rig.cut(|server, _| server.restore_store(&old).unwrap()).await;
        rig.publish(50).await;
        let running = rig.start().await;
        until("the stream is empty", async || rig.stream_state().await.messages == 0).await;
        running.stop().await.unwrap();
        let payloads = rig.archive.durable().iter().filter(|record| record.sequence > 200).count();
        assert_eq!(payloads, 150, "100 of the old life and 50 of the new one");
        rig.assert_published_once();
    }
}

on_versions! {
    // Made again as the operator configured it, it would deliver what comes from now on and pass over what came meanwhile.
    async fn a_consumer_for_new_messages_passes_over_nothing_when_it_is_lost(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(100).await;
        rig.make_consumer(pull::Config { deliver_policy: DeliverPolicy::New, ..Default::default() }).await;
        let stream = rig.context.get_stream(&rig.stream).await.unwrap();
        let running = rig.start().await;
        rig.publish(50).await;
        rig.durable(50).await;
        rig.acked().await;
        running.stop().await.unwrap();
        rig.publish(50).await;
        stream.delete_consumer(CONSUMER).await.unwrap();
        let running = rig.start().await;
        rig.durable(100).await;
        // Once more while the archiver runs, with messages that nobody was there to take.
        rig.archive.flushing.close();
        rig.publish(100).await;
        rig.archive.flushing.reached().await;
        stream.delete_consumer(CONSUMER).await.unwrap();
        rig.publish(50).await;
        rig.archive.flushing.open();
        rig.durable(250).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.forks), (350, 0));
        let sequences: Vec<u64> = rig.archive.durable().iter().map(|record| record.sequence).collect();
        let once: std::collections::BTreeSet<u64> = sequences.iter().copied().collect();
        assert!(once.iter().copied().eq(101..=350) && sequences.len() == 250, "{sequences:?}");
    }
}
