//! More than one worker on one consumer.

use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures_util::StreamExt as _;

use super::rig::{CONSUMER, Rig, until};
use crate::on_versions;

/// Keeps publishing one by one until it is so.
async fn publish_until(rig: &mut Rig, what: &str, so: impl Fn(&Rig) -> bool + Send + Sync) {
    until(what, async || {
        rig.publish(1).await;
        so(rig)
    })
    .await;
}

on_versions! {
    async fn a_second_worker_is_found_and_named(server: Server) {
        let mut rig = Rig::new(server).await;
        // What the other one takes and does not ack comes to us in the end.
        rig.make_consumer(pull::Config { ack_wait: Duration::from_secs(1), ..Default::default() }).await;
        let running = rig.start_with(|builder| builder.check_every(Duration::from_millis(200))).await;
        publish_until(&mut rig, "archived", |rig| rig.archive.count() > 10).await;
        assert_eq!((rig.events("shared").len(), running.now().shared), (0, 0));
        let other = jetstream::new(rig.server.client().await.unwrap());
        let consumer: PullConsumer = other.get_consumer_from_stream(CONSUMER, &rig.stream).await.unwrap();
        let taking = tokio::spawn(async move {
            let mut messages = consumer.stream().max_messages_per_batch(1).messages().await.unwrap();
            // A heartbeat that comes late is an error that ends nothing.
            while messages.next().await.is_some() {}
        });
        publish_until(&mut rig, "it is said", |rig| !rig.events("shared").is_empty()).await;
        taking.abort();
        let said = rig.events("shared").remove(0);
        assert_eq!(said.fields["consumer"], CONSUMER);
        assert!(said.number("count") > 0);
        // Said first, then counted.
        until("it is counted", async || running.now().shared == 1).await;
        rig.durable(rig.payloads.len()).await;
        rig.acked().await;
        running.stop().await.unwrap();
        assert_eq!(rig.events("shared").len(), 1, "once in a session");
        rig.assert_all_once().await;
    }

    async fn nobody_else_is_suspected_over_reconnects_and_redeliveries(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.make_consumer(pull::Config { ack_wait: Duration::from_millis(500), ..Default::default() }).await;
        let running = rig.start_with(|builder| builder.check_every(Duration::from_millis(200))).await;
        for round in 1..=4 {
            // Held up for longer than the ack deadline, so that some are delivered again; and then cut off in the middle.
            rig.archive.flushing.close();
            rig.publish(300).await;
            rig.archive.flushing.reached().await;
            until("kept waiting", async || rig.info().await.num_ack_pending >= 50).await;
            rig.server.restart().await.unwrap();
            rig.archive.flushing.open();
            rig.back().await;
            rig.durable(300 * round).await;
        }
        let offered = running.now().counters.offered;
        publish_until(&mut rig, "many more", |_| running.now().counters.offered > offered + 200).await;
        rig.durable(rig.payloads.len()).await;
        rig.acked().await;
        assert!(running.now().sessions >= 5);
        assert_eq!((running.now().shared, rig.events("shared").len()), (0, 0));
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }
}
