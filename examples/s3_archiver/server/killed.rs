//! Processes that die while they work.

use archiver_support::Process;
use archiver_support::killing::{self, kill_again_and_again};
use archiver_support::nats::{APART, V2_15, versions};
use archiver_support::wheel::Result;
use async_nats::HeaderMap;

use crate::proxy::{Mischief, Proxy};
use crate::rig::{CONSUMER, Rig, published};
use crate::seaweed::{ADMIN, Seaweed};

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_it_archives_each_message_once() -> Result<()> {
    let store = Seaweed::shared().await?;
    for version in versions(&APART) {
        let rig = Rig::new(version, store).await?;
        let archiver = || {
            rig.archiver(&[("--stream", killing::STREAM), ("--flush-after", "0.05"), ("--flush-records", "300")])
                .unwrap()
        };
        assert_eq!(CONSUMER, killing::CONSUMER);
        let killed = kill_again_and_again(&rig.nats, archiver, async |_| Ok(())).await?;
        let held = rig.rows().await?.into_iter().map(published).collect();
        killing::check(&killed.published, held)
            .map_err(|error| format!("{version}: {error}\n{}", rig.log().unwrap()))?;
    }
    Ok(())
}

/// The dead archiver's upload reaches the store when the next one has archived its records in other portions.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_outlives_its_archiver_writes_nothing_twice() -> Result<()> {
    let store = Seaweed::shared().await?;
    for version in versions(&APART) {
        let rig = Rig::new(version, store).await?;
        rig.publish(70).await?;
        let proxy = Proxy::start(store.port()?, Mischief::Hold).await?;
        let mut dead = Process::start("the archiver", &mut rig.archiver(&[("--endpoint", proxy.url())])?)?;
        rig.wait("an upload", Some(&mut dead), async || Ok(proxy.uploads() == 1)).await?;
        dead.kill()?;
        rig.archive(rig.archiver(&[("--flush-records", "30")])?).await?;
        proxy.release();
        rig.wait("an answer to the upload", None, async || Ok(proxy.answered() == 1)).await?;
        rig.check(70).await?;
        // And without its checkpoint.
        std::fs::remove_dir_all(rig.state())?;
        rig.publish(1).await?;
        rig.archive(rig.archiver(&[])?).await?;
        rig.check(71).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_between_upload_and_checkpoint_writes_nothing_twice() -> Result<()> {
    let store = Seaweed::shared().await?;
    for version in versions(&APART) {
        let rig = Rig::new(version, store).await?;
        rig.publish(70).await?;
        let proxy = Proxy::start(store.port()?, Mischief::KeepAnswer).await?;
        let mut dead = Process::start("the archiver", &mut rig.archiver(&[("--endpoint", proxy.url())])?)?;
        rig.wait("an answer", Some(&mut dead), async || Ok(proxy.answered() == 1)).await?;
        dead.kill()?;
        assert_eq!(rig.objects().await?.len(), 1, "{version}");
        // As at another hour: what is written again does not just meet what is there.
        rig.archive(rig.archiver(&[("--flush-records", "30")])?).await?;
        rig.check(70).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_without_an_answer_writes_nothing_twice() -> Result<()> {
    let store = Seaweed::shared().await?;
    let rig = Rig::new(V2_15, store).await?;
    rig.publish(70).await?;
    let proxy = Proxy::start(store.port()?, Mischief::LoseAnswer).await?;
    rig.archive(rig.archiver(&[("--endpoint", proxy.url())])?).await?;
    assert_eq!(proxy.answered(), 1);
    rig.check(70).await
}

/// The store is away when the archiver starts, and is killed in the middle of an upload.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_and_goes_loses_nothing() -> Result<()> {
    let mut store = Seaweed::new().await?;
    let rig = Rig::new(V2_15, &store).await?;
    for n in 0..40 {
        rig.publish_with("s.large", HeaderMap::new(), noise(n)).await?;
    }
    let proxy = Proxy::start(store.port()?, Mischief::Half).await?;
    let mut archiver = rig.archiver(&[("--flush-records", "10"), ("--endpoint", proxy.url())])?;
    // The bucket comes into being with the first object of somebody who may make buckets: there is none yet.
    archiver.env("AWS_ACCESS_KEY_ID", ADMIN[0]).env("AWS_SECRET_ACCESS_KEY", ADMIN[1]);
    let mut process = Process::start("the archiver", &mut archiver)?;
    rig.wait("a try", Some(&mut process), async || Ok(rig.log()?.contains("retry 1 of"))).await?;
    store.launch().await?;
    rig.wait("half an upload", Some(&mut process), async || Ok(proxy.halves() == 1)).await?;
    store.kill()?;
    proxy.release();
    rig.publish(30).await?;
    store.launch().await?;
    rig.archived(&mut process).await?;
    assert!(process.stop(crate::rig::PATIENCE).await?.success());
    rig.check(70).await
}

/// Half a megabyte that cannot be compressed.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..1 << 16).flat_map(|_| next()).collect()
}
