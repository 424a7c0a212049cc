//! The consumer that the server holds: deliveries, acks, deadlines.

use std::collections::BTreeMap;

use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy};

use super::stream::{Message, State};
use crate::jetstream::ack::{Answer, Delivery};
use crate::jetstream::consumer::NAMES;
use crate::record::RecordId;

/// A message on its way to the client.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) reply: String,
    pub(crate) message: Message,
}

impl Wire {
    pub(crate) fn is(&self, id: RecordId) -> bool {
        Delivery::parse(&self.reply).is_some_and(|delivery| delivery.id == id)
    }
}

/// An ack that the server took, and what it reached.
#[derive(Clone, Debug)]
pub(crate) struct Acked {
    pub(crate) meant: RecordId,
    /// What stands at the sequences that were pending and are not any more.
    pub(crate) reached: Vec<(RecordId, Message)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    due: i64,
    times: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) delivered: u64,
    pub(crate) consumer_sequence: u64,
    pub(crate) pending: BTreeMap<u64, Waiting>,
    /// Before 2.14 the floor of one that begins at a sequence is said to be 0 until the first ack.
    floor_unsaid: bool,
}

impl Progress {
    fn floor(&self) -> u64 {
        match self.pending.keys().next() {
            _ if self.floor_unsaid => 0,
            Some(lowest) => lowest - 1,
            None => self.delivered,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) config: Config,
    pub(crate) created: i64,
    /// It delivers nothing before this time, Unix nanoseconds.
    pub(crate) paused_until: i64,
    pub(crate) progress: Progress,
}

impl Held {
    /// Made as a server makes it: where the policy says, or where an old state file of its name left it.
    pub(crate) fn made(config: Config, state: &State) -> Self {
        let first = state.messages.keys().next().copied().unwrap_or(state.last + 1);
        let ack_all = config.ack_policy == AckPolicy::All;
        let by_start = matches!(config.deliver_policy, DeliverPolicy::ByStartSequence { .. });
        let start = match config.deliver_policy {
            DeliverPolicy::ByStartSequence { start_sequence } => start_sequence.max(first),
            _ => first,
        };
        let start = if state.server.version.starts_with("2.10") { start.min(state.last + 1) } else { start };
        let left = state.server.left.clone().filter(|(name, _)| Some(name) == config.durable_name.as_ref());
        let progress = left.map(|(_, progress)| progress).unwrap_or_else(|| Progress {
            delivered: start - 1,
            // With ack-all nobody would find out: the one thing that this model leaves out.
            floor_unsaid: by_start && !state.server.version.starts_with("2.14") && !ack_all,
            ..Progress::default()
        });
        Self { config, created: state.clock, paused_until: 0, progress }
    }

    pub(crate) fn reset(&mut self, to: u64) {
        self.progress = Progress { delivered: to - 1, ..Progress::default() };
    }

    pub(crate) fn ack_floor(&self) -> u64 {
        self.progress.floor()
    }

    pub(crate) fn name(&self) -> &str {
        self.config.durable_name.as_deref().unwrap_or_default()
    }

    fn window(&self) -> usize {
        usize::try_from(self.config.max_ack_pending).unwrap_or(usize::MAX)
    }
}

impl State {
    fn ours(&self, sequence: u64) -> Option<&Message> {
        self.messages.get(&sequence).filter(|message| message.subject.starts_with(&self.server.prefix))
    }

    /// How many messages the consumer has not delivered.
    pub(crate) fn remaining(&self) -> u64 {
        let Some(held) = &self.server.held else { return 0 };
        let above = self.messages.range(held.progress.delivered.wrapping_add(1)..);
        above.filter(|(_, message)| message.subject.starts_with(&self.server.prefix)).count() as u64
    }

    /// What the consumer sends next, if the window allows.
    pub(crate) fn deliver(&mut self) -> Option<Wire> {
        let now = self.server.mono;
        let clock = self.clock;
        let mut held = self.server.held.take_if(|held| held.paused_until <= clock)?;
        let wire = self.redeliver(&mut held, now).or_else(|| self.deliver_first(&mut held, now));
        self.server.held = Some(held);
        wire
    }

