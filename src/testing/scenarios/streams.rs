//! The stream loses its tail, or is made anew; and several sources beside each other.

use super::{Promise, tally};
use crate::rng::Rng;
use crate::sink::Reason;
use crate::source::Source;
use crate::testing::Storage;
use crate::testing::conformance::{Conformance, Tried};
use crate::testing::life::{Crash, Life, Stop};
use crate::testing::watched::Watch;

/// Archives some flushes of one size, and perhaps leaves one with the sink.
async fn begin<S: Storage>(life: &mut Life<'_, S>, each: u64, flushes: u64) -> Result<(), Stop> {
    life.open().await?;
    life.publish(each * flushes);
    life.archive(usize::try_from(each).unwrap_or(1)).await?;
    if life.rng.one_in(2) {
        life.publish(each);
        while life.deliver_next().await? {}
    }
    if life.rng.one_in(3) {
        let power = life.rng.one_in(2);
        life.crash(Crash { power, checkpoint: false }).await?;
    }
    Ok(())
}

/// The next life is archived in the same portions, so that its records have the sequences of the earlier one's.
async fn go_on<S: Storage>(life: &mut Life<'_, S>, each: u64, through: u64) -> Result<(), Stop> {
    life.publish(through.saturating_sub(life.last()).max(1));
    if life.guard.is_none() {
        life.open().await?;
    } else {
        life.session().await?;
    }
    life.archive(usize::try_from(each).unwrap_or(1)).await?;
    life.flush(Reason::Everything).await
}

/// In the end, perhaps, the checkpoint is lost with all lives in the storage.
async fn end<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    if life.rng.one_in(2) {
        let power = life.rng.one_in(2);
        life.crash(Crash { power, checkpoint: true }).await?;
    }
    life.finish().await
}

pub(super) async fn fork<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    let (each, flushes) = (1 + life.rng.below(4), 2 + life.rng.below(3));
    begin(life, each, flushes).await?;
    for _ in 0..=life.rng.below(2) {
        let through = life.last();
        // At the border of a flush the next life gets the very same portions; elsewhere a portion holds both.
        let at = if life.rng.one_in(3) { life.rng.below(through) } else { each * life.rng.below(flushes) };
        life.lose_above(at);
        go_on(life, each, through).await?;
    }
    end(life).await
}

pub(super) async fn recreated<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    let (each, flushes) = (1 + life.rng.below(4), 1 + life.rng.below(3));
    begin(life, each, flushes).await?;
    let through = life.last();
    life.recreate();
    go_on(life, each, through).await?;
    end(life).await
}

/// Sources that look alike.
fn look_alikes() -> [Source; 5] {
    [
        Source::new("KIT"),
        Source::new("kit"),
        Source::new("KIT").with_filters(["kit.a"]),
        Source::new("KIT").with_filters(["kit_a"]),
        Source::new("KIT").with_domain("kit"),
    ]
}

/// Several sources in one storage, with the same sequences and times.
pub(super) async fn sources<S: Storage>(
    kit: &Conformance,
    tried: &mut Tried,
    storage: &S,
    case: u64,
    watch: &Watch,
) -> Result<(), Stop> {
    let mut lives = Vec::new();
    for source in look_alikes() {
        let rng = Rng::new(kit.seed ^ (case + 1) << 8);
        let mut life = Life::new(kit, tried.facts(), storage, String::new(), rng, Watch::default());
        life.source = source;
        lives.push(life);
    }
    let mut outcome = Ok(());
    for (name, step) in [("begin", 0), ("go on", 1), ("stop", 2), ("power", 3), ("again", 4), ("rest", 5)] {
        for life in &mut lives {
            watch.step(format!("{}: {name}", life.source));
            outcome = side_by_side(life, step).await;
            if outcome.is_err() {
                for step in life.watch.steps() {
                    watch.step(format!("  {step}"));
                }
                break;
            }
        }
        if outcome.is_err() {
            break;
        }
    }
    for life in &lives {
        tally(life, tried);
    }
    outcome.map_err(|stop| match stop {
        // What is wrong with one alone was found before.
        Stop::Broken(found) if !matches!(found.promise, Promise::Works | Promise::Answered) => {
            found.instead(Promise::SourcesApart).into()
        }
        stop => stop,
    })
}

async fn side_by_side<S: Storage>(life: &mut Life<'_, S>, step: u32) -> Result<(), Stop> {
    match step {
        0 => {
            life.open().await?;
            life.publish(4);
            while life.deliver_next().await? {}
            Ok(())
        }
        1 => {
            life.flush(Reason::Due).await?;
            life.publish(5);
            life.archive(2).await
        }
        2 => life.die().await,
        // All are gone by now, and none is back.
        3 => life.power_cut().await,
        4 => life.open().await,
        _ => {
            life.publish(2);
            life.archive(2).await?;
            life.rest().await
        }
    }
}
