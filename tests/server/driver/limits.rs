//! What the stream drops, and what the archiver may hold.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::jetstream::stream::Config;

use super::rig::{Rig, until};
use crate::{on_all_versions, on_versions};

on_all_versions! {
    async fn c8_a_purge_beyond_the_checkpoint(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        rig.archive_to(500).await;
        rig.publish(200).await;
        let stream = rig.context.get_stream(&rig.stream).await.unwrap();
        stream.purge().sequence(651).await.unwrap();
        let running = rig.start().await;
        rig.durable(550).await;
        rig.publish(50).await;
        rig.durable(600).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written, ended.counters.passed_by), (750, 100, 150));
        assert_eq!(ended.counters.forks, 0);
        let told = rig.events("passed_by");
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(["first", "last", "up_to"].map(|field| told[0].number(field)), [501, 650, 150]);
        rig.assert_stream_once().await;
        // An earlier run told it.
        let running = rig.start().await;
        until("a session", async || running.now().sessions == 1).await;
        assert_eq!(running.stop().await.unwrap().counters.passed_by, 0);
        assert_eq!(rig.events("passed_by").len(), 1);
    }

    async fn c8_a_purge_of_everything_while_the_archiver_runs(server: Server) {
        let mut rig = Rig::new(server).await;
        let running = rig.start().await;
        rig.publish(100).await;
        rig.durable(100).await;
        rig.acked().await;
        rig.archive.writing.close();
        rig.publish(2_000).await;
        rig.archive.writing.reached().await;
        rig.context.get_stream(&rig.stream).await.unwrap().purge().await.unwrap();
        rig.archive.writing.open();
        rig.publish(50).await;
        until("all that is left is archived", async || running.now().floor == 2_150).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!(told(&rig), lost(&rig), "each that is lost, and none of those on their way");
        assert_eq!(ended.counters.passed_by, told(&rig));
        assert!(told(&rig) > 0, "the archiver had taken all of them before the purge");
        rig.assert_stream_once().await;
    }

    async fn c8_a_limit_that_passes_by_a_slow_archiver(server: Server) {
        let mut rig = Rig::with(server, |config| Config { max_messages: 100, ..config }).await;
        let running = rig.start_with(|builder| builder.flush_every(20, Duration::from_millis(200))).await;
        rig.publish(50).await;
        rig.durable(50).await;
        rig.acked().await;
        for round in 1..=3 {
            rig.archive.writing.close();
            rig.publish(500).await;
            rig.archive.writing.reached().await;
            rig.archive.writing.open();
            until("all that is left is archived", async || running.now().floor == 50 + 500 * round).await;
        }
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((told(&rig), ended.counters.passed_by), (lost(&rig), lost(&rig)));
        assert!(lost(&rig) > 0 && ended.counters.forks == 0);
        rig.assert_stream_once().await;
    }
}

/// How many messages the events say are lost at most. No two of them tell of one message.
fn told(rig: &Rig) -> u64 {
    let mut told: Vec<_> = rig.events("passed_by");
    told.sort_by_key(|event| event.number("first"));
    assert!(told.windows(2).all(|pair| pair[0].number("last") < pair[1].number("first")), "{told:?}");
    told.iter().map(|event| event.number("up_to")).sum()
}

/// How many messages are lost.
fn lost(rig: &Rig) -> u64 {
    let durable = rig.archive.durable();
    let held: HashSet<&[u8]> = durable.iter().map(|record| &record.payload[..]).collect();
    assert_eq!(held.len(), durable.len(), "nothing is there twice");
    rig.payloads.iter().filter(|payload| !held.contains(payload.as_bytes())).count() as u64
}

on_versions! {
    async fn m2_large_payloads_and_a_slow_sink(server: Server) {
        const SIZE: usize = 256 * 1024;
        const FLUSH: usize = 2 * 1024 * 1024;
        const COUNT: usize = 120;
        let rig = Rig::new(server).await;
        for number in 0..COUNT {
            let payload = vec![u8::try_from(number).unwrap(); SIZE];
            rig.context.publish(rig.subject("a"), payload.into()).await.unwrap().await.unwrap();
        }
        rig.archive.writing.close();
        let running = rig.start_with(|builder| builder.flush_every(1_000, Duration::from_secs(3_600)).flush_bytes(FLUSH as u64)).await;
        rig.archive.writing.reached().await;
        // What was sent and not acked is with us: in the client's buffer or with the sink.
        let mut most = 0;
        for _ in 0..100 {
            most = most.max(rig.info().await.num_ack_pending);
        }
        rig.archive.writing.open();
        until("all is written", async || {
            most = most.max(rig.info().await.num_ack_pending);
            rig.archive.written() == COUNT
        })
        .await;
        running.stop().await.unwrap();
        assert!(most * SIZE <= 4 * FLUSH, "{most} payloads of {SIZE} bytes, for flushes of {FLUSH}");
        assert!(rig.archive.flushes() >= (COUNT * SIZE / FLUSH) as u64 - 1, "{}", rig.archive.flushes());
        rig.assert_stream_once().await;
    }
}
