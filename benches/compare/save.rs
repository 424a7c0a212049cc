//! Saving a checkpoint against the least that is durable, and against a file written anew and renamed.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use replay_guard::{CheckpointStore as _, FileStore, Guard, MemoryStore, MemoryStream, Reason, Source};

use crate::rig::{Null, Result, Size};
use crate::table::Table;

/// What a guard with one span saves.
async fn one_span(source: &Source) -> Result<bytes::Bytes> {
    let (store, stream) = (MemoryStore::new(), MemoryStream::new());
    let mut guard = Guard::open(source.clone(), Null, store.clone(), stream.clone()).await?;
    _ = guard.begin_session().await?;
    guard.offer(stream.publish("bench", "1"), None).await?;
    _ = guard.flush(Reason::Due).await?;
    drop(guard);
    let mut store = store;
    Ok(store.open().await?.states.first().ok_or("nothing was saved")?.body.clone())
}

fn in_place(file: &mut File) -> Result<Duration> {
    let began = Instant::now();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&[b'x'; 4096])?;
    file.sync_data()?;
    Ok(began.elapsed())
}

fn renamed(directory: &Path, body: &[u8]) -> Result<Duration> {
    let began = Instant::now();
    let temporary = directory.join("temporary");
    let mut file = File::create(&temporary)?;
    file.write_all(body)?;
    file.sync_all()?;
    fs::rename(temporary, directory.join("renamed"))?;
    File::open(directory)?.sync_all()?;
    Ok(began.elapsed())
}

pub(crate) async fn measure(size: Size, table: &mut Table) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = Source::new("BENCH");
    let body = one_span(&source).await?;
    let mut store = FileStore::new(directory.path(), &source);
    store.open().await?;
    let mut file = File::create(directory.path().join("in-place"))?;
    // The first ones make room.
    for _ in 0..2 {
        store.save(1, body.clone()).await?;
        in_place(&mut file)?;
    }
    file.sync_all()?;
    let (mut bare, mut anew) = (Vec::new(), Vec::new());
    for round in 0..size.saves {
        // Each comes first every other time: a sync pays for what the one before left in the journal.
        let first = if round % 2 == 0 { Some(in_place(&mut file)?) } else { None };
        let began = Instant::now();
        store.save(1, body.clone()).await?;
        let took = began.elapsed();
        let in_place = first.map_or_else(|| in_place(&mut file), Ok)?;
        bare.push((took, in_place));
        anew.push((took, renamed(directory.path(), &body)?));
    }
    table.pairs("checkpoint save, 4 KiB written in place and synced", &bare, ">= 0.83");
    table.pairs("checkpoint save, a file synced, renamed, its directory synced", &anew, ">= 3");
    Ok(())
}
