//! The power goes while a server and an archiver run, again and again; in the end each message of the stream is archived
//! once. How often: a few times, or as often as the environment variable `REPLAY_GUARD_CUTS` says.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Error, Result, ensure};
use archiver_support::nats::{APART, Server, versions};
use replay_guard_disk_tests::{Archiver, Bench, PATIENCE, POLL};
use tokio::time::{Instant, sleep, timeout};

use crate::PROGRAM;
use crate::disk::{Disk, Kind};

/// How many messages are published at a time.
const BATCH: u64 = 50;
/// How many messages are flushed at a time.
const FLUSH: u32 = 200;

/// How often the power goes.
fn cuts() -> Result<u64> {
    match std::env::var("REPLAY_GUARD_CUTS") {
        Ok(text) => text.parse().with_context(|| format!("REPLAY_GUARD_CUTS={text}")),
        Err(_) => Ok(3),
    }
}

/// Small numbers that differ from run to run; the seed is printed.
struct Dice(u64);

impl Dice {
    fn new() -> Result<Self> {
        let seed = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?;
        println!("seed {seed}");
        Ok(Self(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A server and an archiver, on one machine or on two.
struct Machines {
    server: Server,
    bench: Bench,
    archiver: Option<Archiver>,
    servers: Disk,
    archivers: Option<Disk>,
}

impl Machines {
    async fn new(version: &'static str, kind: Kind, two: bool, home: &Path) -> Result<Self> {
        let servers = Disk::new(kind, home, "server")?;
        let archivers = if two { Some(Disk::new(kind, home, "archiver")?) } else { None };
        let server = Server::start_on(version, &servers.path.join("store")).await.map_err(Error::from_boxed)?;
        let mut bench = Bench::new(&server, PROGRAM, "S", home).await?;
        let here = archivers.as_ref().unwrap_or(&servers);
        bench.out = here.path.join("archive");
        bench.state = here.path.join("state");
        // The stream itself is old and safe; what follows is not.
        servers.sync()?;
        Ok(Self { server, bench, archiver: None, servers, archivers })
    }

    fn start(&self) -> Result<Archiver> {
        self.bench.start_as(&mut self.bench.command_flushing(FLUSH, "0.2"))
    }

    /// Waits until the archiver is this close behind: what it has just archived, the server may be about to lose.
    async fn follow(&self, lag: u64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stream = self.bench.jetstream.get_stream("S").await?;
            if self.bench.acked().await? + lag >= stream.cached_info().state.last_sequence {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the archiver does not follow");
            sleep(POLL).await;
        }
    }

    /// Publishes while the archiver works, until so many are there; then the power goes in the middle of it. Returns
    /// when it is back.
    async fn cut(&mut self, dice: &mut Dice, number: u64) -> Result<()> {
        if self.archiver.is_none() {
            self.archiver = Some(self.start()?);
        }
        let wanted = self.bench.published.load(Ordering::Relaxed) + 500 + dice.below(2_500);
        let written_back = (dice.below(10) < 7).then(|| wanted - 100 - dice.below(400));
        let mut synced = false;
        while self.bench.published.load(Ordering::Relaxed) < wanted {
            let published = timeout(PATIENCE, self.bench.publish(BATCH)).await.context("the server takes nothing")?;
            published.context("before the cut")?;
            if !synced && written_back.is_some_and(|at| self.bench.published.load(Ordering::Relaxed) >= at) {
                self.servers.sync()?;
                synced = true;
            }
            if let Some(archiver) = &mut self.archiver {
                archiver.runs()?;
            }
        }
        self.follow(dice.below(1_000)).await?;
        self.bench.publish(dice.below(3) * BATCH).await?;
        let journal = self.servers.journal(dice.below(2) == 0);
        match &self.archivers {
            // Only the archiver's machine.
            Some(disk) if number % 2 == 1 => {
                disk.cut(journal)?;
                self.archiver = None;
                disk.back()?;
                self.archiver = Some(self.start()?);
            }
            // The server's machine, with the archiver on it if there is one only.
            apart => {
                self.servers.cut(journal)?;
                if apart.is_none() {
                    self.archiver = None;
                }
                self.server.kill().map_err(Error::from_boxed)?;
                self.servers.back()?;
                self.server.restart().await.map_err(Error::from_boxed)?;
                self.bench.connect(&self.server).await?;
                self.bench.make_stream().await?;
            }
        }
        // The stream may outgrow an old checkpoint before the archiver is back.
        self.bench.publish(dice.below(4) * 10 * BATCH).await
    }
}

async fn cut_again_and_again(kind: Kind, two: bool) -> Result<()> {
    let mut dice = Dice::new()?;
    for version in versions(&APART) {
        let (home, began) = (tempfile::tempdir()?, Instant::now());
        let mut machines = Machines::new(version, kind, two, home.path()).await?;
        for number in 0..cuts()? {
            machines.cut(&mut dice, number).await.with_context(|| format!("{version}, cut {number}"))?;
        }
        let Machines { bench, archiver, .. } = &mut machines;
        bench.publish(BATCH).await?;
        let archiver = match archiver.take() {
            Some(archiver) => archiver,
            None => bench.start_as(&mut bench.command_flushing(FLUSH, "0.2"))?,
        };
        bench.finish(archiver).await?;
        let (lost, twice, old) = bench.count().await?;
        let held = bench.stream().await?.len();
        let published = bench.published.load(Ordering::Relaxed);
        println!(
            "nats-server {version}, {kind:?}, {} cuts, {published} published, {held} in the stream: lost {lost}, twice {twice}, only in the \
             archive {old}; {:?}",
            cuts()?,
            began.elapsed()
        );
        ensure!((lost, twice) == (0, 0), "{version}: lost {lost}, twice {twice}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_machine_on_ext4() -> Result<()> {
    cut_again_and_again(Kind::Ext4, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_machine_on_xfs() -> Result<()> {
    cut_again_and_again(Kind::Xfs, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_machine_on_btrfs() -> Result<()> {
    cut_again_and_again(Kind::Btrfs, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_on_ext4() -> Result<()> {
    cut_again_and_again(Kind::Ext4, true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_on_xfs() -> Result<()> {
    cut_again_and_again(Kind::Xfs, true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_on_btrfs() -> Result<()> {
    cut_again_and_again(Kind::Btrfs, true).await
}
