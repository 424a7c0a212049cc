//! Acks, flushes and failing sinks.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::{HeaderMap, HeaderValue};
use replay_guard::{DriverError, GuardError};

use super::rig::{AckTap, CONSUMER, Rig, Still, spawn, until};
use super::sink::Broken;
use crate::on_versions;

on_versions! {
    async fn a1_an_ack_deadline_shorter_than_a_flush(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_wait: Duration::from_secs(1), ..Default::default() }).await;
        let mut tap = AckTap::new(&rig).await;
        rig.archive.flushing.close();
        rig.publish(1_000).await;
        // What comes again before the flush counts as well: then some are left for another one.
        let running = rig.start_with(|builder| builder.flush_every(1_000, Duration::from_secs(20))).await;
        rig.archive.flushing.reached().await;
        // While the flush is held up, every delivery is kept alive, again and again.
        let mut kept = std::collections::BTreeMap::new();
        until("all are kept alive", async || {
            for (id, word) in tap.take().await {
                assert_eq!(word, "+WPI", "{id}");
                *kept.entry(id).or_insert(0) += 1;
            }
            kept.len() == 1_000 && kept.values().all(|count| *count >= 3)
        })
        .await;
        rig.archive.flushing.open();
        rig.durable(1_000).await;
        rig.acked().await;
        running.stop().await.unwrap();
        // On a busy machine one may be late, and be delivered again: it is not written again.
        assert_eq!(rig.archive.written(), 1_000);
        rig.assert_all_once().await;
    }

    async fn a1_what_waits_in_the_client_is_kept_alive_as_well(server: Server) {
        let mut rig = Rig::new(server).await;
        let ack_wait = Duration::from_secs(1);
        rig.make_consumer(pull::Config { ack_wait, max_ack_pending: 10_000, ..Default::default() }).await;
        let mut tap = AckTap::new(&rig).await;
        rig.archive.flushing.close();
        rig.publish(4_000).await;
        let running = rig.start_with(|builder| builder.flush_every(2_000, Duration::from_secs(20))).await;
        rig.archive.flushing.reached().await;
        // The flush has two thousand of them; the pull asked for more, which nobody takes as long as it is held up.
        let mut kept = std::collections::BTreeMap::new();
        let mut still = Still::new();
        still.until("all that was delivered is kept alive", async || {
            for (id, word) in tap.take().await {
                assert_eq!(word, "+WPI", "{id}");
                *kept.entry(id).or_insert(0) += 1;
            }
            let delivered = rig.info().await.delivered.stream_sequence;
            delivered > 2_500 && kept.len() as u64 == delivered && kept.values().all(|count| *count >= 6)
        })
        .await;
        rig.archive.flushing.open();
        still.until("all is acked", async || {
            let info = rig.info().await;
            rig.archive.count() >= 4_000 && (info.num_pending, info.num_ack_pending) == (0, 0)
        })
        .await;
        // With the next pull the server would deliver again what was late.
        let delivered = rig.info().await.delivered.consumer_sequence;
        assert!(delivered == 4_000 || still.longer_than(500), "{delivered} deliveries, {still:?}");
        running.stop().await.unwrap();
        assert_eq!(rig.archive.written(), 4_000);
        rig.assert_all_once().await;
    }

    async fn a4_a_sink_that_takes_its_time_over_each_record_burns_no_delivery(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_wait: Duration::from_secs(2), ..Default::default() }).await;
        // All that one pull brings takes more than twice the ack deadline.
        rig.archive.plan(|plan| plan.write_takes = Duration::from_millis(150));
        rig.publish(30).await;
        let running = rig.start_with(|builder| builder.flush_every(30, Duration::from_secs(3_600))).await;
        let mut still = Still::new();
        still.until("all is acked", async || {
            let info = rig.info().await;
            rig.archive.count() >= 30 && (info.num_pending, info.num_ack_pending) == (0, 0)
        })
        .await;
        let delivered = rig.info().await.delivered.consumer_sequence;
        assert!(delivered == 30 || still.longer_than(1_000), "{delivered} deliveries, {still:?}");
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }

    async fn a2_no_acks_no_archive(server: Server) {
        let rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_policy: AckPolicy::None, ..Default::default() }).await;
        let error = rig.open().await.unwrap_err();
        assert!(error.is_setting());
        assert!(error.to_string().contains("ack policy is none"), "{error}");
    }

    async fn a3_a_flush_count_above_the_ack_window(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { max_ack_pending: 1_000, ..Default::default() }).await;
        rig.publish(5_000).await;
        let running = rig.start_with(|builder| builder.flush_every(2_000, Duration::from_secs(3_600))).await;
        // Only a full window makes a flush due.
        rig.durable(5_000).await;
        assert!(rig.archive.flushes() >= 5);
        assert_eq!(rig.event("setting").await.fields["consumer"], CONSUMER);
        running.stop().await.unwrap();
        rig.acked().await;
        rig.assert_all_once().await;
    }

    async fn a4_an_ack_deadline_much_shorter_than_the_flush_age(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_wait: Duration::from_secs(2), ..Default::default() }).await;
        let mut tap = AckTap::new(&rig).await;
        let running = rig.start_with(|builder| builder.flush_every(1_000, Duration::from_secs(10))).await;
        rig.publish(100).await;
        let mut kept = std::collections::BTreeMap::new();
        let mut still = Still::new();
        still.until("all is acked", async || {
            for (id, _) in tap.take().await.into_iter().filter(|(_, word)| word == "+WPI") {
                *kept.entry(id).or_insert(0) += 1;
            }
            let info = rig.info().await;
            rig.archive.count() >= 100 && (info.num_pending, info.num_ack_pending) == (0, 0)
        })
        .await;
        assert!(kept.len() == 100 && kept.values().all(|times| *times >= 4), "{kept:?}");
        let delivered = rig.info().await.delivered.consumer_sequence;
        assert!(delivered == 100 || still.longer_than(1_000), "{delivered} deliveries, {still:?}");
        let counters = running.stop().await.unwrap().counters;
        assert_eq!(counters.written, 100);
        assert!(counters.skipped == 0 || still.longer_than(1_000), "{} skipped, {still:?}", counters.skipped);
        rig.assert_all_once().await;
    }

    async fn a5_a_sink_that_fails_after_a_write_gets_no_ack(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(100).await;
        rig.archive_to(100).await;
        rig.acked().await;
        rig.publish(100).await;
        let mut tap = AckTap::new(&rig).await;
        let flushes = rig.archive.flushes();
        for fail_write in [true, false] {
            rig.archive.plan(|plan| {
                if fail_write {
                    plan.fail_write = Some(151);
                } else {
                    plan.fail_flush = Some(flushes + 1);
                }
            });
            // By count: age would make a flush due before the write that fails.
            let running = rig.start_with(|builder| builder.flush_every(100, Duration::from_secs(3_600))).await;
            let error = running.end().await;
            assert!(matches!(&error, DriverError::Guard(GuardError::Sink { .. })) && !error.is_setting(), "{error}");
            assert_eq!(rig.archive.count(), 100);
            assert_eq!(tap.take().await.iter().filter(|(_, word)| word != "+WPI").count(), 0);
            let info = rig.info().await;
            assert_eq!((info.ack_floor.stream_sequence, info.num_ack_pending > 0), (100, true));
            let driver = rig.open().await.unwrap();
            assert_eq!((driver.report().floor, driver.report().spans), (100, 1), "the checkpoint says the same");
        }
    }

    async fn a5_another_sink_goes_on(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.archive.plan(|plan| (plan.fail_write, plan.fail_flush) = (Some(250), Some(3)));
        let archive = rig.archive.clone();
        let mut calls = 0;
        let factory = move || {
            calls += 1;
            // It takes three calls to make the second one.
            let sink = if calls == 2 || calls == 3 { Err(Broken("no sink")) } else { Ok(archive.sink()) };
            async { sink }
        };
        let running = spawn(rig.builder().await.open_with(factory).await.unwrap());
        rig.publish(1_000).await;
        rig.durable(1_000).await;
        rig.acked().await;
        // A sink fails while the server is away.
        let flushes = rig.archive.flushes();
        rig.archive.plan(|plan| plan.fail_flush = Some(flushes + 1));
        rig.archive.flushing.close();
        rig.publish(100).await;
        rig.archive.flushing.reached().await;
        rig.server.kill().unwrap();
        let reopened = || rig.events("retry").iter().filter(|event| event.fields["what"] == "reopen").count();
        let before = reopened();
        rig.archive.flushing.open();
        until("a new sink is wanted", async || reopened() > before).await;
        rig.server.restart().await.unwrap();
        rig.back().await;
        rig.publish(100).await;
        rig.durable(1_200).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.archived), (1_200, 1_200));
        assert!(rig.archive.sinks() >= 4, "{}", rig.archive.sinks());
        rig.assert_all_once().await;
    }

    async fn a7_a_record_that_can_never_be_stored(server: Server) {
        let mut rig = Rig::new(server).await;
        let poison = format!("{}-41", rig.stream);
        rig.archive.plan(|plan| plan.reject.push(poison.clone()));
        rig.publish(100).await;
        let mut tap = AckTap::new(&rig).await;
        let running = rig.start().await;
        rig.durable(99).await;
        rig.acked().await;
        let words = tap.take().await;
        let of = |wanted: &str| words.iter().filter(|(_, word)| word == wanted).map(|(id, _)| id.sequence).collect::<Vec<_>>();
        assert_eq!((of("+TERM"), of("+ACK").len()), (vec![42], 99));
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.rejected, ended.counters.archived), (100, 1, 99));
        assert_eq!(rig.event("rejected").await.number("sequence"), 42);
        assert_eq!(rig.look_once().await.counters.written, 0);
        assert!(rig.archive.durable().iter().all(|record| record.payload != poison));
    }

    async fn a8_empty_payloads_and_repeated_headers_are_kept(server: Server) {
        let rig = Rig::new(server).await;
        let mut headers = HeaderMap::new();
        headers.append("Twice", "1");
        headers.append("Twice", "2");
        let publish = |headers: HeaderMap| rig.context.publish_with_headers(rig.subject("a"), headers, "".into());
        publish(headers.clone()).await.unwrap().await.unwrap();
        publish(HeaderMap::new()).await.unwrap().await.unwrap();
        let mut one = HeaderMap::new();
        one.insert("Plan", "x");
        rig.context.publish_with_headers(rig.subject("b"), one.clone(), "payload".into()).await.unwrap().await.unwrap();
        rig.archive_to(3).await;
        rig.acked().await;
        let durable = rig.archive.durable();
        assert_eq!(durable[0].headers.get_all("Twice").map(HeaderValue::as_str).collect::<Vec<_>>(), ["1", "2"]);
        assert!(durable[0].payload.is_empty() && durable[1].payload.is_empty() && durable[1].headers.is_empty());
        assert_eq!((durable[2].headers.get("Plan").map(HeaderValue::as_str), &durable[2].payload[..]), (Some("x"), &b"payload"[..]));
        assert_eq!(durable[2].subject.as_str(), rig.subject("b"));
        assert_eq!(rig.look_once().await.counters.written, 0);
    }

    async fn a_sink_that_keeps_records_back(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_wait: Duration::from_secs(2), ..Default::default() }).await;
        rig.archive.plan(|plan| plan.keep_back = 30);
        let running = rig.start().await;
        rig.publish(1_000).await;
        rig.durable(970).await;
        rig.server.restart().await.unwrap();
        rig.back().await;
        rig.publish(100).await;
        rig.durable(1_070).await;
        assert_eq!(running.stop().await.unwrap().floor, 1_100, "a stop flushes everything");
        // What was kept back over the restart has no acker any more: it comes again, and is skipped.
        let running = rig.start().await;
        rig.acked().await;
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }

    async fn a_sink_that_is_full_is_flushed(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.archive.plan(|plan| plan.full_after = Some(7));
        rig.publish(70).await;
        let running = rig.start_with(|builder| builder.flush_every(1_000, Duration::from_secs(3_600))).await;
        rig.durable(70).await;
        rig.acked().await;
        running.stop().await.unwrap();
        assert_eq!(rig.archive.flushes(), 10);
        rig.assert_all_once().await;
    }
}
