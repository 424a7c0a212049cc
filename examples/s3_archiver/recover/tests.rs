use std::sync::Arc;

use anyhow::Result;
use archiver_parquet::{MAX_CLAIMS, encode_empty};
use object_store::{ObjectStoreExt as _, PutPayload};
use replay_guard::{MemoryStore, Reason, Recovered};

use super::*;
use crate::sink::tests::{World, deliver, ids};

const NOTHING: [u64; 0] = [];

fn all(_: RecordId, _: RecordId) -> bool {
    true
}

#[tokio::test]
async fn a_lost_checkpoint_is_made_again_from_the_objects() -> Result<()> {
    let mut world = World::new();
    let records = world.publish(9);
    world.archive(&[&records[..4], &records[4..6], &records[6..]]).await?;
    let state_id = world.open(None).await?.state_id();
    world.checkpoint = MemoryStore::new();
    let guard = world.open(None).await?;
    assert_eq!((guard.state_id(), guard.floor(), guard.spans()), (state_id, 9, 1));
    drop(guard);
    assert_eq!(world.deliver(&records).await?, NOTHING);
    assert_eq!(world.held().await?, ids(&records));
    Ok(())
}

#[tokio::test]
async fn only_footers_of_what_the_checkpoint_lacks_are_read() -> Result<()> {
    let mut world = World::new();
    let records = world.publish(6);
    world.archive(&[&records[..2], &records[2..4]]).await?;
    let guard = world.open(None).await?;
    let checkpoint = guard.coverage().clone();
    drop(guard);
    // The process died after the object and before the checkpoint.
    world.checkpoint = MemoryStore::new();
    world.archive(&[&records[4..]]).await?;
    let found = recover(&world.place, |first, last| !checkpoint.holds(first, last), MAX_CLAIMS).await?;
    assert_eq!((found.objects, found.read, found.claims.kept.len()), (3, 1, 1));
    let found = recover(&world.place, all, MAX_CLAIMS).await?;
    assert_eq!((found.objects, found.read, found.claims.kept.len()), (3, 3, 3));
    Ok(())
}

#[tokio::test]
async fn two_lives_share_an_archive() -> Result<()> {
    let mut world = World::new();
    let old = world.publish(6);
    world.archive(&[&old[..3], &old[3..]]).await?;
    world.stream.lose_above(3);
    let new = world.publish(4);
    world.checkpoint = MemoryStore::new();
    let now: Vec<_> = old[..3].iter().chain(&new).cloned().collect();
    assert_eq!(world.deliver(&now).await?, [4, 5, 6, 7]);
    let mut both: Vec<_> = ids(&old).into_iter().chain(ids(&new)).collect();
    both.sort_unstable();
    assert_eq!((world.held().await?, world.names().await?.len()), (both, 3));
    // With the objects of both lives and no checkpoint.
    world.checkpoint = MemoryStore::new();
    assert_eq!(world.deliver(&now).await?, NOTHING);
    Ok(())
}

#[tokio::test]
async fn a_tail_that_is_lost_within_an_object_makes_nothing_come_again() -> Result<()> {
    for (through, checkpoint_lost) in [(1, false), (14, true), (15, false), (26, false), (38, true), (39, false)] {
        let mut world = World::new();
        let old = world.publish(200);
        // More objects than are read for one question.
        world.archive(&old.chunks(5).collect::<Vec<_>>()).await?;
        world.stream.lose_above(through);
        let new = world.publish(30);
        if checkpoint_lost {
            world.checkpoint = MemoryStore::new();
        }
        let stands = usize::try_from(through)?;
        let now: Vec<_> = old[..stands].iter().chain(&new).cloned().collect();
        let written = world.deliver(&now).await?;
        assert_eq!(written.len(), new.len(), "cut at {through}: {written:?}");
    }
    Ok(())
}

#[tokio::test]
async fn of_many_lives_in_one_place_all_records_are_named() -> Result<()> {
    let world = World::new();
    for life in 1..=MORE + 1 {
        world.stream.lose_above(0);
        let records = world.publish(6);
        assert_eq!(world.deliver(&records).await?.len(), 6);
        let named: BTreeSet<_> = records_in(&world.place, &(2..=4)).await?.into_iter().collect();
        let held: BTreeSet<_> = world.held().await?.into_iter().filter(|id| (2..=4).contains(&id.sequence)).collect();
        if life > MORE {
            assert_eq!(
                (named.len(), held.len()),
                (0, 3 * life),
                "too many to read, and no object begins or ends there"
            );
        } else {
            assert_eq!((named.len(), named), (3 * life, held));
        }
    }
    Ok(())
}

