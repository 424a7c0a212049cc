//! Somebody edits the consumer while it is read.

use std::time::Duration;

use replay_guard::DriverError;

use super::rig::{CONSUMER, Rig};
use crate::on_all_versions;

/// Gives the consumer another filter, and says nothing to those who pull.
async fn edit(rig: &Rig, filter: Option<String>) {
    let mut config = rig.info().await.config;
    config.filter_subject = filter.unwrap_or_default();
    let subject = format!("CONSUMER.DURABLE.CREATE.{}.{CONSUMER}", rig.stream);
    let request = serde_json::json!({ "stream_name": rig.stream, "config": config });
    let answer: serde_json::Value = rig.context.request(subject, &request).await.unwrap();
    assert!(answer.get("error").is_none(), "{answer}");
}

on_all_versions! {
    async fn what_an_edited_filter_leaves_out_is_not_taken_for_archived(server: Server) {
        let mut rig = Rig::new(server).await;
        let checking = |builder: replay_guard::DriverBuilder| builder.check_every(Duration::from_secs(1));
        let running = rig.start_with(|builder| builder.check_every(Duration::from_secs(3_600))).await;
        rig.publish(20).await;
        rig.durable(20).await;
        rig.acked().await;
        edit(&rig, Some(rig.subject("a"))).await;
        // 21 and 22 are left out, and 23 seems to follow 20.
        rig.publish_to(&["b"], 2).await;
        rig.publish_to(&["a"], 1).await;
        let error = running.end().await;
        assert!(matches!(error, DriverError::Consumer(_)), "{error}");
        edit(&rig, None).await;
        let running = rig.start_with(checking).await;
        rig.durable(23).await;
        running.stop().await.unwrap();
        rig.assert_all_once().await;
    }
}
