//! Settings that are wrong, and a server that is away.

use archiver_support::nats::V2_15;
use archiver_support::wheel::Result;

use crate::rig::{CONSUMER, PATIENCE, Rig, STREAM};
use crate::target::{ClickHouse, Kind};

/// Runs one that must end by itself: how it ended, and what it said.
async fn run(rig: &Rig, url: &str, more: &[&str], environment: &[(&str, &str)]) -> Result<(Option<i32>, String)> {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_clickhouse_archiver"));
    command.args(["--server", &rig.nats.url(), "--clickhouse", url, "--stream", STREAM, "--consumer", CONSUMER]);
    command.arg("--state").arg(rig.directory.path().join("state")).args(more).envs(environment.iter().copied());
    let output = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output());
    let std::process::Output { status, stdout, stderr } =
        output.await.map_err(|_| format!("it goes on: {more:?} {url}"))??;
    Ok((status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))))
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_end_it_with_2_and_say_what_to_do() -> Result<()> {
    let rig = Rig::new(V2_15, Kind::Old).await?;
    let url = rig.clickhouse.url();
    rig.clickhouse.query("CREATE TABLE plain (sequence UInt64) ENGINE = MergeTree ORDER BY sequence")?;
    rig.clickhouse.query(
        "CREATE TABLE parts (source String, sequence UInt64, published Int64) ENGINE = ReplacingMergeTree \
         PARTITION BY intDiv(sequence, 10) ORDER BY (source, sequence, published)",
    )?;
    rig.clickhouse.query(
        "CREATE TABLE other (source String, sequence UInt64, published Int64, stream UInt8) \
         ENGINE = ReplacingMergeTree ORDER BY (source, sequence, published)",
    )?;
    let user = ["--clickhouse-user", "archiver"];
    for (more, environment, part) in [
        (&["--database", "nope"][..], &[][..], "nope"),
        (&["--table", "plain"], &[], "default.plain has the engine MergeTree"),
        (&["--table", "parts"], &[], "partitions by intDiv(sequence, 10)"),
        (&["--table", "other"], &[], "`stream` UInt8, where String is needed"),
        (&user, &[("CLICKHOUSE_PASSWORD", "wrong-secret")], "archiver"),
        (&["--clickhouse-user", "reader"], &[], "readonly"),
        (&[], &[("CLICKHOUSE_PASSWORD", "wrong-secret")], "--clickhouse-user"),
    ] {
        let (code, said) = run(&rig, &url, more, environment).await?;
        assert_eq!(code, Some(2), "{more:?}: {said}");
        assert!(said.contains(part) && !said.contains("secret"), "{more:?}: {said}");
    }
    for url in ["http://u:secret@127.0.0.1:1", "http://127.0.0.1:1/?password=secret", "ftp://127.0.0.1:1", "nonsense"] {
        let (code, said) = run(&rig, url, &[], &[]).await?;
        assert_eq!(code, Some(2), "{url}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_is_warned_of_and_a_password_opens_it() -> Result<()> {
    let rig = Rig::new(V2_15, Kind::Old).await?;
    rig.publish(5).await?;
    let log = rig.directory.path().join("log");
    let mut command = rig.archiver(&["--clickhouse-user", "archiver"]);
    command.env("CLICKHOUSE_PASSWORD", "secret-1").stdout(std::fs::File::create(&log)?);
    command.stderr(std::fs::File::options().append(true).open(&log)?);
    let mut process = archiver_support::Process::start("the archiver", &mut command)?;
    rig.wait_for("rows", || Ok(rig.rows()? >= 5)).await?;
    assert!(process.stop(PATIENCE).await?.success());
    let log = std::fs::read_to_string(log)?;
    assert!(log.contains("a power cut of its machine may lose acknowledged messages"), "{log}");
    assert!(!log.contains("secret-1"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn todays_engine_is_told_to_sync() -> Result<()> {
    let rig = Rig::new(V2_15, Kind::New).await?;
    rig.publish(5).await?;
    rig.archive(5, &[]).await?;
    let made = rig.clickhouse.query("SELECT engine_full FROM system.tables WHERE name = 'messages'")?;
    assert!(made.contains("fsync_after_insert = 1") && made.contains("fsync_part_directory = 1"), "{made}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_at_the_start_is_waited_for() -> Result<()> {
    let mut rig = Rig::with(V2_15, ClickHouse::prepare(Kind::Old)?).await?;
    rig.publish(50).await?;
    let mut process = rig.start(&[])?;
    // It has tried by then.
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    assert_eq!(process.ended()?, None);
    rig.clickhouse.launch().await?;
    rig.wait_for("rows", || Ok(rig.rows()? >= 50)).await?;
    assert!(process.stop(PATIENCE).await?.success());
    rig.check(&rig.published().await?)
}
