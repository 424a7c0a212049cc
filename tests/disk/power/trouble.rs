//! Disks that fill up, fail, or may not be written, under an archiver that runs: it says so, acks nothing, and goes on.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, ensure};
use archiver_support::nats::{APART, Server, versions};
use replay_guard_disk_tests::{Archiver, Bench};

use crate::PROGRAM;
use crate::disk::{Disk, Journal, Kind, Small};

/// What is on the disk in trouble.
#[derive(Clone, Copy, Debug)]
enum There {
    Files,
    Checkpoint,
}

const BOTH: [There; 2] = [There::Files, There::Checkpoint];

struct Place {
    bench: Bench,
    _server: Server,
}

async fn place(version: &'static str, home: &Path, disk: &Path, there: There) -> Result<Place> {
    let server = Server::start(version).await.map_err(Error::from_boxed)?;
    let mut bench = Bench::new(&server, PROGRAM, "S", home).await?;
    match there {
        There::Files => bench.out = disk.join("archive"),
        There::Checkpoint => bench.state = disk.join("state"),
    }
    Ok(Place { bench, _server: server })
}

impl There {
    fn path(self, bench: &Bench) -> PathBuf {
        match self {
            Self::Files => bench.files(),
            Self::Checkpoint => bench.checkpoint().with_file_name(""),
        }
    }
}

/// It says all of this about the place, again and again, and acks nothing.
async fn suffers(bench: &Bench, archiver: &mut Archiver, there: There, words: &[&str], acked: u64) -> Result<()> {
    let path = there.path(bench).display().to_string();
    let named = path.trim_end_matches('/');
    println!("{}", archiver.says(&[&[named], words].concat()).await?);
    archiver.says_times(&[named, "trying again"], 2).await?;
    ensure!(bench.acked().await? == acked, "something is acked");
    Ok(())
}

async fn each(test: impl AsyncFn(&'static str, There, &Path) -> Result<()>) -> Result<()> {
    for version in versions(&APART) {
        for there in BOTH {
            let home = tempfile::tempdir()?;
            test(version, there, home.path()).await.with_context(|| format!("{version}, {there:?}"))?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_waited_for() -> Result<()> {
    each(async |version, there, home| {
        let disk = Small::new(home)?;
        let Place { bench, _server } = place(version, home, &disk.path, there).await?;
        bench.publish(120).await?;
        // The checkpoint is replaced when an archiver starts; later saves take no room.
        let words = match there {
            There::Files => ["has room", "No space left on device"],
            There::Checkpoint => ["make room", "No space left on device"],
        };
        let archiver = match there {
            There::Files => {
                let mut archiver = bench.start()?;
                bench.catch_up(&mut archiver).await?;
                disk.fill()?;
                bench.publish(80).await?;
                suffers(&bench, &mut archiver, there, &words, 120).await?;
                archiver
            }
            There::Checkpoint => {
                bench.finish(bench.start()?).await?;
                disk.fill()?;
                bench.publish(80).await?;
                let mut archiver = bench.start()?;
                suffers(&bench, &mut archiver, there, &words, 120).await?;
                archiver
            }
        };
        disk.free()?;
        bench.finish(archiver).await?;
        bench.check().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_is_waited_for() -> Result<()> {
    for (kind, journal) in [(Kind::Ext4, Journal::Kept), (Kind::Xfs, Journal::Lost)] {
        each(async |version, there, home| {
            let disk = Disk::new(kind, home, "disk")?;
            let Place { bench, _server } = place(version, home, &disk.path, there).await?;
            bench.publish(120).await?;
            let mut archiver = bench.start()?;
            bench.catch_up(&mut archiver).await?;
            disk.cut(journal)?;
            bench.publish(80).await?;
            suffers(&bench, &mut archiver, there, &["Input/output error", "its disk"], 120).await?;
            disk.back()?;
            bench.finish(archiver).await?;
            bench.check().await
        })
        .await
        .with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_not_mounted_is_waited_for() -> Result<()> {
    for version in versions(&APART) {
        let home = tempfile::tempdir()?;
        let disk = Disk::new(Kind::Ext4, home.path(), "disk")?;
        let Place { bench, _server } = place(version, home.path(), &disk.path, There::Files).await?;
        bench.publish(120).await?;
        let mut archiver = bench.start()?;
        bench.catch_up(&mut archiver).await?;
        // Under an archiver that runs, and then under one that begins: what it wrote there would be hidden later.
        for acked in [120, 200] {
            disk.unmount()?;
            bench.publish(80).await?;
            if acked > 120 {
                archiver = bench.start()?;
            }
            suffers(&bench, &mut archiver, There::Files, &["although the checkpoint", "mount its disk"], acked).await?;
            ensure!(!bench.files().exists(), "it began anew below the mount point");
            disk.mount()?;
            bench.catch_up(&mut archiver).await?;
            ensure!(archiver.stop().await?.success(), "{}", archiver.log());
            bench.check().await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_read_only_is_a_wrong_setting() -> Result<()> {
    each(async |version, there, home| {
        let disk = Disk::new(Kind::Ext4, home, "disk")?;
        let Place { bench, _server } = place(version, home, &disk.path, there).await?;
        bench.publish(120).await?;
        bench.finish(bench.start()?).await?;
        bench.publish(80).await?;
        disk.read_only(true)?;
        let mut archiver = bench.start()?;
        let (status, log) = (archiver.ends().await?, archiver.log());
        ensure!(status.code() == Some(2), "{status}:\n{log}");
        let path = there.path(&bench).display().to_string();
        let line = log.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        ensure!(line.contains(path.trim_end_matches('/')) && line.contains("Read-only file system"), "{log}");
        println!("{line}");
        disk.read_only(false)?;
        bench.finish(bench.start()?).await?;
        bench.check().await
    })
    .await
}
