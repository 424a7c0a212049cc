//! The way to a session: the guard verifies, the consumer is found or made, looked at, and subscribed to.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};

use super::action::{Connection, Note};
use super::{Asks, Carried, LEAST_ROUND, Look, Others, Phase, Plan, Running, SECOND_LOOK, Starting, Step, place};
use crate::fault::{self, Fault};
use crate::guard::{ConsumerPosition, Permits, Placement};
use crate::jetstream::position::{Moved, Position};
use crate::jetstream::session::{Chain, SessionEnd, Window};

/// Two ends of a pause that differ by less, in nanoseconds, are the same one.
const SAME_PAUSE: u64 = 1_000_000_000;

impl Plan {
    /// The guard began a session, on this connection.
    pub(crate) fn began(&mut self, permits: &Permits, connection: Connection, now: Duration) {
        self.stands_at(permits);
        self.jump.verified_through = permits.verified_through();
        self.carried = Carried { pending: permits.pending() > 0, full: permits.flush_due() };
        if let Some(to) = permits.move_to() {
            self.must_move(to);
        } else if let Some(error) = permits.unknown() {
            self.retry("session", error.to_string(), now);
        } else {
            self.phase = Phase::Starting(Starting {
                connection: connection.count,
                step: Step::Find,
                position: None,
                suspect: None,
                not_before: Duration::ZERO,
            });
        }
    }

    /// The server said where the consumer stands, or that there is none.
    pub(crate) fn found(&mut self, position: Option<Position>, now: Duration) {
        if let Some(position) = &position {
            self.paused(position.paused_until);
            self.remaining = position.pending;
        }
        match (&mut self.phase, position) {
            (Phase::Starting(starting), Some(position)) => {
                let marked = position.mark() == Some(self.mark.as_str());
                starting.step = if marked { Step::Look } else { Step::Mark };
                starting.position = Some(Box::new(position));
            }
            (Phase::Starting(starting), None) => starting.step = Step::Make,
            (Phase::Running(running), Some(position))
                if running.created != position.created || running.filters != position.filters() =>
            {
                // Between its deliveries may lie what it was told to leave out.
                self.distrust = true;
                self.end(&SessionEnd::Replaced, now);
            }
            (Phase::Running(running), Some(_)) if running.look == Some(Look::ForFlush) => {
                (running.passed_over, running.look) = (false, None);
            }
            (Phase::Running(running), Some(position)) => {
                (running.passed_over, running.look) = (false, None);
                if let Some(count) = running.others.check(position.deliveries) {
                    self.notes.push(Note::Shared { count });
                }
                let stands = if position.ack_pending <= self.window.len() as u64 {
                    // All that the server waits for is in our hands: it delivers nothing else at or below its position.
                    ConsumerPosition::new(position.delivered, position.delivered)
                } else {
                    place(&position)
                };
                if running.quiet == Some(stands) {
                    running.asks = Asks::Stream;
                } else {
                    (running.position, running.asks) = (Some(stands), Asks::Consumer);
                }
            }
            (Phase::Running(_), None) => self.end(&SessionEnd::Server("the consumer is gone".to_owned()), now),
            (Phase::Between | Phase::WoundUp, _) => {}
        }
    }

    /// Says that the consumer is paused, once for each time until which it is. The server keeps its heartbeats up, so the
    /// session goes on, and deliveries come as soon as it is resumed.
    fn paused(&mut self, until: Option<i64>) {
        // The server tells what remains, and when it said so: their sum is never quite the same.
        let same = |before: i64, now: i64| before.abs_diff(now) < SAME_PAUSE;
        if let Some(now) = until
            && !self.paused_until.is_some_and(|before| same(before, now))
        {
            self.notes.push(Note::Paused { until: now });
        }
        self.paused_until = until;
    }

    /// The consumer was made.
    pub(crate) fn made(&mut self, moved: Moved) {
        if let Phase::Starting(starting) = &mut self.phase {
            starting.position = Some(Box::new(moved.position));
            starting.step = Step::Look;
        }
    }

