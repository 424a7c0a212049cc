//! A replay of any length costs one move, where the stream keeps what is acked.

use async_nats::jetstream;
use async_nats::jetstream::stream::RetentionPolicy;
use replay_guard::Driver;

use super::rig::{CONSUMER, Rig, patient, spawn, until};
use crate::nats::{Server, options};
use crate::{on_all_versions, on_versions};

/// Archives, lets the server forget, archives on; gives the requests that the second run made of the stream.
async fn replay(server: Server, count: u64) -> (u64, Server) {
    let mut rig = Rig::new(server).await;
    rig.publish(count).await;
    let first = rig.start_with(|builder| patient(builder).fast_forward(true)).await;
    rig.durable(usize::try_from(count).unwrap()).await;
    rig.acked().await;
    first.stop().await.unwrap();
    rig.consumer_written().await;
    rig.cut(|server, stream| server.empty_consumer_state(stream, CONSUMER).unwrap()).await;

    let second = rig.start_with(|builder| patient(builder).fast_forward(true)).await;
    rig.acked().await;
    rig.publish(50).await;
    rig.durable(usize::try_from(count).unwrap() + 50).await;
    rig.acked().await;
    let ended = second.stop().await.unwrap();
    assert_eq!((ended.counters.offered, ended.counters.written, ended.floor), (50, 50, count + 50));
    assert_eq!((ended.counters.rewinds, ended.counters.fast_forwards), (1, 1));
    let forward = rig.event("fast_forward").await;
    assert_eq!((forward.number("from"), forward.number("through")), (0, count));
    assert_eq!(rig.events("rewind").len(), 1);
    rig.assert_all_once().await;

    // On an idle stream nothing is moved again.
    let third = rig.start_with(|builder| patient(builder).fast_forward(true)).await;
    rig.acked().await;
    assert_eq!(third.stop().await.unwrap().counters.moves, 0);
    (ended.counters.reads, rig.server)
}

on_all_versions! {
    async fn a_replay_of_any_length_costs_one_move(server: Server) {
        let (short, server) = replay(server, 1_000).await;
        let (long, _) = replay(server, 100_000).await;
        // The 50 new records may come in one flush or in many.
        assert!(long <= short + 100, "{short} requests for 1,000 messages, {long} for 100,000");
    }
}

on_versions! {
    async fn a_work_queue_is_read_message_by_message(server: Server) {
        let mut rig = Rig::retaining(server, RetentionPolicy::WorkQueue).await;
        rig.publish(300).await;
        let old = { rig.server.stop().await.unwrap(); let old = rig.server.snapshot_store().unwrap(); rig.server.restart().await.unwrap(); rig.back().await; old };
        let first = rig.start_with(|builder| patient(builder).fast_forward(true)).await;
        rig.durable(300).await;
        rig.acked().await;
        first.stop().await.unwrap();
        // Removals are not synced: the acked messages are back. Passed over they would stay for ever.
        rig.cut(|server, _| server.restore_store(&old).unwrap()).await;
        let second = rig.start_with(|builder| patient(builder).fast_forward(true)).await;
        until("the queue is empty", async || rig.stream_state().await.messages == 0).await;
        let ended = second.stop().await.unwrap();
        assert_eq!((ended.counters.skipped, ended.counters.written, ended.counters.fast_forwards), (300, 0, 0));
    }
}

on_versions! {
    // A user who may do all but move a consumer: what is archived is read and skipped.
    async fn without_permission_to_move_the_backlog_is_skipped(server: Server) {
        let users = r#"
            authorization { users: [
                { user: all, password: x }
                { user: some, password: x, permissions: { publish: { deny: ["$JS.API.CONSUMER.RESET.>", "$JS.API.CONSUMER.DELETE.>"] } } }
            ] }
            no_auth_user: all
        "#;
        server.configure(users).unwrap();
        server.restart().await.unwrap();
        let mut rig = Rig::new(server).await;
        rig.publish(500).await;
        let running = rig.start_with(patient).await;
        rig.durable(500).await;
        running.stop().await.unwrap();
        rig.consumer_written().await;
        rig.cut(|server, stream| server.empty_consumer_state(stream, CONSUMER).unwrap()).await;
        let client = rig.server.client_with(options().user_and_password("some".into(), "x".into())).await.unwrap();
        let builder = Driver::builder(jetstream::new(client), rig.stream.as_str())
            .consumer(CONSUMER)
            .state_dir(rig.state_dir())
            .flush_every(100, std::time::Duration::from_millis(200));
        let running = spawn(builder.open(rig.archive.sink()).await.unwrap());
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.counters.skipped, ended.counters.written), (500, 0));
        let retries = rig.events("retry");
        assert!(retries.iter().any(|event| event.fields["what"] == "fast-forward"), "{retries:?}");
        rig.assert_all_once().await;
    }
}
