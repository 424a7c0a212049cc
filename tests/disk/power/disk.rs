//! File systems in images: filled, broken and cut off.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use replay_guard_disk_tests::{PATIENCE, POLL};

/// Which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

/// What of the journal is on the disk when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    /// All of it, but of the data only what was written back.
    Kept,
    /// Only what was synced.
    Lost,
}

/// A file system in an image. Dropped: unmounted.
#[derive(Debug)]
pub(crate) struct Disk {
    kind: Kind,
    image: PathBuf,
    /// Where it is mounted.
    pub(crate) path: PathBuf,
    /// For a file system that cannot be shut down: one that can clone the image, and the clone.
    outer: Option<(PathBuf, PathBuf)>,
}

impl Disk {
    /// Makes and mounts one below a directory.
    pub(crate) fn new(kind: Kind, below: &Path, name: &str) -> Result<Self> {
        let base = below.join(name);
        let path = base.join("mounted");
        fs::create_dir_all(&path)?;
        let mut disk = Self { kind, image: base.join("image"), path, outer: None };
        if kind == Kind::Btrfs {
            let (outer, image) = (base.join("outer"), base.join("outer.image"));
            fs::create_dir(&outer)?;
            make("xfs", &image, 4 << 30)?;
            run("mount", &["-o", "loop", text(&image)?, text(&outer)?]).context(NEEDED)?;
            disk.image = outer.join("image");
            disk.outer = Some((outer.clone(), outer.join("clone")));
        }
        let name = match kind {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        };
        make(name, &disk.image, 512 << 20)?;
        // While it is not mounted there is no room: what an archiver that tries again wrote below would be hidden later.
        run("mount", &["-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "tmpfs", text(&disk.path)?]).context(NEEDED)?;
        disk.mount()?;
        Ok(disk)
    }

    pub(crate) fn mount(&self) -> Result<()> {
        run("mount", &["-o", "loop", text(&self.image)?, text(&self.path)?]).context(NEEDED)
    }

    /// Mounts it anew so that nothing can be written, or so that it can.
    pub(crate) fn read_only(&self, is: bool) -> Result<()> {
        run("mount", &["-o", if is { "remount,ro" } else { "remount,rw" }, text(&self.path)?])
    }

    /// Writes back everything, as the system does by itself at some moment.
    pub(crate) fn sync(&self) -> Result<()> {
        run("sync", &["-f", text(&self.path)?])
    }

    /// Cuts the power: at once, whatever runs. On ext4 and xfs all that is tried from now on fails.
    pub(crate) fn cut(&self, journal: Journal) -> Result<()> {
        if let Some((_, clone)) = &self.outer {
            return run("cp", &["--reflink=always", text(&self.image)?, text(clone)?]);
        }
        let how = if journal == Journal::Kept { "shutdown -f" } else { "shutdown" };
        run("xfs_io", &["-x", "-c", how, text(&self.path)?])
    }

    /// Takes the disk away: what is left is the directory that it was mounted on, with room.
    pub(crate) fn unmount(&self) -> Result<()> {
        self.let_go()?;
        // What leaves no room there is away already after the first time.
        let _ = run("umount", &["--quiet", text(&self.path)?]);
        Ok(())
    }

    fn let_go(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = run("umount", &[text(&self.path)?]) {
            ensure!(Instant::now() < deadline, "somebody keeps the disk: {error:#}");
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Mounts what the cut left, once nobody has a file open there.
    pub(crate) fn back(&self) -> Result<()> {
        self.let_go()?;
        if let Some((_, clone)) = &self.outer {
            fs::rename(clone, &self.image)?;
        }
        self.mount()
    }

    /// Whether a cut can leave the journal without the data.
    pub(crate) fn journal(&self, kept: bool) -> Journal {
        if kept && self.kind != Kind::Btrfs { Journal::Kept } else { Journal::Lost }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nothing can be done about a failure here.
        for path in
            [Some(&self.path), Some(&self.path), self.outer.as_ref().map(|(outer, _)| outer)].into_iter().flatten()
        {
            let _ = Command::new("umount").args(["--lazy", "--quiet"]).arg(path).status();
        }
    }
}

/// A small file system in memory. Dropped: unmounted.
#[derive(Debug)]
pub(crate) struct Small {
    /// Where it is mounted.
    pub(crate) path: PathBuf,
}

impl Small {
    pub(crate) fn new(below: &Path) -> Result<Self> {
        let path = below.join("small");
        fs::create_dir(&path)?;
        run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", text(&path)?]).context(NEEDED)?;
        Ok(Self { path })
    }

    /// Leaves no room.
    pub(crate) fn fill(&self) -> Result<()> {
        match fs::write(self.path.join("filler"), vec![0; 2 << 20]) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Ok(()),
            other => bail!("it was to be full: {other:?}"),
        }
    }

    /// Makes room again.
    pub(crate) fn free(&self) -> Result<()> {
        Ok(fs::remove_file(self.path.join("filler"))?)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy", "--quiet"]).arg(&self.path).status();
    }
}

const NEEDED: &str = "the tests of the feature power-cut must run as root where file systems can be mounted from images, with \
                      mkfs.ext4, mkfs.xfs, xfs_io and mkfs.btrfs installed";

fn make(kind: &str, image: &Path, size: u64) -> Result<()> {
    fs::File::create(image)?.set_len(size)?;
    run(&format!("mkfs.{kind}"), &["-q", text(image)?]).context(NEEDED)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let said = Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    let error = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "{program} {} failed: {}", arguments.join(" "), error.trim());
    Ok(())
}
