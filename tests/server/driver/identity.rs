//! Another stream under the same name, and the same stream with another face.

use async_nats::jetstream::stream::Config;

use super::rig::{CONSUMER, Rig, until};
use crate::nats::{Server, V2_12};
use crate::on_versions;

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

/// On servers before 2.14.6 the creation time of the very same stream moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_the_creation_time_moves_and_the_server_forgets() {
    let mut rig = Rig::new(Server::start(V2_12).await.unwrap()).await;
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
    assert_ne!(created(&rig).await, before);
    let running = rig.start().await;
    until("all was skipped", async || running.now().counters.skipped >= 500).await;
    rig.acked().await;
    let ended = running.stop().await.unwrap();
    assert_eq!((ended.counters.written, ended.floor, ended.counters.forks), (0, 500, 0));
    assert_eq!(rig.events("created_drifted").len(), 1);
    rig.assert_all_once().await;
}
