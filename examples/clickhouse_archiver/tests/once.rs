//! Each message is in the table once, as it was published.

use archiver_support::killing::Published;
use archiver_support::nats::{V2_12, V2_15};
use archiver_support::wheel::Result;
use archiver_support::{Process, nats};
use async_nats::HeaderMap;

use crate::rig::{PATIENCE, Rig, STREAM};
use crate::target::Kind;

#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_a_row_as_it_was_published() -> Result<()> {
    for (version, kind) in [(V2_12, Kind::Old), (V2_15, Kind::New)] {
        let rig = Rig::new(version, kind).await?;
        let mut headers = HeaderMap::new();
        headers.append("B", "2");
        headers.append("A", "it's a \\ \"value\"");
        headers.append("B", "1");
        for subject in ["s.plain", "s.\u{fc}ml\u{e4}ut", "s.it's", "s.\"quoted\"", "s./slash\\back"] {
            let payload = format!("to {subject}").into();
            rig.jetstream.publish_with_headers(subject.to_owned(), headers.clone(), payload).await?.await?;
        }
        rig.jetstream.publish("s.empty", "".into()).await?.await?;
        rig.jetstream.publish("s.bytes", (0..=255).collect::<Vec<u8>>().into()).await?.await?;
        rig.jetstream.publish("s.large", vec![b'x'; 900_000].into()).await?.await?;
        let published = rig.published().await?;
        rig.archive(published.len(), &[]).await?;
        rig.check(&published)?;

        let sql = "SELECT DISTINCT `headers.name`, hex(arrayStringConcat(`headers.value`, '|')), stream, source \
                   FROM messages WHERE sequence <= 5";
        let values = "it's a \\ \"value\"|2|1".bytes().fold(String::new(), |hex, byte| hex + &format!("{byte:02X}"));
        assert_eq!(rig.clickhouse.query(sql)?, format!("['A','B','B']\t{values}\tS\tS\n"));
        let shown = rig.clickhouse.query(
            "SELECT count() FROM messages WHERE toUnixTimestamp(published_at) = intDiv(published, 1000000000)",
        )?;
        assert_eq!(shown.trim(), published.len().to_string());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_flush_is_one_part_whatever_the_profile_says() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let rig = Rig::new(V2_15, kind).await?;
        rig.publish(4_000).await?;
        let mut command = rig.archiver_flushing(&rig.clickhouse.url(), ("4000", "60"), &[]);
        let mut process = Process::start("the archiver", &mut command)?;
        rig.wait_for("rows", || Ok(rig.rows()? >= 4_000)).await?;
        let parts =
            rig.clickhouse.query("SELECT name, rows FROM system.parts WHERE table = 'messages' ORDER BY name")?;
        // From block 1 to block 1.
        assert!(parts.starts_with("all_1_1_") && parts.ends_with("\t4000\n") && parts.lines().count() == 1, "{parts}");
        process.stop(PATIENCE).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_side_by_side_keep_to_themselves() -> Result<()> {
    let rig = Rig::new(V2_15, Kind::Old).await?;
    for n in 0..200 {
        rig.jetstream
            .publish(format!("s.{}", if n % 3 == 0 { "a" } else { "b" }), format!("{n}").into())
            .await?
            .await?;
    }
    let mut processes = Vec::new();
    for (filter, consumer) in [("s.a", "one"), ("s.b", "two")] {
        let mut command = crate::rig::archiver(&rig.nats.url(), &rig.clickhouse.url(), "lz4", ("300", "0.05"));
        command.args(["--stream", STREAM, "--consumer", consumer, "--filter", filter]);
        command.arg("--state").arg(rig.directory.path().join("state"));
        processes.push(Process::start("the archiver", &mut command)?);
    }
    rig.wait_for("rows", || Ok(rig.rows()? >= 200)).await?;
    for mut process in processes {
        assert!(process.stop(PATIENCE).await?.success());
    }
    rig.check(&rig.published().await?)?;
    let sources =
        rig.clickhouse.query("SELECT source, count(), uniq(subject) FROM messages GROUP BY source ORDER BY source")?;
    assert_eq!(sources, "S [s.a]\t67\t1\nS [s.b]\t133\t1\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_lives_of_a_stream_share_a_table() -> Result<()> {
    for version in nats::versions(&nats::APART) {
        let rig = Rig::new(version, Kind::Old).await?;
        rig.publish(120).await?;
        let mut both: Vec<Published> = rig.published().await?;
        rig.archive(120, &[]).await?;
        rig.jetstream.delete_stream(STREAM).await?;
        rig.create_stream().await?;
        rig.publish(70).await?;
        both.extend(rig.published().await?);
        both.sort_unstable();
        // The mark on the consumer is gone with the stream; the claims and the checkpoint are of another one.
        rig.archive(190, &[]).await?;
        rig.check(&both)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_fork_within_a_flush_nothing_is_written_again() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let mut rig = Rig::new(V2_15, kind).await?;
        rig.publish(150).await?;
        rig.nats.stop().await?;
        let half = rig.nats.snapshot_messages(STREAM)?;
        rig.nats.restart().await?;
        rig.publish(150).await?;
        let mut all = rig.published().await?;
        let mut process =
            Process::start("the archiver", &mut rig.archiver_flushing(&rig.clickhouse.url(), ("300", "5"), &[]))?;
        rig.wait_for("rows", || Ok(rig.rows()? >= 300)).await?;
        rig.wait_until_done().await?;
        assert!(process.stop(PATIENCE).await?.success());

        rig.nats.kill()?;
        rig.nats.restore_messages(STREAM, &half)?;
        rig.nats.restart().await?;
        rig.publish(100).await?;
        rig.archive(400, &[]).await?;
        all.extend(rig.published().await?);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 400);
        rig.check(&all)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_repeats_is_done_once_where_the_server_knows_tokens() -> Result<()> {
    let rig = Rig::new(V2_15, Kind::Repeating).await?;
    rig.publish(1_000).await?;
    rig.archive(1_000, &[]).await?;
    rig.check(&rig.published().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_were_deleted_can_be_archived_again() -> Result<()> {
    let rig = Rig::new(V2_15, Kind::New).await?;
    rig.publish(300).await?;
    rig.archive(300, &[]).await?;
    rig.clickhouse.query("ALTER TABLE messages DELETE WHERE 1 SETTINGS mutations_sync = 1")?;
    assert_eq!(rig.rows()?, 0);
    std::fs::remove_dir_all(rig.directory.path().join("state"))?;
    rig.archive(300, &["--start", "beginning"]).await?;
    rig.check(&rig.published().await?)
}
