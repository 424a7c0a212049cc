//! What is wrong from the start is said, with exit code 2.

use std::process::Command;

use archiver_support::nats::V2_15;
use archiver_support::wheel::Result;

use crate::nanio::Nanio;
use crate::rig::Rig;
use crate::seaweed::{READER, Seaweed, WRITER};

/// Runs an archiver that must refuse, and wants to read this in what it said.
async fn refuses(rig: &Rig, archiver: Command, expected: &[&str]) -> Result<()> {
    let before = rig.log()?.len();
    let status = rig.refused(archiver).await?;
    let said = rig.log()?.split_off(before);
    let missing: Vec<_> = expected.iter().filter(|part| !said.contains(**part)).collect();
    if status.code() != Some(2) || !missing.is_empty() || said.contains(WRITER[1]) || said.contains(READER[1]) {
        return Err(format!("{status}, not said: {missing:?}\n{said}").into());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_from_the_start_is_said() -> Result<()> {
    let rig = Rig::new(V2_15, Seaweed::shared().await?).await?;
    rig.publish(3).await?;

    let mut archiver = rig.archiver(&[])?;
    archiver.env("AWS_SECRET_ACCESS_KEY", "wrong");
    refuses(&rig, archiver, &["s3:PutObject", "SignatureDoesNotMatch"]).await?;

    let mut archiver = rig.archiver(&[])?;
    archiver.env("AWS_ACCESS_KEY_ID", READER[0]).env("AWS_SECRET_ACCESS_KEY", READER[1]);
    refuses(&rig, archiver, &["s3:PutObject", "AccessDenied"]).await?;

    let archiver = rig.archiver(&[("--bucket", "elsewhere")])?;
    refuses(&rig, archiver, &["elsewhere", "must exist"]).await?;

    let mut archiver = rig.archiver(&[])?;
    archiver.env("AWS_ACCESS_KEY_ID", "two\nlines");
    refuses(&rig, archiver, &["AWS_ACCESS_KEY_ID"]).await?;

    let archiver = rig.archiver(&[("--endpoint", "127.0.0.1:9000")])?;
    refuses(&rig, archiver, &["127.0.0.1:9000 is no address"]).await?;

    let archiver = rig.archiver(&[("--flush-bytes", "5000000000")])?;
    refuses(&rig, archiver, &["--flush-bytes"]).await?;

    // The server knows no TLS; the archiver does, with one of the two kinds of cryptography that are built in.
    let url = rig.nats.url().replace("nats:", "tls:");
    refuses(&rig, rig.archiver(&[("--server", &url)])?, &["cannot connect to tls:"]).await?;

    assert_eq!(rig.objects().await?.len(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_conditions_is_refused_unless_that_is_wanted() -> Result<()> {
    let nanio = Nanio::start().await?;
    let mut rig = Rig::new(V2_15, Seaweed::shared().await?).await?;
    rig.publish(60).await?;
    rig.url = nanio.url();
    rig.store = crate::seaweed::client(&rig.url, WRITER)?;
    refuses(&rig, rig.archiver(&[])?, &["ignores conditions", "--unconditional"]).await?;
    // And each time.
    refuses(&rig, rig.archiver(&[])?, &["ignores conditions", "--unconditional"]).await?;
    assert_eq!(rig.objects().await?.len(), 0);

    let mut archiver = rig.archiver(&[])?;
    archiver.arg("--unconditional");
    rig.archive(archiver).await?;
    assert!(rig.log()?.contains("conditions are not used"), "{}", rig.log()?);
    rig.check(60).await?;
    std::fs::remove_dir_all(rig.state())?;
    rig.publish(1).await?;
    let mut archiver = rig.archiver(&[])?;
    archiver.arg("--unconditional");
    rig.archive(archiver).await?;
    rig.check(61).await?;

    let archiver = rig.archiver(&[("--bucket", "elsewhere")])?;
    refuses(&rig, archiver, &["there is no bucket elsewhere"]).await?;
    Ok(())
}
