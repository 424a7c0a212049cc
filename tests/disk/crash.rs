//! The archiver dies at each step that has a name, is started again, and has each message once.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Error, Result, ensure};
use archiver_support::nats::{APART, Server, versions};
use replay_guard_disk_tests::Bench;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const PROGRAM: &str = env!("CARGO_BIN_EXE_mortal_archiver");
/// How many archivers live at a time: they wait more than they work.
const AT_ONCE: usize = 6;
/// How the names of points begin that every flush passes.
const REPEATED: [&str; 4] = ["file-", "slot-", "acks-", "record-"];
/// `abort`.
const SIGABRT: i32 = 6;

/// The names of all points in the sources of the library and of the archiver.
fn points() -> Result<BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = BTreeSet::new();
    for directory in ["src", "examples/parquet_archiver"] {
        collect(&root.join(directory), &mut found)?;
    }
    Ok(found)
}

fn collect(directory: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&path)?;
            for call in ["crash::point(\"", "crash::during(\""] {
                for rest in text.split(call).skip(1) {
                    let name = rest.split('"').next().context("a name")?;
                    ensure!(found.insert(name.to_owned()), "the point {name} is there twice: {}", path.display());
                }
            }
        }
    }
    Ok(())
}

/// Which passing of a point kills.
fn passings(point: &str) -> Vec<u64> {
    match point {
        "record-taken" => vec![1, 120],
        _ if REPEATED.iter().any(|prefix| point.starts_with(prefix)) => vec![1, 3],
        _ => vec![1],
    }
}

async fn die_and_go_on(server: &Server, point: &str, passing: u64) -> Result<()> {
    let home = tempfile::tempdir()?;
    let bench = Bench::new(server, PROGRAM, &format!("{point}-{passing}"), home.path()).await?;
    // The second one dies in the same step with the traces of the first around it.
    for _ in 0..2 {
        bench.publish(200).await?;
        let mut archiver =
            bench.start_as(bench.command().env("REPLAY_GUARD_CRASH_AT", format!("{point}:{passing}")))?;
        let status = archiver.ends().await.context("the point is not passed")?;
        ensure!(status.signal() == Some(SIGABRT), "it did not die at its point ({status}):\n{}", archiver.log());
        bench.check_so_far().await?;
    }
    bench.publish(7).await?;
    // As at another hour: what is written again does not just replace what was there.
    bench.finish(bench.start_as(&mut bench.command_flushing(43, "0.1"))?).await?;
    bench.check().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_step_it_archives_each_message_once() -> Result<()> {
    let points = points()?;
    for version in versions(&APART) {
        let server = Arc::new(Server::start(version).await.map_err(Error::from_boxed)?);
        let (turns, mut lives) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
        for (point, passing) in points.iter().flat_map(|point| passings(point).into_iter().map(move |n| (point, n))) {
            let (server, turns, point) = (Arc::clone(&server), Arc::clone(&turns), point.clone());
            lives.spawn(async move {
                let _turn = turns.acquire().await?;
                die_and_go_on(&server, &point, passing)
                    .await
                    .with_context(|| format!("{version}, killed at {point}:{passing}"))?;
                anyhow::Ok(point)
            });
        }
        let kills = 2 * lives.len();
        let mut visited = BTreeSet::new();
        while let Some(life) = lives.join_next().await {
            visited.insert(life??);
        }
        assert_eq!(visited, points, "{version}: each point killed");
        println!("nats-server {version}: {kills} kills at {} points", visited.len());
    }
    Ok(())
}
