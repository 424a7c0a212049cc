//! Named points at which the process dies when a test wants it. Only with the feature `crash-points`.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where to die, and at which passing: `slot-written:3`.
const VARIABLE: &str = "REPLAY_GUARD_CRASH_AT";

static CHOSEN: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
    let text = std::env::var(VARIABLE).ok()?;
    let chosen = text.rsplit_once(':').and_then(|(name, count)| Some((name.to_owned(), count.parse().ok()?)));
    // A test that would only seem to kill must not go on.
    if chosen.is_none() {
        eprintln!("{VARIABLE}={text}: expected a name and a count, such as slot-written:3");
        std::process::exit(2);
    }
    chosen
});
static PASSED: AtomicU64 = AtomicU64::new(0);

fn is_due(point: &str) -> bool {
    matches!(&*CHOSEN, Some((name, count)) if name == point && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *count)
}

/// Dies here, without any more work, if this is the point.
pub fn point(name: &str) {
    if is_due(name) {
        std::process::abort();
    }
}

/// Dies while the work is done, if this is the point.
pub fn during<T>(name: &str, work: impl FnOnce() -> T) -> T {
    if !is_due(name) {
        return work();
    }
    let death = std::thread::spawn(|| std::process::abort());
    let done = work();
    // It never returns.
    let _ = death.join();
    done
}
