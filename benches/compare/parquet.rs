//! The Parquet archiver, a process of its own, against the slower of what it is made of: a bare loop, and the Parquet writer
//! with the same rows from memory.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use archiver_parquet::{Row, encode};
use archiver_support::Process;
use async_nats::jetstream::consumer::AckPolicy;
use replay_guard::{Flush, Reason, Record, Source, async_nats};

use crate::drive::bare;
use crate::rig::{BATCH, Result, Rig, STREAM, Size, consumer};
use crate::table::{Table, median, time};

const ARCHIVER: &str = "parquet_archiver";
/// Between two looks at how far it is. Each is a request: not often enough to be in the way.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The example, built as it is released.
fn build() -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo).args(["build", "--release", "--quiet", "--example", ARCHIVER]).status()?;
    if !built.success() {
        return Err(format!("{ARCHIVER} could not be built: {built}").into());
    }
    let bench = env::current_exe()?;
    let release = bench.ancestors().nth(2).ok_or("this is no bench of a package")?;
    Ok(release.join("examples").join(ARCHIVER))
}

/// From the start of the process until all is acked.
async fn archiver(rig: &Rig, program: &PathBuf) -> Result<Duration> {
    let directory = tempfile::tempdir()?;
    let context = rig.context().await?;
    let acks = context.create_consumer_on_stream(consumer(ARCHIVER, AckPolicy::Explicit), STREAM).await?;
    let mut command = Command::new(program);
    command.args([
        "archive",
        "--log",
        "error",
        "--server",
        &rig.server.url(),
        "--stream",
        STREAM,
        "--consumer",
        ARCHIVER,
    ]);
    command.arg("--flush-records").arg(BATCH.to_string());
    command.arg("--out").arg(directory.path().join("out")).arg("--state").arg(directory.path().join("state"));
    let began = Instant::now();
    let mut process = Process::start(ARCHIVER, command.stdout(Stdio::null()))?;
    loop {
        let info = acks.get_info().await?;
        if info.ack_floor.stream_sequence == rig.messages {
            break;
        }
        if let Some(status) = process.ended()? {
            return Err(format!("{ARCHIVER} ended early: {status}").into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let took = began.elapsed();
    process.stop(Duration::from_secs(10)).await?;
    rig.forget(ARCHIVER).await?;
    Ok(took)
}

/// The Parquet writer alone: a file in memory for each flush.
fn writer(rig: &Rig) -> Result<Duration> {
    let source = Source::new(STREAM);
    let claim = Flush::without_guard(Reason::Due).claim_for(&[]);
    let rows: Vec<Row> = (1..=rig.messages)
        .map(|sequence| Record::new(sequence, 1_000_000_000, STREAM, vec![b'x'; rig.payload]).into())
        .collect();
    let began = Instant::now();
    for file in rows.chunks(usize::try_from(BATCH)?) {
        std::hint::black_box(encode(Vec::new(), &source, file, &claim)?);
    }
    Ok(began.elapsed())
}

pub(crate) async fn measure(rig: &Rig, size: Size, table: &mut Table) -> Result<()> {
    let program = build()?;
    let mut pairs = Vec::new();
    let (mut loops, mut writers) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        let took = archiver(rig, &program).await?;
        let (bare, writer) = (bare(rig, AckPolicy::Explicit).await?.0, writer(rig)?);
        pairs.push((took, bare.max(writer)));
        loops.push(bare.as_secs_f64());
        writers.push(writer.as_secs_f64());
    }
    table.pairs("Parquet archiver, with the start of its process", &pairs, ">= 0.8");
    let [bare, writer] = [loops, writers].map(|times| time(median(times.into_iter())));
    table.row("the two limits: a bare loop, the Parquet writer", &bare, &writer, "", "");
    Ok(())
}