    /// In any order.
    fn redeliver(&mut self, held: &mut Held, now: i64) -> Option<Wire> {
        loop {
            let due: Vec<u64> =
                held.progress.pending.iter().filter(|(_, waiting)| waiting.due <= now).map(|(at, _)| *at).collect();
            if due.is_empty() {
                return None;
            }
            let pick = usize::try_from(self.server.rng.below(due.len() as u64)).unwrap();
            let sequence = due[pick];
            // Whatever stands there now: after a fork, a message that was never delivered.
            let Some(message) = self.ours(sequence).cloned() else {
                held.progress.pending.remove(&sequence);
                continue;
            };
            let waiting = held.progress.pending.get_mut(&sequence)?;
            waiting.times += 1;
            waiting.due = now + deadline(&held.config);
            let times = waiting.times;
            return Some(self.wire(held, sequence, times, message));
        }
    }

    fn deliver_first(&mut self, held: &mut Held, now: i64) -> Option<Wire> {
        if held.progress.pending.len() >= held.window() {
            return None;
        }
        let mut above = self.messages.range(held.progress.delivered.wrapping_add(1)..);
        let (sequence, message) = above.find(|(_, message)| message.subject.starts_with(&self.server.prefix))?;
        let (sequence, message) = (*sequence, message.clone());
        held.progress.delivered = sequence;
        held.progress.pending.insert(sequence, Waiting { due: now + deadline(&held.config), times: 1 });
        Some(self.wire(held, sequence, 1, message))
    }

    fn wire(&self, held: &mut Held, sequence: u64, times: u64, message: Message) -> Wire {
        held.progress.consumer_sequence += 1;
        let (consumer, published) = (held.progress.consumer_sequence, message.published);
        let above = self.messages.range(held.progress.delivered.wrapping_add(1)..);
        let remaining = above.filter(|(_, message)| message.subject.starts_with(&self.server.prefix)).count();
        let name = held.name();
        let reply = format!("$JS.ACK.ORDERS.{name}.{times}.{sequence}.{consumer}.{published}.{remaining}");
        Wire { reply, message }
    }

    /// Whether something happened not long ago that lets deliveries come again.
    pub(crate) fn is_disturbed(&self) -> bool {
        let wait = self.server.held.as_ref().map_or(0, |held| deadline(&held.config));
        self.server.mono - self.server.disturbed <= 2 * wait
    }

    /// When the next message would be delivered again.
    pub(crate) fn next_due(&self) -> Option<i64> {
        let held = self.server.held.as_ref()?;
        let due = held.progress.pending.values().map(|waiting| waiting.due).min();
        let resumed = self.server.mono + (held.paused_until - self.clock).max(0);
        due.map(|due| due.max(resumed)).or((resumed > self.server.mono).then_some(resumed))
    }

    /// An answer reaches the server, which looks at nothing but its stream sequence.
    pub(crate) fn answered(&mut self, reply: &str, answer: Answer) {
        if self.server.lose_acks > 0 {
            self.server.lose_acks -= 1;
            self.server.disturbed = self.server.mono;
            return;
        }
        let Some(delivery) = Delivery::parse(reply) else { return };
        let Some(mut held) = self.server.held.take() else { return };
        let sequence = delivery.id.sequence;
        if answer == Answer::Progress {
            if let Some(waiting) = held.progress.pending.get_mut(&sequence) {
                waiting.due = self.server.mono + deadline(&held.config);
            }
            self.server.held = Some(held);
            return;
        }
        // A termination on ack-all acks everything below, too.
        let gone = self.settle(&mut held, sequence);
        let reached = gone.iter().map(|(at, message)| (message.id(*at), message.clone())).collect();
        if self.work_queue {
            self.server.removed.extend(gone);
        }
        self.server.acked.push(Acked { meant: delivery.id, reached });
        self.server.held = Some(held);
    }

