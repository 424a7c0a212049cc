//! Another stream under the same name, and the same stream with another face.

use async_nats::jetstream::stream::Config;

use futures_util::StreamExt as _;

use super::rig::{CONSUMER, DEADLINE, Rig, until};
use crate::{on_all_versions, on_versions};

async fn make_anew(rig: &Rig) {
    rig.context.delete_stream(&rig.stream).await.unwrap();
    let subjects = vec![rig.subject(">")];
    let config = Config { name: rig.stream.clone(), subjects, ..Default::default() };
    rig.context.create_stream(config).await.unwrap();
}

on_versions! {
    async fn i1_a_stream_made_anew(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        rig.archive_to(1_000).await;
        make_anew(&rig).await;
        rig.publish(100).await;
        let ended = rig.archive_to(1_100).await;
        assert_eq!((ended.counters.written, ended.floor), (100, 100));
        rig.assert_all_once().await;
        let fork = rig.event("fork").await;
        assert_eq!(fork.number("at"), 0);
        assert!(fork.fields["created"].starts_with("Some"), "{fork:?}");
    }

    async fn i1_a_stream_made_anew_while_the_archiver_runs(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(1_000).await;
        let running = rig.start().await;
        rig.durable(1_000).await;
        rig.acked().await;
        make_anew(&rig).await;
        rig.publish(100).await;
        rig.durable(1_100).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 100);
        rig.assert_all_once().await;
    }

    async fn i1_a_stream_made_anew_that_is_longer(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(100).await;
        rig.archive_to(100).await;
        make_anew(&rig).await;
        rig.publish(1_000).await;
        let ended = rig.archive_to(1_100).await;
        assert_eq!((ended.counters.written, ended.floor), (1_000, 1_000));
        rig.assert_all_once().await;
    }

    async fn i3_a_stream_emptied_by_loss(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.server.stop().await.unwrap();
        let empty = rig.server.snapshot_store().unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        rig.publish(500).await;
        let running = rig.start().await;
        rig.durable(500).await;
        rig.acked().await;
        rig.cut(|server, _| server.restore_store(&empty).unwrap()).await;
        rig.event("fork").await;
        rig.publish(50).await;
        rig.durable(550).await;
        rig.acked().await;
        assert_eq!(running.stop().await.unwrap().floor, 50);
        rig.assert_all_once().await;
    }
}

on_all_versions! {
    // On servers before 2.14.6 the creation time of the very same stream moves.
    async fn i2_the_creation_time_moves_and_the_server_forgets(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        rig.archive_to(500).await;
        let created = async |rig: &Rig| rig.context.get_stream(&rig.stream).await.unwrap().cached_info().created;
        let before = created(&rig).await;
        rig.server.stop().await.unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        let mut config = rig.context.get_stream(&rig.stream).await.unwrap().cached_info().config.clone();
        config.description = Some("changed".to_owned());
        rig.context.update_stream(config).await.unwrap();
        rig.server.stop().await.unwrap();
        rig.server.empty_consumer_state(&rig.stream, CONSUMER).unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        let moved = created(&rig).await != before;
        assert_eq!(moved, !rig.server.is_at_least("2.14.6").unwrap(), "the server was found out to be otherwise");
        let running = rig.start().await;
        until("all was skipped", async || running.now().counters.skipped >= 500).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.counters.written, ended.floor, ended.counters.forks), (0, 500, 0));
        assert_eq!(rig.events("created_drifted").len(), usize::from(moved));
        rig.assert_all_once().await;
    }

    async fn i4_a_stream_deleted_and_restored_from_a_backup(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        rig.archive_to(500).await;
        let before = rig.context.get_stream(&rig.stream).await.unwrap().cached_info().created;
        // A restored stream is given, before 2.14.6, the time at which the server of the backup started, on 2.14.6 its own
        // time of creation, since 2.15 the time of the restore.
        rig.server.stop().await.unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        let held = rig.stream_holds().await;
        let backup = Backup::of(&rig).await;
        rig.context.delete_stream(&rig.stream).await.unwrap();
        backup.restore(&rig).await;
        assert_eq!(rig.stream_holds().await, held, "the same messages");
        let moved = rig.context.get_stream(&rig.stream).await.unwrap().cached_info().created != before;
        let keeps = rig.server.is_at_least("2.14.6").unwrap() && !rig.server.is_at_least("2.15.0").unwrap();
        assert_eq!(moved, !keeps, "the server was found out to be otherwise");
        let running = rig.start().await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.counters.written, ended.floor, ended.counters.forks), (0, 500, 0));
        rig.publish(50).await;
        let ended = rig.archive_to(550).await;
        assert_eq!((ended.counters.written, ended.floor), (50, 550));
        rig.assert_all_once().await;
    }
}

/// A backup of a stream without its consumers, as an operator's tool makes it.
struct Backup {
    /// Configuration and state.
    about: serde_json::Value,
    chunks: Vec<bytes::Bytes>,
}

impl Backup {
    async fn of(rig: &Rig) -> Self {
        let client = rig.context.client();
        let inbox = client.new_inbox();
        let mut subscriber = client.subscribe(inbox.clone()).await.unwrap();
        let request = serde_json::json!({ "deliver_subject": inbox, "no_consumers": true });
        let about: serde_json::Value =
            rig.context.request(format!("STREAM.SNAPSHOT.{}", rig.stream), &request).await.unwrap();
        assert!(about.get("error").is_none(), "{about}");
        let mut chunks = Vec::new();
        loop {
            let next = tokio::time::timeout(DEADLINE, subscriber.next()).await.expect("a chunk").unwrap();
            if next.payload.is_empty() {
                return Self { about, chunks };
            }
            chunks.push(next.payload);
            if let Some(reply) = next.reply {
                client.publish(reply, "".into()).await.unwrap();
            }
        }
    }

    async fn restore(self, rig: &Rig) {
        let request = serde_json::json!({ "config": self.about["config"], "state": self.about["state"] });
        let answer: serde_json::Value =
            rig.context.request(format!("STREAM.RESTORE.{}", rig.stream), &request).await.unwrap();
        let to = answer["deliver_subject"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        let client = rig.context.client();
        for chunk in self.chunks {
            let said = client.request(to.clone(), chunk).await.unwrap();
            assert!(said.payload.is_empty(), "{said:?}");
        }
        let said = client.request(to, "".into()).await.unwrap();
        let said: serde_json::Value = serde_json::from_slice(&said.payload).unwrap();
        assert!(said.get("error").is_none(), "{said}");
    }
}
