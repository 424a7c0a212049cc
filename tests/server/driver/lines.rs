//! The example's sink, which the documentation shows: whether it is right.

use replay_guard::{DriverError, Durable, Flush, GuardError, Reason, Record, Sink, Written};

use super::example::Lines;
use super::rig::{AckTap, Rig, spawn, until};
use crate::on_versions;

fn record(sequence: u64) -> Record {
    Record::new(sequence, 1, "orders.new", "payload\n")
}

async fn flush(sink: &mut Lines) -> std::io::Result<Durable> {
    sink.flush(Flush::without_guard(Reason::Due)).await
}

/// A file that takes no byte, as on a full disk. It knows no sync, so it cannot be opened as others are.
#[cfg(target_os = "linux")]
async fn full() -> Lines {
    Lines(tokio::fs::OpenOptions::new().append(true).open("/dev/full").await.unwrap())
}

/// Writes until an error comes, at the latest with the flush.
#[cfg(target_os = "linux")]
async fn fill(mut sink: Lines) -> std::io::Result<Durable> {
    for sequence in 1..=100 {
        sink.write(record(sequence)).await?;
    }
    flush(&mut sink).await
}

#[tokio::test]
async fn what_was_written_is_there_and_a_restart_appends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("orders.log");
    for round in 1..=3 {
        let mut sink = Lines::open(&path).await.unwrap();
        assert_eq!(sink.write(record(round)).await.unwrap(), Written::Accepted);
        assert_eq!(flush(&mut sink).await.unwrap(), Durable::All);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "payload\n".repeat(usize::try_from(round).unwrap()));
    }
}

#[tokio::test]
async fn the_directory_is_synced() {
    // Not that it is on the disk can be seen here, but that it is opened for it: a directory that cannot be read fails.
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing/orders.log");
    assert_eq!(Lines::open(&missing).await.err().unwrap().kind(), std::io::ErrorKind::NotFound);
    // A name without a directory lies in the one the process stands in.
    let name = format!("replay-guard-lines-{}.log", std::process::id());
    assert!(Lines::open(&name).await.is_ok());
    std::fs::remove_file(name).unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_is_an_error() {
    let error = fill(full().await).await.expect_err("a full disk took records");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    // The smallest record fails too: its write goes on in the background, and the flush says so.
    let mut sink = full().await;
    sink.write(record(1)).await.unwrap();
    assert_eq!(flush(&mut sink).await.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
}

#[cfg(target_os = "linux")]
on_versions! {
    async fn nothing_is_acked_on_a_full_disk(server: Server) {
        let mut rig = Rig::new(server).await;
        let mut tap = AckTap::new(&rig).await;
        rig.publish(250).await;
        let error = spawn(rig.builder().await.open(full().await).await.unwrap()).end().await;
        assert!(matches!(error, DriverError::Guard(GuardError::Sink { .. })), "{error}");
        let answered = tap.take().await.into_iter().filter(|(_, word)| word != "+WPI").collect::<Vec<_>>();
        assert_eq!(answered, []);
        assert_eq!(rig.info().await.ack_floor.stream_sequence, 0);
        // With room again, all of it is archived.
        let path = rig.state_dir().join("orders.log");
        let running = spawn(rig.builder().await.open(Lines::open(&path).await.unwrap()).await.unwrap());
        until("all is archived", async || running.now().floor == 250).await;
        running.stop().await.unwrap();
        let expected = rig.payloads.concat();
        let mut found = std::fs::read_to_string(&path).unwrap();
        // Redelivered in another order, perhaps.
        assert_eq!(found.len(), expected.len());
        // From the longest number down, none is found inside another.
        for payload in rig.payloads.iter().rev() {
            let at = found.find(payload).unwrap();
            found.replace_range(at..at + payload.len(), "\n");
        }
        assert!(found.trim().is_empty(), "{found}");
    }

    async fn over_restarts_everything_is_in_the_file_once(server: Server) {
        let mut rig = Rig::new(server).await;
        let path = rig.state_dir().join("orders.log");
        for round in 1..=3_u64 {
            rig.publish(100).await;
            let sink = Lines::open(&path).await.unwrap();
            let running = spawn(rig.builder().await.open(sink).await.unwrap());
            until("all is archived", async || running.now().floor == 100 * round).await;
            rig.acked().await;
            running.stop().await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), rig.payloads.concat());
    }
}