    /// An ack of this sequence: what stands at the sequences that are not pending any more. A work queue lets it go.
    fn settle(&mut self, held: &mut Held, sequence: u64) -> Vec<(u64, Message)> {
        let low = if held.config.ack_policy == AckPolicy::All { 0 } else { sequence };
        let gone: Vec<u64> = held.progress.pending.range(low..=sequence).map(|(at, _)| *at).collect();
        let mut stood = Vec::new();
        for at in gone {
            held.progress.pending.remove(&at);
            held.progress.floor_unsaid = false;
            stood.extend(self.ours(at).cloned().map(|message| (at, message)));
            if self.work_queue && self.ours(at).is_some() {
                self.messages.remove(&at);
            }
        }
        stood
    }

    /// The server starts again, with what its disk kept of the consumer.
    pub(crate) fn reload(&mut self, kept: Kept) {
        self.server.disturbed = self.server.mono;
        let kept = if kept == Kept::Damaged { self.damage() } else { kept };
        match kept {
            Kept::Damaged => unreachable!("what becomes of it is decided above"),
            Kept::All => {}
            Kept::Nothing => {
                if let Some(held) = &mut self.server.held {
                    held.progress = Progress::default();
                }
            }
            Kept::Older => {
                // One of an earlier consumer whose sequence happens to be that of this one would look like this one.
                let same =
                    |held: &Held, older: &Held| held.progress.consumer_sequence == older.progress.consumer_sequence;
                let damaged = &self.server.damaged;
                if let (Some(held), Some(older)) = (&mut self.server.held, &self.server.snapshot)
                    && !same(held, older)
                    && !damaged.contains(older.name())
                {
                    *held = older.clone();
                }
            }
            Kept::State => {
                let held = self.server.held.take().map(|held| (held.name().to_owned(), held.progress));
                self.server.left = held.or(self.server.left.take());
            }
            Kept::Gone => (self.server.held, self.server.left) = (None, None),
        }
        let (now, last, reconciles) = (self.server.mono, self.last, self.server.reconciles);
        let soon = self.server.rng.one_in(2);
        if let Some(held) = &mut self.server.held {
            if reconciles && held.progress.delivered > last {
                held.progress.delivered = last;
                held.progress.pending.retain(|at, _| *at <= last);
            }
            for waiting in held.progress.pending.values_mut().filter(|_| soon) {
                waiting.due = now;
            }
        }
    }
}

impl State {
    /// The state file of the consumer cannot be read. What a server makes of that depends on its version.
    fn damage(&mut self) -> Kept {
        let Some(held) = &mut self.server.held else { return Kept::Gone };
        if self.server.version.starts_with("2.10") {
            // It says that all was delivered, and begins at the first message.
            held.progress = Progress { delivered: u64::MAX, floor_unsaid: true, ..Progress::default() };
            return Kept::All;
        }
        // One name is always left.
        let name = held.name().to_owned();
        if self.server.version.starts_with("2.14") && self.server.damaged.len() < usize::from(NAMES) - 1 {
            self.server.damaged.insert(name);
        }
        Kept::Gone
    }

    /// Somebody else takes so many deliveries of the consumer, and acks them or not.
    pub(crate) fn worker(&mut self, takes: u32, acks: bool) {
        for _ in 0..takes {
            let Some(wire) = self.deliver() else { break };
            self.server.shared = true;
            let Some(delivery) = Delivery::parse(&wire.reply).filter(|_| acks) else { continue };
            let Some(mut held) = self.server.held.take() else { break };
            // What others acked does not come back in this model.
            self.settle(&mut held, delivery.id.sequence);
            self.server.held = Some(held);
        }
    }
}

/// What a server's disk kept of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    All,
    /// Its state file is empty.
    Nothing,
    /// An older state of it.
    Older,
    /// Its state file alone: it is not loaded, and the next of its name takes it over.
    State,
    Gone,
    /// Its state file cannot be read.
    Damaged,
}

fn deadline(config: &Config) -> i64 {
    i64::try_from(config.ack_wait.as_nanos()).unwrap()
}
