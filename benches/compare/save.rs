//! Saving a checkpoint against the least that is durable, and against a file written anew and renamed.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use replay_guard::{CheckpointStore as _, FileStore, Guard, MemoryStore, MemoryStream, Reason, Source};

use crate::rig::{Null, Result, Size};
use crate::table::{Table, median, time};

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

/// A sync pays for what the one before left in the journal: over four rounds each comes once after each other one.
const ORDERS: [[usize; 4]; 4] = [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]];

fn in_place(file: &Mutex<File>) -> Result<Duration> {
    let began = Instant::now();
    let mut file = file.lock().map_err(|_| "a writer panicked")?;
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
    let file = Arc::new(Mutex::new(File::create(directory.path().join("in-place"))?));
    // The first ones make room.
    for _ in 0..2 {
        store.save(1, body.clone()).await?;
        in_place(&file)?;
    }
    let mut times: [Vec<f64>; 4] = Default::default();
    for order in ORDERS.iter().cycle().take(size.saves) {
        for what in *order {
            let took = match what {
                0 => {
                    let began = Instant::now();
                    store.save(1, body.clone()).await?;
                    began.elapsed()
                }
                1 => in_place(&file)?,
                2 => {
                    let (began, file) = (Instant::now(), Arc::clone(&file));
                    tokio::task::spawn_blocking(move || in_place(&file)).await??;
                    began.elapsed()
                }
                _ => renamed(directory.path(), &body)?,
            };
            times.get_mut(what).ok_or("there are four")?.push(took.as_secs_f64());
        }
    }
    let [ours, bare, elsewhere, anew] = times.map(|times| median(times.into_iter()));
    for (limit, what, bar) in [
        (bare, "4 KiB written in place and synced", ">= 0.83"),
        (elsewhere, "the same on a thread that may block", ""),
        (anew, "a file synced, renamed, its directory synced", ">= 3"),
    ] {
        let ratio = format!("{:.2}, of the medians", limit / ours);
        table.row(&format!("checkpoint save: {what}"), &time(ours), &time(limit), &ratio, bar);
    }
    Ok(())
}
