//! What the harness promises.

use async_nats::jetstream;

use crate::nats::{Server, V2_15, VERSIONS, Want, binary, numbers, versions};

#[test]
fn every_pinned_version_can_be_had() {
    for version in versions(&VERSIONS) {
        let path = binary(Want::Version(version)).unwrap();
        assert!(path.is_absolute() || path.exists(), "{}", path.display());
    }
}

#[test]
fn versions_are_compared_by_their_numbers() {
    assert!(numbers("2.9.25").unwrap() < numbers("2.10.0").unwrap());
    assert!(numbers("2.14.6").unwrap() < numbers("2.15.0-RC.1").unwrap());
    assert!(numbers("2.14").is_err() && numbers("latest").is_err());
}

#[test]
fn fetched_at_once_by_many() {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| binary(Want::Version(V2_15)).unwrap())).collect();
        let paths: Vec<_> = all.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(paths.windows(2).all(|pair| pair[0] == pair[1]));
    });
}

#[tokio::test]
async fn store_survives_kill_stop_and_can_be_put_back() {
    let mut server = Server::start(Want::Any).await.unwrap();
    let context = jetstream::new(server.client().await.unwrap());
    let config = jetstream::stream::Config { name: "S".into(), subjects: vec!["s.>".into()], ..Default::default() };
    let stream = context.create_stream(config).await.unwrap();
    context.publish("s.a", "1".into()).await.unwrap().await.unwrap();
    let url = server.url();

    server.kill().unwrap();
    let snapshot = server.snapshot_store().unwrap();
    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    let ack = context.publish("s.a", "2".into()).await.unwrap().await.unwrap();
    assert_eq!(ack.sequence, 2);
    assert!(server.restore_store(&snapshot).is_err(), "a running server's store is left alone");

    server.stop().await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(stream.get_info().await.unwrap().state.last_sequence, 2);

    server.stop().await.unwrap();
    server.restore_store(&snapshot).unwrap();
    server.restart().await.unwrap();
    assert_eq!(stream.get_info().await.unwrap().state.last_sequence, 1);
    let ack = context.publish("s.a", "other".into()).await.unwrap().await.unwrap();
    assert_eq!(ack.sequence, 2, "the same sequence for another message");
}

#[tokio::test]
async fn a_dropped_server_is_gone() {
    let server = Server::start(Want::Any).await.unwrap();
    let (url, directory) = (server.url(), server.stream_directory("S"));
    drop(server);
    assert!(async_nats::connect(url).await.is_err());
    assert!(!directory.ancestors().nth(4).unwrap().exists());
}
