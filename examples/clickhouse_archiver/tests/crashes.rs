//! Archivers and servers that are killed.

use std::ffi::OsStr;
use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use archiver_support::Process;
use archiver_support::killing;
use archiver_support::nats::{APART, Server, V2_15, versions};
use archiver_support::wheel::Result;

use crate::rig::{CONSUMER, PATIENCE, Rig, STREAM, archiver, check};
use crate::target::{ClickHouse, Kind};

async fn killed(version: &'static str, clickhouse: &mut ClickHouse, also_the_server: bool) -> Result<()> {
    let server = Server::start(version).await?;
    let directory = tempfile::tempdir()?;
    let (url, compression) = (clickhouse.url(), clickhouse.compression());
    let command = || {
        let mut command = archiver(&server.url(), &url, compression, ("300", "0.05"));
        command.args(["--stream", killing::STREAM, "--consumer", killing::CONSUMER]);
        command.arg("--state").arg(directory.path().join("state"));
        command
    };
    let killed = killing::kill_again_and_again(&server, command, async |kills| {
        if also_the_server && kills % 3 == 0 { clickhouse.launch().await } else { Ok(()) }
    });
    let killed = killed.await?;
    check(clickhouse, &killed.published)
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_it_archives_each_message_once() -> Result<()> {
    for version in versions(&APART) {
        killed(version, &mut ClickHouse::start(Kind::Old).await?, false).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_before_todays_engine_it_archives_each_message_once() -> Result<()> {
    killed(V2_15, &mut ClickHouse::start(Kind::New).await?, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_killed_again_and_again_each_message_is_archived_once() -> Result<()> {
    killed(V2_15, &mut ClickHouse::start(Kind::Old).await?, true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_in_the_middle_of_inserts_has_each_message_once() -> Result<()> {
    let mut rig = Rig::new(V2_15, Kind::Old).await?;
    let mut process = rig.start(&[])?;
    for round in 1..=6 {
        rig.publish(3_000).await?;
        let enough = 3_000 * (round - 1) + 300 * round;
        rig.wait_for("rows in the table", || Ok(rig.rows()? >= enough)).await?;
        rig.clickhouse.launch().await?;
    }
    rig.wait_until_done().await?;
    assert!(process.stop(PATIENCE).await?.success());
    rig.check(&rig.published().await?)
}

/// The insert of a flush is done, and its checkpoint never: the stream cannot be read back, and then the archiver dies.
async fn die_between(rig: &Rig, messages: usize) -> Result<()> {
    let before = rig.rows()?;
    rig.publish(messages).await?;
    // Late enough to pause the server first, and before its silence ends the session: ten seconds.
    let mut command = rig.archiver_flushing(&rig.clickhouse.url(), ("50000", "6"), &[]);
    let mut process = Process::start("the archiver", &mut command)?;
    let stream = rig.jetstream.get_stream(STREAM).await?;
    let deadline = Instant::now() + PATIENCE;
    while stream.consumer_info(CONSUMER).await?.num_ack_pending < messages {
        assert!(Instant::now() < deadline, "the archiver does not read");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    rig.nats.pause()?;
    rig.wait_for("the insert", || Ok(rig.rows()? == before + messages)).await?;
    process.kill()?;
    rig.nats.resume()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_between_insert_and_checkpoint_it_writes_nothing_twice() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let rig = Rig::new(V2_15, kind).await?;
        rig.publish(400).await?;
        rig.archive(400, &[]).await?;
        die_between(&rig, 300).await?;
        rig.publish(10).await?;
        rig.archive(710, &[]).await?;
        rig.check(&rig.published().await?)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_checkpoint_the_table_says_what_it_holds() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let rig = Rig::new(V2_15, kind).await?;
        rig.publish(700).await?;
        rig.archive(700, &[]).await?;
        die_between(&rig, 300).await?;
        std::fs::remove_dir_all(rig.directory.path().join("state"))?;
        // The NATS server forgot too.
        rig.jetstream.get_stream(STREAM).await?.delete_consumer(CONSUMER).await?;
        rig.publish(10).await?;
        rig.archive(1_010, &[]).await?;
        rig.check(&rig.published().await?)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_checkpoint_has_is_not_asked_for() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let rig = Rig::new(V2_15, kind).await?;
        rig.publish(1_000).await?;
        rig.archive(1_000, &[]).await?;
        let batches = rig.clickhouse.query("SELECT count() FROM messages WHERE claim != ''")?;
        let state = rig.directory.path().join("state");
        for (lose, read) in [(false, "0"), (true, batches.trim())] {
            if lose {
                std::fs::remove_dir_all(&state)?;
            }
            let quiet = rig.archiver(&[]);
            let log = rig.directory.path().join("log");
            let mut command = Command::new(quiet.get_program());
            command.args(quiet.get_args().map(|word| if word == "warn" { OsStr::new("info") } else { word }));
            command.stdout(File::create(&log)?).stderr(File::options().append(true).open(&log)?);
            let mut process = Process::start("the archiver", &mut command)?;
            let said = format!("asked the table what it holds read={read} claims={read}\n");
            rig.wait_for("its answer", || Ok(std::fs::read_to_string(&log)?.contains(&said))).await?;
            assert!(process.stop(PATIENCE).await?.success());
        }
        rig.check(&rig.published().await?)?;
    }
    Ok(())
}
