//! What can go wrong with a server and its stream.

use super::held::Kept;
use super::stream::State;
use super::{MS, Rng};

#[derive(Clone, Debug)]
pub(crate) enum Accident {
    /// The power of the server goes: so many messages at the end of the stream are lost, and others are published under
    /// their numbers.
    Loss {
        tail: u64,
        kept: Kept,
        noticed: bool,
        then: u64,
    },
    /// A message is deleted; in thousandths of the stream.
    Delete(u64),
    /// Everything below is gone; in thousandths of the stream.
    Expire(u64),
    Purge,
    Recreate {
        then: u64,
    },
    BackUp,
    Restore {
        kept: Kept,
        then: u64,
    },
    /// The creation time moves for the same stream.
    Drift,
    /// The wall clock of the server steps back by so many milliseconds.
    StepBack(i64),
    Reconnect {
        down: i64,
    },
    Publish {
        count: u64,
    },
    LoseAcks(u32),
    LoseDeliveries(u32),
    /// So many requests go unanswered.
    Silent(u32),
    RefuseResets(u32),
    /// The disk has all of the consumer: what a power cut leaves is at least this old.
    WriteState,
    /// Somebody deletes the consumer.
    DeleteConsumer,
    /// Somebody else takes so many of its deliveries.
    Worker {
        takes: u32,
        acks: bool,
    },
    /// Somebody pauses it, for so many milliseconds.
    Pause(i64),
}

impl Accident {
    pub(crate) fn happen(&self, state: &mut State) {
        let last = state.last;
        let at = |thousandths: u64| 1 + last * thousandths / 1_000;
        match *self {
            Self::Loss { tail, kept, noticed, then } => {
                if !noticed {
                    state.server.lose_deliveries = 0;
                }
                let through = last.saturating_sub(tail);
                state.lose_to(through);
                if tail > 0 {
                    state.cut(through, noticed);
                }
                // The removals of acked messages are not synced either.
                let back = state.server.rng.below(4);
                for _ in 0..back {
                    if let Some((at, message)) = state.server.removed.pop().filter(|(at, _)| *at <= through) {
                        state.messages.insert(at, message);
                        state.server.brought_back = true;
                    }
                }
                state.server.removed.clear();
                state.reload(kept);
                if noticed {
                    state.reconnect(200 * MS);
                }
                publish(state, then);
            }
            Self::Delete(where_) => {
                state.messages.remove(&at(where_));
            }
            Self::Expire(below) => {
                let kept = state.messages.split_off(&at(below));
                state.server.dropped.extend(std::mem::replace(&mut state.messages, kept));
            }
            Self::Purge => state.server.dropped.extend(std::mem::take(&mut state.messages)),
            Self::Recreate { then } => {
                state.recreate();
                state.cut(0, true);
                state.server.removed.clear();
                state.reload(Kept::Gone);
                state.reconnect(MS);
                publish(state, then);
            }
            Self::BackUp => state.backup = Some((state.messages.clone(), state.last)),
            Self::Restore { kept, then } => {
                let Some((messages, through)) = &state.backup else { return };
                // What it shares with what is there now.
                let differs = state
                    .messages
                    .range(..=through)
                    .find(|(at, message)| messages.get(at).is_some_and(|before| before != *message));
                let same = differs.map_or((*through).min(last), |(at, _)| at - 1);
                let there = std::mem::take(&mut state.messages);
                state.restore();
                // What was deleted stays deleted: a backup that brings it back is another stream to nobody.
                state.messages.retain(|at, _| *at > same || there.contains_key(at));
                let back = state.messages.iter().filter(|(at, message)| there.get(at) != Some(message));
                state.server.restored.extend(back.map(|(at, message)| message.id(*at)));
                state.cut(same, true);
                state.server.removed.clear();
                state.reload(if kept == Kept::All { Kept::Gone } else { kept });
                state.reconnect(MS);
                publish(state, then);
            }
            Self::Drift => state.created += 7 * MS,
            Self::StepBack(milliseconds) => {
                state.clock -= milliseconds * MS;
                state.server.stepped_back = true;
            }
            Self::Reconnect { down } => state.reconnect(down * MS),
            Self::Publish { count } => publish(state, count),
            Self::LoseAcks(count) => state.server.lose_acks = count,
            // A consumer that falls back unnoticed by as many deliveries as are lost right after seems never to have fallen.
            Self::LoseDeliveries(count) => {
                state.server.lose_deliveries = if state.server.forked_unnoticed > 0 { 0 } else { count };
                state.server.shared = true;
            }
            Self::Worker { takes, acks } => state.worker(takes, acks),
            Self::Pause(milliseconds) => {
                let until = state.clock + milliseconds * MS;
                if let Some(held) = &mut state.server.held {
                    held.paused_until = until;
                    state.server.paused = true;
                }
            }
            Self::Silent(count) => state.silent = count,
            Self::RefuseResets(count) => state.server.refuse_resets = count,
            Self::WriteState => state.server.snapshot.clone_from(&state.server.held),
            Self::DeleteConsumer => (state.server.held, state.server.left) = (None, None),
        }
    }

    /// Any of them. `removals`: whether messages may go.
    pub(crate) fn any(rng: &mut Rng, removals: bool, steps_back: bool) -> Self {
        match rng.below(24) {
            0..=5 => Self::Loss {
                tail: if rng.one_in(5) { 0 } else { 1 + rng.below(14) },
                kept: Kept::any(rng),
                noticed: !rng.one_in(3),
                then: if rng.one_in(3) { 0 } else { rng.below(20) },
            },
            6 if removals => Self::Delete(rng.below(1_000)),
            7 if removals && rng.one_in(3) => Self::Purge,
            7 if removals => Self::Expire(rng.below(1_000)),
            8 if rng.one_in(3) => Self::Recreate { then: rng.below(20) },
            9 => Self::BackUp,
            // An older life together with messages that go is beyond what is promised, as a clock that steps back is.
            10 if !removals && rng.one_in(2) => Self::Restore { kept: Kept::any(rng), then: rng.below(16) },
            11 => Self::Drift,
            12 if steps_back => Self::StepBack(i64::try_from(1 + rng.below(20_000)).unwrap()),
            13 => Self::Reconnect { down: i64::try_from(rng.below(3_000)).unwrap() },
            14 | 15 => Self::Publish { count: 1 + rng.below(6) },
            16 => Self::LoseAcks(u32::try_from(1 + rng.below(12)).unwrap()),
            17 => Self::LoseDeliveries(u32::try_from(1 + rng.below(4)).unwrap()),
            18 | 19 => Self::Silent(u32::try_from(1 + rng.below(6)).unwrap()),
            20 => Self::RefuseResets(u32::try_from(1 + rng.below(3)).unwrap()),
            21 | 22 => Self::WriteState,
            _ => Self::DeleteConsumer,
        }
    }
}

impl Kept {
    fn any(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0..=2 => Self::All,
            3 => Self::Nothing,
            4 | 5 => Self::Older,
            6 => Self::State,
            _ => Self::Gone,
        }
    }
}

/// Messages of several subjects; some are not the source's.
pub(crate) fn publish(state: &mut State, count: u64) {
    for _ in 0..count {
        let n = state.server.rng.below(7);
        let others = !state.server.prefix.is_empty() && n < 3;
        let subject = if others { "other.1".to_owned() } else { format!("orders.{n}") };
        state.publish(&subject);
    }
}
