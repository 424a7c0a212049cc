//! How far the archiver is: a bar on a terminal while a backlog is read, plain log lines otherwise.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use replay_guard::Status;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, MissedTickBehavior};
use tracing_subscriber::EnvFilter;

/// How often the bar moves.
const LOOK: Duration = Duration::from_secs(1);
/// How often a line is logged where there is no terminal.
const REPORT: Duration = Duration::from_secs(10);
/// From how many undelivered messages on the archiver counts as behind.
const BACKLOG: u64 = 5_000;

/// What the sink has made durable since the program began.
#[derive(Debug, Default)]
pub struct Progress {
    records: AtomicU64,
    bytes: AtomicU64,
    flushes: AtomicU64,
    /// Of the driver, once it is open.
    status: OnceLock<Receiver<Status>>,
}

impl Progress {
    /// The driver is open.
    pub fn begin(&self, status: Receiver<Status>) {
        self.status.get_or_init(|| status);
    }

    /// Whether the driver was ever open.
    pub fn has_begun(&self) -> bool {
        self.status.get().is_some()
    }

    /// How many messages the consumer has not delivered, as the driver was told last.
    fn remaining(&self) -> Option<u64> {
        self.status.get().map(|status| status.borrow().remaining)
    }

    /// One more file, object or transaction.
    pub fn archived(&self, records: usize, bytes: u64) {
        self.records.fetch_add(records as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Records made durable.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }
}

/// Sets up the log on standard error and returns the bar it makes room for.
pub fn start_log(filter: &str) -> anyhow::Result<ProgressBar> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("--log {filter:?} is not understood"))?;
    // It is shown only while there is a backlog.
    let bar = ProgressBar::hidden();
    let style = "{spinner} {human_pos} of {human_len} archived, {rate} per second, about {eta} left";
    let style = ProgressStyle::with_template(style).context("the progress bar's template")?;
    bar.set_style(style.with_key("rate", |state: &ProgressState, to: &mut dyn fmt::Write| {
        // A failure would be one of the terminal's, which the bar meets itself.
        let _ = write!(to, "{:.0}", state.per_sec());
    }));
    let beside = bar.clone();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(move || Beside { bar: beside.clone() });
    log.try_init().map_err(|error| anyhow::anyhow!("cannot set up the log: {error}"))?;
    Ok(bar)
}

/// Writes lines above the bar instead of through it.
struct Beside {
    bar: ProgressBar,
}

impl Write for Beside {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.bar.suspend(|| io::stderr().write_all(line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Shows how far the archiver is, for ever.
pub async fn watch(progress: Arc<Progress>, bar: ProgressBar) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let terminal = io::stderr().is_terminal();
    let (mut reported_at, mut reported) = (Instant::now(), 0);
    // How many were archived when the backlog began, while there is one.
    let mut backlog = None;
    loop {
        tick.tick().await;
        let remaining = progress.remaining();
        let records = progress.records();
        let behind = remaining.map_or(backlog.is_some(), |remaining| is_behind(backlog.is_some(), remaining));
        if terminal {
            show(&bar, records, remaining, backlog, behind);
        } else if reported_at.elapsed() >= REPORT {
            if records > reported || behind {
                report(&progress, records - reported, reported_at.elapsed(), remaining);
            }
            (reported_at, reported) = (Instant::now(), records);
        }
        backlog = behind.then(|| backlog.unwrap_or(records));
    }
}

fn show(bar: &ProgressBar, records: u64, remaining: Option<u64>, backlog: Option<u64>, behind: bool) {
    if behind {
        if backlog.is_none() {
            bar.reset();
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        let done = records - backlog.unwrap_or(records);
        bar.set_position(done);
        if let Some(remaining) = remaining {
            bar.set_length(done + remaining);
        }
        bar.tick();
    } else if backlog.is_some() {
        bar.finish_and_clear();
        bar.set_draw_target(ProgressDrawTarget::hidden());
        tracing::info!(archived = records, "caught up");
    }
}

fn report(progress: &Progress, new: u64, elapsed: Duration, remaining: Option<u64>) {
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
    let per_second = (new as f64 / elapsed.as_secs_f64()) as u64;
    tracing::info!(
        archived = progress.records(),
        flushes = progress.flushes.load(Ordering::Relaxed),
        bytes = progress.bytes.load(Ordering::Relaxed),
        per_second,
        remaining = remaining.map_or_else(|| "unknown".to_owned(), |remaining| remaining.to_string()),
        "progress"
    );
}

/// Behind from [`BACKLOG`] on, and then until nearly nothing is left: no flicker at the edge.
const fn is_behind(was: bool, remaining: u64) -> bool {
    if was { remaining > BACKLOG / 10 } else { remaining >= BACKLOG }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_comes_and_goes_without_flicker() {
        let mut behind = false;
        let seen = [4_999, 5_000, 4_000, 501, 500, 4_000].map(|remaining| {
            behind = is_behind(behind, remaining);
            behind
        });
        assert_eq!(seen, [false, true, true, true, false, false]);
    }
}
