//! What a server is beyond its stream: a consumer, a connection, a version, and what goes wrong with them.

use std::collections::{BTreeSet, VecDeque};

use super::accident::Accident;
use super::held::{Acked, Held, Progress};
use super::stream::State;
use super::{MS, Rng, World};
use crate::RecordId;
use crate::jetstream::plan::Connection;

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "what happened is not a state")]
pub(crate) struct Server {
    pub(crate) version: &'static str,
    /// Whether a consumer beyond the stream's end is pulled back when the server starts (2.14 and later, one replica).
    pub(crate) reconciles: bool,
    /// The filter of the consumer: all subjects that begin with this.
    pub(crate) prefix: String,
    /// Nanoseconds of a clock that never steps.
    pub(crate) mono: i64,
    /// How long one request takes, nanoseconds.
    pub(crate) request: i64,
    /// The connection is down until then.
    pub(crate) down_until: i64,
    /// The consumer, as far as the server has loaded one.
    pub(crate) held: Option<Held>,
    /// The state file of a consumer whose configuration was lost: the next one of the name takes it over.
    pub(crate) left: Option<(String, Progress)>,
    /// Names whose state cannot be read: no consumer of these can be made or deleted, ever.
    pub(crate) damaged: BTreeSet<String>,
    /// What a power cut would leave of the consumer.
    pub(crate) snapshot: Option<Held>,
    /// Acks that came since they were looked at last.
    pub(crate) acked: Vec<Acked>,
    /// Acks that the client holds back while the connection is down.
    pub(crate) queued: VecDeque<(String, crate::jetstream::ack::Answer)>,
    /// Removed by an ack; a power cut may bring them back.
    pub(crate) removed: Vec<(u64, super::stream::Message)>,
    pub(crate) lose_acks: u32,
    pub(crate) lose_deliveries: u32,
    pub(crate) refuse_resets: u32,
    /// Accidents to come, with the number of requests until then.
    pub(crate) later: Vec<(u32, Accident)>,
    /// Counts whatever happens, so that before and after can be told apart.
    pub(crate) stamp: u64,
    /// When the stream last got another history, noticed by the client or not.
    pub(crate) forked: u64,
    /// When it last did so without an event on the connection.
    pub(crate) forked_unnoticed: u64,
    /// Places where the stream began to differ from what it was, for the books.
    pub(crate) cuts: Vec<u64>,
    /// What came back with a backup.
    pub(crate) restored: BTreeSet<RecordId>,
    /// Where consumers were made or reset to begin, and when.
    pub(crate) begun: Vec<(u64, u64)>,
    /// When last, of the clock that never steps, something happened that lets deliveries come again.
    pub(crate) disturbed: i64,
    /// Whether somebody else ever took deliveries, or some were lost.
    pub(crate) shared: bool,
    /// Whether the consumer was ever paused.
    pub(crate) paused: bool,
    /// What expired or was purged, oldest first.
    pub(crate) dropped: Vec<(u64, super::stream::Message)>,
    /// Whether messages are deleted in this life.
    pub(crate) removals: bool,
    /// Whether acked messages ever came back.
    pub(crate) brought_back: bool,
    /// Whether the wall clock ever stepped back.
    pub(crate) stepped_back: bool,
    pub(crate) rng: Rng,
    /// What happened inside calls, for the history.
    pub(crate) told: Vec<String>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            version: "2.14.0",
            reconciles: true,
            prefix: String::new(),
            mono: 0,
            request: 0,
            down_until: 0,
            held: None,
            left: None,
            damaged: BTreeSet::new(),
            snapshot: None,
            acked: Vec::new(),
            queued: VecDeque::new(),
            removed: Vec::new(),
            lose_acks: 0,
            lose_deliveries: 0,
            refuse_resets: 0,
            later: Vec::new(),
            stamp: 0,
            forked: 0,
            forked_unnoticed: 0,
            cuts: Vec::new(),
            restored: BTreeSet::new(),
            begun: Vec::new(),
            disturbed: 0,
            shared: false,
            paused: false,
            dropped: Vec::new(),
            removals: false,
            brought_back: false,
            stepped_back: false,
            rng: Rng::new(1),
            told: Vec::new(),
        }
    }
}

impl State {
    /// A request arrives.
    pub(crate) fn tick(&mut self) {
        self.requests += 1;
        self.server.stamp += 1;
        self.pass(self.server.request);
        let mut due = Vec::new();
        self.server.later.retain_mut(|(left, accident)| {
            *left = left.saturating_sub(1);
            if *left == 0 {
                due.push(accident.clone());
            }
            *left > 0
        });
        let before = self.server.mono;
        for accident in due {
            self.server.told.push(format!("meanwhile: {accident:?}"));
            accident.happen(self);
        }
        self.stood_still(before);
    }

    /// Whether a request that arrived goes unanswered.
    pub(crate) fn is_silent(&mut self) -> bool {
        let silent = self.silent > 0 || self.is_down();
        self.silent = self.silent.saturating_sub(1);
        silent
    }

    /// So much time passed since then in one go that deliveries may come again: nobody could keep them alive.
    pub(crate) fn stood_still(&mut self, since: i64) {
        if self.server.mono - since > 100 * MS {
            self.server.disturbed = self.server.mono;
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.server.mono < self.server.down_until
    }

    pub(crate) fn stamp(&mut self) -> u64 {
        self.server.stamp += 1;
        self.server.stamp
    }

    /// The stream keeps nothing of its former self above this sequence.
    pub(crate) fn cut(&mut self, through: u64, noticed: bool) {
        let stamp = self.stamp();
        self.server.forked = stamp;
        if !noticed {
            self.server.forked_unnoticed = stamp;
        }
        self.server.cuts.push(through);
    }

    /// The connection breaks and comes back after a while. What the client has buffered it keeps.
    pub(crate) fn reconnect(&mut self, down: i64) {
        self.connection += 1;
        self.server.down_until = self.server.down_until.max(self.server.mono + down);
    }
}

impl World {
    /// The connection as the client tells it.
    pub(crate) fn connection(&self) -> Connection {
        let mut state = self.state();
        let up = !state.is_down();
        if up {
            // Before anything else the client sends what it held back.
            while let Some((reply, answer)) = state.server.queued.pop_front() {
                state.answered(&reply, answer);
            }
        }
        Connection { up, count: state.connection }
    }

    pub(crate) fn version(&self) -> String {
        self.state().server.version.to_owned()
    }
}
