//! What was archived, and what was forgotten.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use archiver_support::nats::{APART, V2_15, versions};
use archiver_support::wheel::Result;
use async_nats::HeaderMap;

use crate::rig::{CONSUMER, Rig, STREAM};
use crate::seaweed::Seaweed;

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_not_ours_finds_what_was_published() -> Result<()> {
    let rig = Rig::new(V2_15, Seaweed::shared().await?).await?;
    let mut headers = HeaderMap::new();
    headers.append("Trace", "second");
    headers.append("Trace", "first \"quoted\" \u{fc}");
    headers.append("Empty", "");
    let odd = ["s.\u{fc}\u{4e16}", "s.'\"", "s./x:y/*z", "s.a\\b", "s.%2F+"];
    for subject in odd {
        rig.publish_with(subject, headers.clone(), subject.as_bytes().to_vec()).await?;
    }
    rig.publish_with("s.empty", HeaderMap::new(), Vec::new()).await?;
    rig.publish_with("s.bytes", HeaderMap::new(), (0..=255).cycle().take(900_000).collect()).await?;
    rig.archive(rig.archiver(&[])?).await?;

    let stream = rig.jetstream.get_stream(STREAM).await?;
    let rows = rig.rows().await?;
    assert_eq!(rows.len(), odd.len() + 2);
    for (row, sequence) in rows.iter().zip(1..) {
        let message = stream.get_raw_message(sequence).await?;
        assert_eq!(row.sequence, sequence);
        assert_eq!(i128::from(row.published), message.time.unix_timestamp_nanos(), "to the nanosecond");
        assert_eq!((row.subject.as_str(), &row.payload[..]), (message.subject.as_str(), &message.payload[..]));
        let expected = [("Empty", ""), ("Trace", "second"), ("Trace", "first \"quoted\" \u{fc}")];
        let found: Vec<_> = row.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, if message.headers.is_empty() { &[][..] } else { &expected[..] });
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_side_by_side_stay_apart() -> Result<()> {
    let rig = Rig::new(V2_15, Seaweed::shared().await?).await?;
    rig.publish(60).await?;
    // The second time without a checkpoint.
    for count in [60, 63] {
        for (filters, consumer) in [(&["s.0"][..], "one"), (&["s.1", "s.2"], "two")] {
            let mut archiver = rig.archiver(&[("--consumer", consumer)])?;
            for filter in filters {
                archiver.args(["--filter", filter]);
            }
            let mut process = archiver_support::Process::start("the archiver", &mut archiver)?;
            let is_done = async || {
                let stream = rig.jetstream.get_stream(STREAM).await?;
                let Ok(info) = stream.consumer_info(consumer).await else { return Ok(false) };
                Ok((info.num_pending, info.num_ack_pending) == (0, 0))
            };
            rig.wait("all is archived", Some(&mut process), is_done).await?;
            assert!(process.stop(crate::rig::PATIENCE).await?.success());
        }
        rig.check(count).await?;
        fs::remove_dir_all(rig.state())?;
        rig.publish(3).await?;
    }
    let directories: BTreeSet<_> =
        rig.objects().await?.iter().map(|object| object.as_ref().rsplit_once('/').unwrap().0.to_owned()).collect();
    assert_eq!(directories.len(), 2, "{directories:?}");
    Ok(())
}

/// As after a death between the upload and the checkpoint: the checkpoint is older than the objects, and the server has
/// forgotten what was acked.
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_no_checkpoint_knows_are_not_written_again() -> Result<()> {
    for version in versions(&APART) {
        let mut rig = Rig::new(version, Seaweed::shared().await?).await?;
        rig.publish(50).await?;
        rig.archive(rig.archiver(&[])?).await?;
        let older = rig.directory.path().join("older");
        copy(&rig.state(), &older)?;
        rig.publish(100).await?;
        rig.archive(rig.archiver(&[])?).await?;
        let objects = rig.objects().await?;
        fs::remove_dir_all(rig.state())?;
        copy(&older, &rig.state())?;
        forget(&mut rig).await?;
        // As at another hour: what is written again does not just meet what is there.
        rig.archive(rig.archiver(&[("--flush-records", "43")])?).await?;
        assert_eq!(rig.objects().await?, objects, "{version}: {}", rig.log()?);
        rig.check(150).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_state_directory_writes_nothing_twice() -> Result<()> {
    for version in versions(&APART) {
        let mut rig = Rig::new(version, Seaweed::shared().await?).await?;
        rig.publish(120).await?;
        rig.archive(rig.archiver(&[])?).await?;
        fs::remove_dir_all(rig.state())?;
        forget(&mut rig).await?;
        rig.publish(3).await?;
        rig.archive(rig.archiver(&[("--flush-records", "43")])?).await?;
        rig.check(123).await?;
        assert!(rig.state().exists());
    }
    Ok(())
}

/// A stream that is deleted and made anew under its name gives the same sequences to other messages.
#[tokio::test(flavor = "multi_thread")]
async fn two_lives_of_a_stream_share_a_place() -> Result<()> {
    let rig = Rig::new(V2_15, Seaweed::shared().await?).await?;
    rig.publish(60).await?;
    rig.archive(rig.archiver(&[])?).await?;
    let first = rig.rows().await?;
    rig.jetstream.delete_stream(STREAM).await?;
    rig.create_stream(STREAM, "s.>").await?;
    rig.publish(60).await?;
    rig.archive(rig.archiver(&[])?).await?;
    let both = rig.rows().await?;
    assert_eq!(both.len(), 120, "{}", rig.log()?);
    assert!(first.iter().all(|row| both.contains(row)), "nothing is replaced");
    let ids: BTreeSet<_> = both.iter().map(|row| (row.sequence, row.published)).collect();
    assert_eq!(ids.len(), 120);
    fs::remove_dir_all(rig.state())?;
    rig.publish(1).await?;
    rig.archive(rig.archiver(&[])?).await?;
    assert_eq!(rig.rows().await?.len(), 121);
    Ok(())
}

/// The server forgets what was acked, as after a power cut.
async fn forget(rig: &mut Rig) -> Result<()> {
    rig.nats.kill()?;
    rig.nats.empty_consumer_state(STREAM, CONSUMER)?;
    rig.nats.restart().await?;
    rig.jetstream = archiver_support::streams::producer(rig.nats.client().await?);
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
