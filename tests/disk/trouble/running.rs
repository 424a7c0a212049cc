//! Trouble that comes while the archiver runs: it goes on when it is over, without being started again.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::{Archiver, Bench, on_each, text};

/// Comes, is said, goes. Meanwhile nothing is acked.
async fn outlasts(
    bench: &Bench,
    archiver: &mut Archiver,
    begin: impl FnOnce() -> Result<()>,
    words: &[&str],
    end: impl FnOnce() -> Result<()>,
) -> Result<()> {
    bench.publish(120).await?;
    bench.catch_up(archiver).await?;
    let acked = bench.acked().await?;
    let before = archiver.said("reopen");
    begin()?;
    bench.publish(80).await?;
    println!("{}", archiver.says(words).await?);
    // It is tried again, and fails again.
    archiver.says_times(&["reopen"], before + 3).await?;
    ensure!(bench.acked().await? == acked, "something is acked");
    end()?;
    bench.catch_up(archiver).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_a_file_for_a_while() -> Result<()> {
    on_each(async |place| {
        let bench = &place.bench;
        let mut archiver = bench.start()?;
        let aside = place.path("aside");
        for (directory, advice) in [(&bench.out, "check that"), (&bench.state, "move what stands in its way")] {
            let begin = || {
                fs::rename(directory, &aside)?;
                Ok(fs::write(directory, "x")?)
            };
            let end = || {
                fs::remove_file(directory)?;
                Ok(fs::rename(&aside, directory)?)
            };
            let named = text(directory);
            outlasts(bench, &mut archiver, begin, &[&named, advice, "Not a directory"], end)
                .await
                .with_context(|| named.clone())?;
        }
        bench.finish(archiver).await?;
        bench.check().await
    })
    .await
}

type At = fn(&Path) -> Result<()>;

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_a_directory_or_a_link_for_a_while() -> Result<()> {
    on_each(async |place| {
        let bench = &place.bench;
        let mut archiver = bench.start()?;
        let path = bench.checkpoint();
        let hinders: [(At, At, &str); 2] = [
            (|path| Ok(fs::create_dir(path)?), |path| Ok(fs::remove_dir(path)?), "found a directory"),
            (|path| Ok(symlink("/dev/null", path)?), |path| Ok(fs::remove_file(path)?), "found a symbolic link"),
        ];
        let aside = place.path("aside");
        for (hinder, free, cause) in hinders {
            let begin = || {
                fs::rename(&path, &aside)?;
                hinder(&path)
            };
            let end = || {
                free(&path)?;
                Ok(fs::rename(&aside, &path)?)
            };
            let named = text(&path);
            outlasts(bench, &mut archiver, begin, &[&named, "move what stands in its way", cause], end).await?;
        }
        bench.finish(archiver).await?;
        bench.check().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_may_not_be_written_for_a_while() -> Result<()> {
    on_each(async |mut place| {
        let mut archiver = place.start_as_nobody()?;
        let bench = &place.bench;
        archiver.says(&["archiving"]).await?;
        let files = bench.files();
        let mode = |mode| Ok(fs::set_permissions(&files, fs::Permissions::from_mode(mode))?);
        let words = [&text(&files), "the permissions of its directory", "Permission denied"];
        outlasts(bench, &mut archiver, || mode(0o500), &words, || mode(0o700)).await?;
        bench.finish(archiver).await?;
        bench.check().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_vanishes_is_waited_for_and_that_of_the_checkpoint_made_anew() -> Result<()> {
    on_each(async |place| {
        let bench = &place.bench;
        let mut archiver = bench.start()?;
        for (directory, named, advice) in
            [(&bench.out, bench.files(), "mount its disk"), (&bench.state, bench.state.clone(), "let it be made anew")]
        {
            bench.publish(120).await?;
            bench.catch_up(&mut archiver).await?;
            let aside = place.path("aside");
            fs::rename(directory, &aside)?;
            bench.publish(80).await?;
            println!("{}", archiver.says(&[&text(&named), advice]).await?);
            // The files come back; the checkpoint is gone for good.
            if directory == &bench.out {
                fs::rename(&aside, directory)?;
            }
            bench.catch_up(&mut archiver).await?;
            bench.check().await?;
        }
        bench.finish(archiver).await?;
        bench.check().await
    })
    .await
}
