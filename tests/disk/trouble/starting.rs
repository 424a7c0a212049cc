//! Trouble that is there when the archiver starts: it ends with the code for a wrong setting.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::{Archiver, Bench, Place, on_each, text};

/// It ends with code 2 and says all of this in one line; nothing is acked.
async fn refuses(bench: &Bench, mut archiver: Archiver, words: &[&str]) -> Result<()> {
    let status = archiver.ends().await?;
    let log = archiver.log();
    ensure!(status.code() == Some(2), "{status}:\n{log}");
    let line = log.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    ensure!(words.iter().all(|word| line.contains(word)), "expected {words:?} in:\n{log}");
    println!("{line}");
    ensure!(bench.acked().await? == 0, "something is acked");
    Ok(())
}

type Hinder = fn(&Bench, &Path) -> Result<()>;
type Named = fn(&Bench) -> PathBuf;

/// What stands in the way, which path is named, and what is said.
const IN_THE_WAY: [(Hinder, Named, [&str; 2]); 7] = [
    (
        |bench, _| Ok(fs::write(&bench.out, "x")?),
        |bench| bench.out.clone(),
        ["check that it is one", "Not a directory"],
    ),
    (
        |bench, _| Ok(symlink("nowhere", &bench.out)?),
        |bench| bench.out.clone(),
        ["check that it is one", "No such file or directory"],
    ),
    (|bench, _| Ok(fs::write(&bench.state, "x")?), |bench| bench.state.clone(), ["in its way", "Not a directory"]),
    (|_, at| Ok(fs::create_dir_all(at)?), Bench::checkpoint, ["in its way", "found a directory"]),
    (|_, at| link(at), Bench::checkpoint, ["in its way", "found a symbolic link"]),
    (
        |_, at| Ok(fs::create_dir_all(at)?),
        |bench| bench.checkpoint().with_extension("lock"),
        ["in its way", "found a directory"],
    ),
    (|_, at| link(at), |bench| bench.checkpoint().with_extension("ckpt.tmp"), ["in its way", "found a symbolic link"]),
];

fn link(at: &Path) -> Result<()> {
    fs::create_dir_all(at.with_file_name(""))?;
    Ok(symlink("/dev/null", at)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_the_way_is_named_and_left_as_it_is() -> Result<()> {
    on_each(async |place| {
        let bench = &place.bench;
        bench.publish(60).await?;
        for (hinder, named, [advice, cause]) in IN_THE_WAY {
            let path = named(bench);
            if path.is_file() {
                // A lock that was made while something else stood in the way.
                fs::remove_file(&path)?;
            }
            hinder(bench, &path)?;
            refuses(bench, bench.start()?, &[&text(&path), advice, cause]).await?;
            let there = fs::symlink_metadata(&path)?;
            ensure!(there.is_dir() || fs::remove_file(&path).is_ok(), "{} is something else", path.display());
            if there.is_dir() {
                fs::remove_dir(&path)?;
            }
        }
        bench.finish(bench.start()?).await?;
        bench.check().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_without_permission_is_named() -> Result<()> {
    on_each(async |mut place| {
        place.bench.publish(60).await?;
        // As they are made by it: then it may do all but write.
        let mut archiver = place.start_as_nobody()?;
        archiver.says(&["archiving"]).await?;
        // All of it: an ack that came later would look as if it were of what is forbidden.
        place.bench.finish(archiver).await?;
        let acked = place.bench.acked().await?;
        place.bench.publish(60).await?;
        let state = place.bench.checkpoint().with_file_name("");
        for directory in [place.bench.files(), state] {
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o500))?;
            let mut archiver = place.start_as_nobody()?;
            let status = archiver.ends().await?;
            let log = archiver.log();
            ensure!(status.code() == Some(2), "{status}:\n{log}");
            let named = text(&directory);
            for word in [named.trim_end_matches('/'), "Permission denied", "this user"] {
                ensure!(
                    log.lines().any(|line| line.starts_with("error: ") && line.contains(word)),
                    "no {word} in\n{log}"
                );
            }
            ensure!(place.bench.acked().await? == acked, "something is acked");
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        }
        let archiver = place.start_as_nobody()?;
        place.bench.finish(archiver).await?;
        place.bench.check().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_archiver_on_one_state_directory_is_refused() -> Result<()> {
    on_each(async |place| {
        let Place { bench, .. } = &place;
        let mut first = bench.start()?;
        first.says(&["archiving"]).await?;
        let lock = text(&bench.checkpoint().with_extension("lock"));
        refuses(bench, bench.start()?, &["in use", &lock, "end the other one"]).await?;
        bench.publish(120).await?;
        bench.finish(first).await?;
        // Freed by the end of the first.
        bench.publish(20).await?;
        bench.finish(bench.start()?).await?;
        bench.check().await
    })
    .await
}