    /// The guard compared the consumer's position with what is archived.
    pub(crate) fn looked(&mut self, placement: &Placement, now: Duration) {
        let (suspect, starting) = match &self.phase {
            Phase::Starting(starting) => (starting.suspect, true),
            Phase::Running(running) => (running.suspect, false),
            Phase::Between | Phase::WoundUp => return,
        };
        let mut now_suspect = None;
        match placement {
            Placement::Beyond { to } => return self.must_move(*to),
            Placement::Fork(permits) => {
                self.stands_at(permits);
                if let Some(to) = permits.move_to() {
                    return self.must_move(to);
                }
            }
            Placement::PassedOver(sequence) if suspect == Some(*sequence) => {
                self.notes.push(Note::PassedOver(*sequence));
                return self.must_move(*sequence);
            }
            Placement::PassedOver(sequence) => now_suspect = Some(*sequence),
            Placement::Unknown(error) if starting => return self.retry("session", error.to_string(), now),
            Placement::Stands | Placement::StandsSoFar | Placement::Unknown(_) => {}
        }
        if let (true, None, Some((from, through))) = (starting, now_suspect, self.backlog()) {
            self.notes.push(Note::FastForward { from, through });
            self.jump.last = Some(through);
            self.must_move(through.saturating_add(1));
            self.jump.under_way = true;
            return;
        }
        match &mut self.phase {
            Phase::Starting(starting) => {
                starting.step = if now_suspect.is_some() { Step::Find } else { Step::Subscribe };
                starting.not_before = if now_suspect.is_some() { now + SECOND_LOOK } else { Duration::ZERO };
                starting.suspect = now_suspect;
            }
            Phase::Running(running) => {
                running.suspect = now_suspect;
                running.quiet = running.quiet.filter(|_| matches!(placement, Placement::Stands));
                if now_suspect.is_some() {
                    running.next_check = now + SECOND_LOOK;
                }
            }
            Phase::Between | Phase::WoundUp => {}
        }
    }

    /// The subscription stands: the session runs. If what is with the sink from the sessions before went from the stream
    /// since, nothing will come that makes a flush due.
    pub(crate) fn subscribed(&mut self, now: Duration) {
        if let Phase::Starting(Starting { connection, position: Some(position), .. }) = &self.phase {
            let config = &position.config;
            let window = u64::try_from(config.max_ack_pending).ok().filter(|window| *window > 0);
            // Twice within an ack deadline, with time for the way to the server.
            let round = (position.ack_deadline() / 4).max(LEAST_ROUND);
            // They may be held: durable, and only to be verified.
            self.pace.resumed(window, self.carried.pending, now);
            self.reports.resumed(now);
            if self.carried.full {
                self.pace.full();
            }
            let running = Running {
                connection: *connection,
                created: position.created,
                filters: position.filters(),
                chain: Chain::new(!matches!(config.deliver_policy, DeliverPolicy::LastPerSubject)),
                others: Others::default(),
                ack_all: matches!(config.ack_policy, AckPolicy::All),
                answers: Vec::new(),
                last: false,
                blocked: None,
                round,
                next_round: now.saturating_add(round),
                next_check: now.saturating_add(self.check_every),
                look: None,
                passed_over: false,
                position: None,
                quiet: None,
                asks: Asks::Consumer,
                suspect: None,
            };
            if !fault::is(Fault::OldAckersKept) {
                self.window = Window::default();
            }
            self.notes.push(Note::SessionBegan { floor: self.floor });
            self.phase = Phase::Running(Box::new(running));
        }
    }

    /// Whether the consumer is to deliver a backlog that is archived: from above where, and through where. A backlog below
    /// the size of a flush is skipped sooner than a consumer is moved.
    fn backlog(&self) -> Option<(u64, u64)> {
        let Phase::Starting(Starting { position: Some(position), .. }) = &self.phase else { return None };
        let through = self.jump.verified_through?;
        if !self.jump.allowed || self.jump.last == Some(through) {
            return None;
        }
        let from = position.stands_at();
        through.checked_sub(from).filter(|backlog| *backlog >= self.flush.count.max(1))?;
        (position.pending > 0).then_some((from, through))
    }
}
