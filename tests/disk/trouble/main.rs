//! An archiver whose disk is in trouble says where, why and what to do, acks nothing, and goes on when the trouble is over.
//!
//! Here is what needs no root; full and failing disks are in `power`.

#![allow(clippy::future_not_send, reason = "a test stays on its thread")]

mod running;
mod starting;
mod stopping;

use std::path::Path;
use std::process::Command;

use anyhow::{Error, Result};
use archiver_support::nats::{APART, Server, versions};
use replay_guard_disk_tests::{Archiver, Bench};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_mortal_archiver");

/// A server with a stream, and a place for an archive.
struct Place {
    server: Server,
    bench: Bench,
    home: TempDir,
}

impl Place {
    async fn new(version: &'static str) -> Result<Self> {
        let server = Server::start(version).await.map_err(Error::from_boxed)?;
        let home = tempfile::tempdir()?;
        let bench = Bench::new(&server, PROGRAM, "S", home.path()).await?;
        Ok(Self { server, bench, home })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.home.path().join(name)
    }

    /// An archiver to which permissions matter: nothing is forbidden to root, so root lets somebody else run it.
    fn start_as_nobody(&mut self) -> Result<Archiver> {
        use std::os::unix::fs::PermissionsExt as _;
        if !is_root()? {
            return self.bench.start();
        }
        // Where it was built may be closed to others.
        let program = self.path("archiver");
        if !program.exists() {
            // By a child: were the copy open for writing here, whoever is forked meanwhile would have it open, too, and a
            // program that is written to cannot be run.
            let copied = Command::new("cp").arg(PROGRAM).arg(&program).status()?;
            anyhow::ensure!(copied.success(), "cannot copy {PROGRAM} to {}: {copied}", program.display());
            std::fs::set_permissions(self.home.path(), std::fs::Permissions::from_mode(0o777))?;
            self.bench.program.clone_from(&program);
        }
        let archiver = self.bench.command();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program).args(archiver.get_args());
        self.bench.start_as(command.current_dir(self.home.path()))
    }
}

/// A user id that owns nothing.
const NOBODY: &str = "65534";

fn is_root() -> Result<bool> {
    Ok(Command::new("id").arg("-u").output()?.stdout == b"0\n")
}

/// A path, as an error names it.
fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Runs a test with a place on each version.
async fn on_each(test: impl AsyncFn(Place) -> Result<()>) -> Result<()> {
    for version in versions(&APART) {
        test(Place::new(version).await?).await.map_err(|error| error.context(version))?;
    }
    Ok(())
}
