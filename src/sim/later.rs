//! What came to the model later. Drawn from numbers of its own, so that a seed whose life is known stays that life.

use super::accident::Accident;
use super::held::Kept;
use super::life::{Life, Step};
use super::{Disk, Rng};

/// What a world may have besides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Later {
    /// How often the sink is pending before it takes a record, and before it flushes.
    pub(crate) slow: (u32, u32),
    /// Power cuts may leave the consumer's state unreadable.
    damages: bool,
    /// Others take deliveries of the consumer.
    workers: bool,
    /// Somebody pauses the consumer.
    pauses: bool,
}

impl Later {
    fn draw(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng, n: u64| if rng.one_in(3) { u32::try_from(rng.below(n)).unwrap() } else { 0 };
        Self {
            slow: (some(rng, 40), some(rng, 500)),
            damages: rng.one_in(3),
            workers: rng.one_in(4),
            pauses: rng.one_in(4),
        }
    }

    fn step(self, rng: &mut Rng) -> Option<Step> {
        let number = |rng: &mut Rng, n: u64| u32::try_from(1 + rng.below(n)).unwrap();
        let accident = match rng.below(3) {
            0 if self.damages => {
                let (tail, then) = (if rng.one_in(2) { 0 } else { rng.below(14) }, rng.below(12));
                Accident::Loss { tail, kept: Kept::Damaged, noticed: !rng.one_in(4), then }
            }
            1 if self.workers => Accident::Worker { takes: number(rng, 12), acks: rng.one_in(2) },
            2 if self.pauses => Accident::Pause(i64::from(number(rng, 100_000))),
            _ => return None,
        };
        Some(if rng.one_in(3) { Step::Later(number(rng, 40), accident) } else { Step::Now(accident) })
    }

    pub(crate) fn begin(self, sink: &Disk) {
        sink.inside().slow = self.slow;
    }
}

impl Life {
    /// The life of this seed, in a world that has all that the model has.
    pub(crate) fn new(seed: u64) -> Self {
        let mut life = Self::plain(seed);
        let rng = &mut Rng::new(seed ^ 0x1a7e);
        if rng.one_in(2) {
            return life;
        }
        life.later = Later::draw(rng);
        for _ in 0..rng.below(12) {
            let Some(step) = life.later.step(rng) else { continue };
            let at = usize::try_from(rng.below(life.steps.len() as u64)).unwrap();
            life.steps.insert(at, step);
        }
        life
    }
}
