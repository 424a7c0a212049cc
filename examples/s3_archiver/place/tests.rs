use anyhow::{Context as _, Result};
use archiver_parquet::encode;
use object_store::ObjectStoreExt as _;
use replay_guard::{Flush, MemoryStore, Reason};

use super::*;
use crate::sink::tests::{World, ids};

const NOTHING: [u64; 0] = [];

fn all(_: RecordId, _: RecordId) -> bool {
    true
}

/// A world in which three records are archived in one object, and that object: name and content.
async fn archived() -> Result<(World, String, Bytes)> {
    let world = World::new();
    let records = world.publish(3);
    world.archive(&[&records]).await?;
    let name = world.names().await?.pop().context("an object")?;
    let content = world.content(&name).await?;
    Ok((world, name, content))
}

fn claim_in(content: &Bytes) -> Result<Claim> {
    match footer_of(content.len() as u64, content) {
        Ok(Footer::Claim(claim)) => Ok(claim),
        other => anyhow::bail!("{other:?}"),
    }
}

impl World {
    /// What a dead process sent arrives.
    async fn arrives(&self, name: &str, content: &Bytes) -> Result<(), StoreError> {
        let object = self.place.object(name);
        self.place.bucket.store.put_opts(&object, content.clone().into(), PutMode::Create.into()).await.map(|_| ())
    }

    async fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.place.bucket.store.delete(&self.place.object(name)).await
    }
}

#[tokio::test]
async fn an_object_with_the_same_claim_is_the_one_that_was_to_be_written() -> Result<()> {
    for conditional in [true, false] {
        let (mut world, name, content) = archived().await?;
        world.place.bucket.conditional = conditional;
        // A request that was sent twice.
        world.place.create(&name, content.clone(), &claim_in(&content)?).await?;
        assert_eq!(world.names().await?, [name]);
    }
    Ok(())
}

#[tokio::test]
async fn an_object_with_another_claim_stays_and_both_are_named() -> Result<()> {
    for conditional in [true, false] {
        let (mut world, name, content) = archived().await?;
        world.place.bucket.conditional = conditional;
        let other = Flush::without_guard(Reason::Due).claim();
        let error = world.place.create(&name, Bytes::from_static(b"other"), &other).await.err().context("must fail")?;
        let error = error.to_string();
        for part in [name.clone(), named(&claim_in(&content)?), named(&other)] {
            assert!(error.contains(&part), "{error} does not say {part}");
        }
        assert_eq!(world.content(&name).await?, content);
    }
    Ok(())
}

#[tokio::test]
async fn what_is_no_archive_is_not_replaced() -> Result<()> {
    for there in ["", "rot"] {
        let (world, name, content) = archived().await?;
        world.remove(&name).await?;
        world.arrives(&name, &Bytes::from_static(there.as_bytes())).await?;
        let error = world.place.create(&name, content.clone(), &claim_in(&content)?).await;
        assert!(matches!(error, Err(SinkError::Taken { .. })), "{error:?}");
        assert_eq!(world.content(&name).await?, there.as_bytes());
    }
    Ok(())
}

#[tokio::test]
async fn an_upload_that_comes_true_before_the_next_opening_is_found() -> Result<()> {
    let (world, name, content) = archived().await?;
    world.place.settle(all).await?;
    assert_eq!(world.content(&name).await?, content, "it is there, so nothing is settled");
    Ok(())
}

#[tokio::test]
async fn an_upload_that_comes_true_after_the_next_opening_is_refused() -> Result<()> {
    let (mut world, name, content) = archived().await?;
    // As if the process had died with the upload under way.
    world.remove(&name).await?;
    world.checkpoint = MemoryStore::new();
    drop(world.open(None).await?);
    let late = world.arrives(&name, &content).await;
    assert!(matches!(late, Err(StoreError::AlreadyExists { .. })), "{late:?}");
    assert_eq!(world.held().await?, []);
    Ok(())
}

#[tokio::test]
async fn records_whose_upload_was_given_up_are_archived_once() -> Result<()> {
    let mut world = World::new();
    let records = world.publish(3);
    world.archive(&[&records]).await?;
    let name = world.names().await?.pop().context("an object")?;
    let content = world.content(&name).await?;
    for again in [&records[..], &records[..2]] {
        for name in world.names().await? {
            world.remove(&name).await?;
        }
        world.place.announce(&name).await?;
        world.checkpoint = MemoryStore::new();
        // Those of the same portion replace the object without rows, those of another one are another object.
        assert_eq!(world.deliver(again).await?.len(), again.len());
        assert!(world.arrives(&name, &content).await.is_err(), "what comes late is refused all the same");
        assert_eq!(world.held().await?, ids(again));
    }
    world.checkpoint = MemoryStore::new();
    assert_eq!(world.deliver(&records).await?, [3]);
    Ok(())
}

#[tokio::test]
async fn what_replaces_an_object_without_rows_is_settled_too() -> Result<()> {
    let (world, name, content) = archived().await?;
    world.remove(&name).await?;
    world.place.settle(all).await?;
    // A process was about to replace it, and died.
    let object = world.place.object(&name);
    let version = world.place.bucket.store.head(&object).await?;
    world.place.settle(all).await?;
    let version = UpdateVersion { e_tag: version.e_tag, version: version.version };
    let late = world.place.put(&object, content, PutMode::Update(version)).await;
    assert!(matches!(late, Err(StoreError::Precondition { .. })), "{late:?}");
    Ok(())
}

#[tokio::test]
async fn what_the_checkpoint_has_is_not_under_way() -> Result<()> {
    let (world, name, _) = archived().await?;
    // The bucket's lifecycle took it.
    world.remove(&name).await?;
    assert_eq!(world.deliver(&[]).await?, NOTHING);
    assert_eq!(world.names().await?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn without_conditions_nothing_is_noted_or_settled() -> Result<()> {
    let mut world = World::new();
    world.place.bucket.conditional = false;
    let records = world.publish(2);
    world.archive(&[&records]).await?;
    assert!(world.place.bucket.store.head(&world.place.object(UNDER_WAY)).await.is_err());
    let name = world.names().await?.pop().context("an object")?;
    world.remove(&name).await?;
    world.place.settle(all).await?;
    assert_eq!(world.names().await?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_note_that_is_no_name_of_ours_is_not_obeyed() -> Result<()> {
    let world = World::new();
    for note in ["", "../other", "notes.txt"] {
        world
            .place
            .put(&world.place.object(UNDER_WAY), Bytes::from_static(note.as_bytes()), PutMode::Overwrite)
            .await?;
        world.place.settle(all).await?;
        assert_eq!(world.names().await?.len(), 0, "{note}");
    }
    Ok(())
}

#[test]
fn two_objects_without_rows_differ() -> Result<()> {
    let place = World::new().place;
    let object = place.object("x");
    assert_ne!(place.empty(&object)?, place.empty(&object)?);
    let rows = encode(Vec::new(), &place.source, &[], &Flush::without_guard(Reason::Due).claim())?;
    assert_eq!(footer_of(rows.len() as u64, &rows), Ok(Footer::Empty));
    Ok(())
}
