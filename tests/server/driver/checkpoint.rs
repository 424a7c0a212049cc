//! Checkpoint files that are damaged, lost, shared or in use.

use std::path::{Path, PathBuf};

use replay_guard::{DriverError, OnDamage, OpenError, StoreError, Trust};

use super::rig::{CONSUMER, Rig, spawn, until};
use super::sink::Archive;
use crate::on_versions;

/// Two slots of 4 KiB each; a header of 24 bytes with the save counter at 12 and the body's length at 20; a checksum of 4
/// bytes behind the body.
const SLOT: usize = 4_096;

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Where the newest slot begins, and how long its contents are.
fn newest(bytes: &[u8]) -> (usize, usize) {
    let at = if number(bytes, 12, 8) > number(bytes, SLOT + 12, 8) { 0 } else { SLOT };
    (at, 24 + usize::try_from(number(bytes, at + 20, 4)).unwrap() + 4)
}

fn aside(checkpoint: &Path) -> PathBuf {
    PathBuf::from(format!("{}.corrupt-1", checkpoint.display()))
}

/// 300 messages archived with three flushes at least; gives the checkpoint file.
async fn archived(rig: &mut Rig) -> PathBuf {
    let running = rig.start().await;
    for round in 1..=3 {
        rig.publish(100).await;
        rig.durable(100 * round).await;
        until("the checkpoint is saved", async || running.now().floor == 100 * round as u64).await;
    }
    rig.acked().await;
    running.stop().await.unwrap();
    rig.checkpoint()
}

on_versions! {
    async fn c1_the_newest_slot_is_torn(server: Server) {
        let mut rig = Rig::new(server).await;
        let path = archived(&mut rig).await;
        let whole = std::fs::read(&path).unwrap();
        let (at, length) = newest(&whole);
        for kept in [1, length / 2, length - 1, 0] {
            let mut torn = whole.clone();
            torn[at + kept..at + SLOT].fill(0);
            std::fs::write(&path, torn).unwrap();
            let driver = rig.open().await.unwrap();
            let report = driver.report();
            assert_eq!(report.trust, Trust::Whole);
            assert!(report.floor < 300 && report.floor >= 100, "the state before: {}", report.floor);
            assert_eq!(report.damaged.len(), 1, "{kept}: {:?}", report.damaged);
            assert_eq!(report.set_aside, None);
        }
        // The server thinks that all was acked; what the older state does not know is delivered and written again.
        let running = rig.start().await;
        until("all is archived", async || running.now().floor == 300).await;
        rig.acked().await;
        running.stop().await.unwrap();
        let copies = rig.archive.copies();
        assert_eq!(copies.len(), 300);
        assert!(copies.values().filter(|copies| **copies > 1).count() <= 200);
        assert!(copies.iter().all(|((id, _), copies)| *copies == 1 || id.sequence > 100));
    }

    async fn c2_nothing_whole_is_left(server: Server) {
        let mut rig = Rig::new(server).await;
        let path = archived(&mut rig).await;
        let whole = std::fs::read(&path).unwrap();
        let mut both = whole.clone();
        both[30] ^= 1;
        both[SLOT + 30] ^= 1;
        let mut unknown = whole.clone();
        for at in [0, SLOT] {
            let length = 24 + usize::try_from(number(&whole, at + 20, 4)).unwrap();
            unknown[at + 8] = 99;
            let crc = crc32fast::hash(&unknown[at..at + length]).to_le_bytes();
            unknown[at + length..at + length + 4].copy_from_slice(&crc);
        }
        for (name, bytes) in [("both slots", both), ("an empty file", Vec::new()), ("an unknown version", unknown)] {
            std::fs::write(&path, &bytes).unwrap();
            let refused = rig.builder().await.on_damage(OnDamage::Refuse).open(rig.archive.sink()).await;
            let error = refused.expect_err(name);
            assert!(error.is_setting(), "{name}: {error}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}: left as it is");
            let before = rig.archive.count();
            let driver = rig.open().await.expect(name);
            let report = driver.report();
            assert_eq!((&report.trust, report.floor), (&Trust::Damaged, 0), "{name}");
            assert_eq!(report.set_aside.as_deref(), aside(&path).to_str(), "{name}");
            assert_eq!(std::fs::read(aside(&path)).unwrap(), bytes, "{name}: kept aside");
            let running = spawn(driver);
            rig.durable(before + 300).await;
            rig.acked().await;
            assert_eq!(running.stop().await.unwrap().floor, 300, "{name}");
            std::fs::remove_file(aside(&path)).unwrap();
        }
        assert!(rig.archive.copies().values().all(|copies| *copies == 4), "written again, once each time");
    }

    async fn c3_the_floor_never_goes_back(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(200).await;
        rig.archive_to(200).await;
        rig.consumer_written().await;
        rig.cut(|server, stream| server.empty_consumer_state(stream, CONSUMER).unwrap()).await;
        // It skips some of the messages below and stops.
        let running = rig.start_with(|builder| builder.flush_every(10, std::time::Duration::from_millis(10))).await;
        until("some are skipped", async || running.now().counters.skipped > 0).await;
        assert_eq!(running.stop().await.unwrap().floor, 200);
        let driver = rig.open().await.unwrap();
        assert_eq!((driver.report().floor, driver.report().spans), (200, 1));
    }

    async fn c6_sources_that_look_alike_and_one_that_is_in_use(server: Server) {
        let rig = Rig::new(server).await;
        let mut all = Vec::new();
        for stream in [format!("{}A", rig.stream), format!("{}a", rig.stream)] {
            let subjects = vec![format!("{stream}.>")];
            let config = async_nats::jetstream::stream::Config { name: stream.clone(), subjects, ..Default::default() };
            rig.context.create_stream(config).await.unwrap();
            for end in ["a.b", "a_b"] {
                let subject = format!("{stream}.{end}");
                for _ in 0..10 {
                    rig.context.publish(subject.clone(), subject.clone().into()).await.unwrap().await.unwrap();
                }
                let archive = Archive::new();
                let context = async_nats::jetstream::new(rig.server.client().await.unwrap());
                let consumer = end.replace('.', "-");
                let builder = || {
                    let builder = replay_guard::Driver::builder(context.clone(), stream.as_str());
                    builder.consumer(consumer.as_str()).filter(subject.as_str()).state_dir(rig.state_dir())
                };
                let running = spawn(builder().open(archive.sink()).await.unwrap());
                let error = builder().open(archive.sink()).await.unwrap_err();
                let DriverError::Open(OpenError::Store(StoreError::Locked { path })) = &error else { panic!("{error}") };
                assert!(path.exists() && error.to_string().contains(path.to_str().unwrap()) && error.is_setting());
                all.push((subject, archive, running));
            }
        }
        for (subject, archive, running) in all {
            until("all is written", async || archive.written() == 10).await;
            running.stop().await.unwrap();
            assert!(archive.count() == 10 && archive.durable().iter().all(|record| record.payload == subject));
        }
        let directories = std::fs::read_dir(rig.state_dir()).unwrap();
        let files = directories.flat_map(|directory| std::fs::read_dir(directory.unwrap().path()).unwrap());
        let names: Vec<_> = files.map(|file| file.unwrap().path()).filter(|path| path.extension().unwrap() == "ckpt").collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}
