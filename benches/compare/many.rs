//! Many guards in one process, one directory.

use std::time::{Duration, Instant};

use replay_guard::{FileStore, Guard, MemoryStream, Reason, Source};
use tokio::task::JoinSet;
use tokio::time::{Instant as Time, sleep_until};

use crate::reads::cpu;
use crate::rig::{Null, Result, Size};
use crate::table::{Table, median, time};

/// Records a second and guard. One flush a second.
const RECORDS: u32 = 100;

/// One guard that gets a record every 10 ms. Says how long each flush took.
async fn one(number: u64, directory: std::path::PathBuf, start: Time, seconds: u32) -> Result<Vec<f64>> {
    let source = Source::new("BENCH").with_filters([format!("bench.{number}")]);
    let stream = MemoryStream::new();
    let mut guard = Guard::open(source.clone(), Null, FileStore::new(directory, &source), stream.clone()).await?;
    _ = guard.begin_session().await?;
    let mut before = None;
    let mut took = Vec::new();
    // Their flushes are spread over the second, as those of separate archivers are.
    let start = start + Duration::from_micros(number % 1_000 * 1_000);
    for second in 0..seconds {
        for record in 0..RECORDS {
            sleep_until(start + Duration::from_millis(u64::from(second * RECORDS + record) * 10)).await;
            let record = stream.publish("bench", &b"one hundred records a second"[..]);
            let sequence = record.sequence;
            guard.offer(record, before.replace(sequence)).await?;
        }
        let began = Instant::now();
        let permits = guard.flush(Reason::Due).await?;
        assert_eq!(permits.acks().len(), usize::try_from(RECORDS)?);
        took.push(began.elapsed().as_secs_f64());
    }
    Ok(took)
}

pub(crate) async fn measure(size: Size, table: &mut Table) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let Size { guards, seconds, .. } = size;
    // Opening them all takes a while.
    let start = Time::now() + Duration::from_millis(10 * guards);
    let mut tasks = JoinSet::new();
    for number in 0..guards {
        tasks.spawn(one(number, directory.path().to_owned(), start, seconds));
    }
    sleep_until(start).await;
    let (used, began) = (cpu(None)?, Instant::now());
    let mut flushes = Vec::new();
    while let Some(done) = tasks.join_next().await {
        flushes.extend(done??);
    }
    let elapsed = began.elapsed().as_secs_f64();
    let used = (cpu(None)? - used) / elapsed;
    let missed = flushes.iter().filter(|took| **took > 1.0).count();
    let worst = flushes.iter().copied().fold(0.0, f64::max);
    table.row(
        &format!("{guards} guards, {RECORDS} records and a flush a second each"),
        &format!("{missed} of {} flushes missed", flushes.len()),
        &format!("{:.0} syncs/s, {:.0} % of a core", f64::from(u32::try_from(flushes.len())?) / elapsed, used * 100.0),
        &format!("a flush takes {}, {} at most", time(median(flushes.iter().copied())), time(worst)),
        "none missed",
    );
    Ok(())
}
