//! What must not keep the floor where it is.

use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::RetentionPolicy;
use futures_util::StreamExt as _;

use super::rig::{Rig, spawn, until};
use crate::on_all_versions;

on_all_versions! {
    // Another consumer keeps an old message in the stream, so that the floor cannot follow the stream's first sequence; and
    // what was acked is gone, so that a new session cannot see where the last one ended.
    async fn ack_all_goes_on_over_a_reconnect_beside_a_consumer_that_lags(server: Server) {
        let mut rig = Rig::retaining(server, RetentionPolicy::Interest).await;
        let window = pull::Config { ack_policy: AckPolicy::All, max_ack_pending: 50, ..Default::default() };
        rig.make_consumer(window).await;
        let stream = rig.context.get_stream(&rig.stream).await.unwrap();
        let lagging = pull::Config { durable_name: Some("lagging".to_owned()), ..Default::default() };
        let lagging: PullConsumer = stream.create_consumer(lagging).await.unwrap();
        rig.publish(20).await;
        let mut messages = lagging.stream().messages().await.unwrap();
        for sequence in 1..=20 {
            let message = messages.next().await.unwrap().unwrap();
            if sequence != 10 {
                message.double_ack().await.unwrap();
            }
        }
        let client = rig.server.client().await.unwrap();
        let builder = rig.builder_on(jetstream::new(client.clone()), &rig.stream);
        let running = spawn(builder.open(rig.archive.sink()).await.unwrap());
        rig.durable(20).await;
        rig.acked().await;
        until("one message is left", async || rig.stream_state().await.messages == 1).await;
        client.force_reconnect().await.unwrap();
        until("another session", async || running.now().sessions == 2).await;
        // More than the window.
        rig.publish(100).await;
        rig.durable(120).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.written), (120, 120));
        rig.assert_published_once();
    }
}