#[tokio::test]
async fn records_of_an_upload_that_was_given_up_are_not_named() -> Result<()> {
    let world = World::new();
    let records = world.publish(100);
    world.archive(&records.chunks(2).collect::<Vec<_>>()).await?;
    let objects = world.names().await?;
    for gone in [&objects[0], &objects[26], &objects[49]] {
        world.place.bucket.store.delete(&world.place.object(gone)).await?;
        world.place.announce(gone).await?;
        world.place.settle(all).await?;
    }
    let held: BTreeSet<_> = ids(&records[2..52]).into_iter().chain(ids(&records[54..98])).collect();
    let few: BTreeSet<_> = records_in(&world.place, &(1..=4)).await?.into_iter().collect();
    assert_eq!(few, ids(&records[2..4]).into_iter().collect());
    for range in [1..=100, 1..=20, 48..=60, 90..=100] {
        let named = records_in(&world.place, &range).await?;
        assert!(named.len() > 2 && named.len() <= 2 * AT_ONCE, "{range:?}: {named:?}");
        assert!(named.iter().all(|id| held.contains(id) && range.contains(&id.sequence)), "{range:?}: {named:?}");
    }
    // What cannot be read says nothing, not even of what is beside it.
    world.place.bucket.store.put(&world.place.object(&objects[3]), PutPayload::from_static(b"rot")).await?;
    assert_eq!(records_in(&world.place, &(5..=8)).await?, []);
    Ok(())
}

#[tokio::test]
async fn an_expired_object_is_not_written_again_unless_that_is_wanted() -> Result<()> {
    let world = World::new();
    let records = world.publish(8);
    world.archive(&[&records[..2], &records[2..4], &records[4..6], &records[6..]]).await?;
    let names = world.names().await?;
    for gone in [0, 2, 3] {
        world.place.bucket.store.delete(&world.place.object(&names[gone])).await?;
    }
    assert_eq!(world.deliver(&records).await?, NOTHING);
    assert_eq!(world.names().await?.len(), 1, "nothing is left where the newest object was");
    let mut guard = world.open(Some(3)).await?;
    assert_eq!(deliver(&mut guard, &records).await?, [5, 6, 7, 8], "1 and 2 lie below what is wanted");
    drop(guard);
    assert_eq!(world.held().await?, ids(&records[2..]));
    Ok(())
}

#[tokio::test]
async fn the_newest_claims_are_kept_where_there_are_too_many() -> Result<()> {
    let world = World::new();
    let records = world.publish(6);
    world.archive(&[&records[..2], &records[2..4], &records[4..]]).await?;
    let claims = recover(&world.place, all, MAX_CLAIMS).await?.claims.kept;
    let room = claims.iter().take(2).map(|claim| claim.as_bytes().len()).sum();
    let found = recover(&world.place, all, room).await?;
    assert_eq!(found.claims.kept, claims[..2]);
    assert_eq!(found.claims.left_out, Some(records[1].id()));
    let exactly = Recovered::Exactly { from: 3, claims: claims[..2].to_vec() };
    assert_eq!(found.claims.recovered(Some(1)), exactly, "of what is left out nothing is said");
    Ok(())
}

#[tokio::test]
async fn a_large_claim_takes_a_second_look() -> Result<()> {
    let world = World::new();
    let records = world.publish(4_000);
    let mut guard = world.open(None).await?;
    // Each a span of its own.
    for record in records.iter().step_by(2) {
        let _ = guard.offer(record.clone(), None).await?;
    }
    let _ = guard.flush(Reason::Due).await?;
    drop(guard);
    let claims = recover(&world.place, all, MAX_CLAIMS).await?.claims.kept;
    assert!(claims.len() == 1 && claims[0].as_bytes().len() > 10_000, "{claims:?}");
    Ok(())
}

#[tokio::test]
async fn objects_that_are_not_ours_are_left_alone() -> Result<()> {
    let mut world = World::new();
    let records = world.publish(4);
    world.archive(&[&records]).await?;
    let ours = world.names().await?.remove(0);
    let content = world.content(&ours).await?;
    let (store, directory) = (Arc::clone(&world.place.bucket.store), world.place.directory.clone());
    let foreign = ["notes.txt", "1-1_2-2.parquet", "probe", "under-way"].map(|name| directory.clone().join(name));
    for object in &foreign {
        store.put(object, PutPayload::from_static(b"not ours")).await?;
    }
    // Its name is ours, its place is not.
    store.put(&directory.clone().join("older").join(ours.as_str()), content.into()).await?;
    // No whole files, and one without rows.
    let name = |n| names::file(RecordId::new(n, 1), RecordId::new(n, 1));
    store.put(&world.place.object(&name(100)), PutPayload::new()).await?;
    store.put(&world.place.object(&name(101)), PutPayload::from_static(b"rot")).await?;
    let empty = encode_empty(Vec::new(), &world.place.source, "a test".into())?;
    store.put(&world.place.object(&name(102)), empty.into()).await?;

    let found = recover(&world.place, all, MAX_CLAIMS).await?;
    assert_eq!((found.objects, found.read, found.damaged, found.claims.kept.len()), (4, 4, 2, 1));
    world.checkpoint = MemoryStore::new();
    assert_eq!(world.deliver(&records).await?, NOTHING);
    for object in &foreign {
        assert_eq!(store.get(object).await?.bytes().await?, b"not ours"[..]);
    }
    Ok(())
}
