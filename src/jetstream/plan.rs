//! What a driver does next. Pure: it is told what happened and what time it is, and says what to do; the driver only
//! executes. The same plan runs in the simulation.

mod action;
mod others;
mod phase;
mod reports;
mod start;

use std::time::Duration;

use async_nats::Subject;

use super::ack::{Answer, Delivery};
use super::consumer::NAMES;
use super::error::ConsumerError;
use super::pace::{Backoff, Limits, Pace};
use super::position::Position;
use super::session::{SessionEnd, Window};
use crate::fault::{self, Fault};
use crate::guard::{ConsumerPosition, Permits};
use crate::sink::Reason;

use self::reports::Reports;
pub(crate) use action::{Action, Connection, Note, Taken};
use others::Others;
use phase::{Asks, Carried, Jump, Look, Phase, Running, Starting, Step};
pub(crate) use reports::{LAST, LONG};

/// How often the newest witness is read back and the consumer's position is compared with the floor, if nothing else is said.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(60);
/// How long after the first look at a consumer that seems to have passed over a message the second one comes.
const SECOND_LOOK: Duration = Duration::from_millis(300);
/// The shortest time between two rounds of in-progress acks.
const LEAST_ROUND: Duration = Duration::from_millis(10);

/// The driver's decisions.
#[derive(Debug)]
pub(crate) struct Plan {
    flush: Limits,
    /// Over sessions: records stay with the sink when one ends.
    pace: Pace,
    mark: String,
    phase: Phase,
    /// The deliveries of the session at hand.
    window: Window,
    move_to: Option<u64>,
    /// The consumer can be neither made nor moved under its name.
    switch: bool,
    /// How many other names could not be made either, in a row.
    switches: u8,
    backoff: Backoff,
    not_before: Duration,
    stop: bool,
    floor: u64,
    /// How the sink stood when the session began.
    carried: Carried,
    jump: Jump,
    /// Rejected records that wait for the dead-letter hook, over sessions.
    reports: Reports,
    check_every: Duration,
    /// The deliveries of the session that ended prove nothing of what lies between them.
    distrust: bool,
    /// Until when the consumer is paused, as it was last told.
    paused_until: Option<i64>,
    /// How many messages the consumer had not delivered, as it was last told.
    remaining: u64,
    /// Why sessions ended and tries failed, for the events, oldest first.
    notes: Vec<Note>,
}

impl Plan {
    /// A plan for a guard that was just opened. `mark`: the state id that the consumer carries; `move_to`: where the guard
    /// wants the consumer; `seed` makes the jitter.
    pub(crate) fn new(
        flush: Limits,
        fast_forward: bool,
        mark: String,
        move_to: Option<u64>,
        floor: u64,
        seed: u64,
    ) -> Self {
        Self {
            flush,
            pace: Pace::new(flush),
            mark,
            phase: Phase::Between,
            window: Window::default(),
            move_to,
            switch: false,
            switches: 0,
            backoff: Backoff::new(seed),
            not_before: Duration::ZERO,
            stop: false,
            floor,
            carried: Carried { pending: false, full: false },
            jump: Jump { allowed: fast_forward, verified_through: None, last: None, under_way: false },
            reports: Reports::new(seed.rotate_left(32)),
            check_every: CHECK_EVERY,
            distrust: false,
            paused_until: None,
            remaining: 0,
            notes: Vec::new(),
        }
    }

    /// The same, with this long from one check to the next.
    #[must_use]
    pub(crate) fn checking_every(self, check_every: Duration) -> Self {
        Self { check_every, ..self }
    }

    /// The wish to stop came.
    pub(crate) const fn stop(&mut self) {
        self.stop = true;
    }

    /// What happened since this was asked last.
    pub(crate) fn notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// How many messages the consumer had not delivered, as it was last said.
    pub(crate) const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Whether what is going on may be cut off by the wish to stop: nothing is being written in a session.
    pub(crate) const fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Between | Phase::Starting(_))
    }

    /// Begins a round of in-progress acks: of the deliveries that were taken, and of those that `wait` in the client because
    /// the sink takes its time.
    pub(crate) fn keep_alive(
        &mut self,
        wait: impl IntoIterator<Item = Subject>,
        now: Duration,
    ) -> Vec<(Subject, Answer)> {
        let Phase::Running(running) = &mut self.phase else { return Vec::new() };
        running.next_round = now.saturating_add(running.round);
        let mut replies = self.window.overdue();
        if fault::is(Fault::TakenNotKeptAlive) {
            replies.clear();
        }
        if !fault::is(Fault::WaitingNotKeptAlive) {
            replies.extend(wait);
        }
        replies.into_iter().map(|reply| (reply, Answer::Progress)).collect()
    }

    /// The round was sent. Where that took longer than a round, there is still something else to do before the next.
    pub(crate) fn kept_alive(&mut self, now: Duration) {
        if let Phase::Running(running) = &mut self.phase {
            running.next_round = now.saturating_add(running.round);
        }
    }

    /// When the next round of in-progress acks is due, also while the guard is busy.
    pub(crate) fn next_round(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Running(running) => Some(running.next_round),
            Phase::Between | Phase::Starting(_) | Phase::WoundUp => None,
        }
    }

    /// Whether answers may be sent on this connection.
    pub(crate) fn is_current(&self, connection: Connection) -> bool {
        matches!(&self.phase, Phase::Running(running) if running.is_on(connection) || fault::is(Fault::AcksAcrossReconnect))
    }

    /// Whether a delivery of this record was taken and not answered.
    #[cfg(test)]
    pub(crate) fn waits_for(&self, id: crate::record::RecordId) -> bool {
        matches!(self.phase, Phase::Running(_)) && self.window.waits_for(id)
    }

    /// What to do now.
    pub(crate) fn next(&mut self, now: Duration, connection: Connection) -> Action {
        match &mut self.phase {
            Phase::WoundUp => Action::End,
            Phase::Between | Phase::Starting(_) if self.stop => Action::End,
            Phase::Between if now < self.not_before => Action::Wait(self.not_before),
            Phase::Between if !connection.up => Action::Connect,
            Phase::Between if self.switch => Action::Switch(self.move_to.unwrap_or(self.floor.saturating_add(1))),
            Phase::Between => self.move_to.map_or(Action::Begin, Action::Move),
            Phase::Starting(starting) => {
                if !connection.up || starting.connection != connection.count {
                    self.end(&SessionEnd::Reconnected, now);
                    return self.next(now, connection);
                }
                if now < starting.not_before {
                    return Action::Wait(starting.not_before);
                }
                match (&starting.step, &starting.position) {
                    (Step::Make, _) => Action::Make(self.floor.saturating_add(1)),
                    (Step::Mark, _) => Action::Mark,
                    (Step::Look, Some(position)) => Action::Look(place(position)),
                    (Step::Subscribe, Some(_)) => Action::Subscribe,
                    (Step::Find | Step::Look | Step::Subscribe, _) => Action::Find,
                }
            }
            Phase::Running(running) => {
                if !running.is_on(connection) {
                    self.end(&SessionEnd::Reconnected, now);
                    return self.next(now, connection);
                }
                running.others.done();
                if !running.answers.is_empty() {
                    return Action::Answer(std::mem::take(&mut running.answers));
                }
                if self.stop {
                    let report = self.reports.due_at_end(now);
                    return if report { Action::Report } else { running.flush(Reason::Everything) };
                }
                running.blocked = running.blocked.filter(|until| now < *until);
                let due = self.pace.due(self.window.len() as u64, now);
                let report = running.blocked.is_none() && self.reports.due(due.is_some(), self.flush, now);
                if let (None, Some(reason), false) = (running.blocked, due, report) {
                    return running.flush(reason);
                }
                if now >= running.next_round {
                    return Action::KeepAlive;
                }
                // One record after the other, and deliveries are kept alive in between.
                if report {
                    return Action::Report;
                }
                if let Some(position) = running.position.take() {
                    running.quiet = Some(position);
                    return Action::Look(position);
                }
                if now >= running.next_check {
                    running.next_check = now.saturating_add(self.check_every);
                    if let (Some(position), Asks::Stream) = (running.quiet, running.asks) {
                        running.asks = Asks::Consumer;
                        return Action::Reread(position);
                    }
                    running.look = Some(Look::Check);
                    return Action::Find;
                }
                let wake = running.next_round.min(running.next_check);
                if let Some(until) = running.blocked {
                    return Action::Wait(wake.min(until));
                }
                let wake =
                    [self.pace.deadline(), self.reports.deadline()].into_iter().flatten().fold(wake, Duration::min);
                if self.reports.is_full(self.flush) {
                    return Action::Wait(wake);
                }
                running.others.asks();
                Action::Pull(wake)
            }
        }
    }

    /// Whether [`next`](Self::next) would say to pull once more at this time, on the session's connection: what has come
    /// already may be taken without asking it for each message.
    pub(crate) fn pulls_on(&self, now: Duration) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        let asked = self.stop || !running.answers.is_empty() || running.blocked.is_some() || running.position.is_some();
        let due = now >= running.next_round.min(running.next_check);
        !asked && !due && self.reports.is_empty() && self.pace.due(self.window.len() as u64, now).is_none()
    }

    /// A message came. The
    /// connection is read **after** the message was taken: what was buffered before a reconnect comes out after it.
    ///
    /// `ours`: its subject belongs to the source. A server that lost its tail redelivers whatever has the sequence now, also
    /// other people's messages, which are neither archived nor acked.
    pub(crate) fn delivered(
        &mut self,
        delivery: &Delivery,
        reply: Box<str>,
        ours: bool,
        connection: Connection,
        now: Duration,
    ) -> Taken {
        let Phase::Running(running) = &mut self.phase else { return Taken::Dropped };
        let taken = if running.is_on(connection) {
            running.chain.take(delivery).and_then(|follows| {
                if ours {
                    self.window.add(delivery.id, reply)?;
                }
                Ok(follows)
            })
        } else {
            Err(SessionEnd::Reconnected)
        };
        match taken {
            Ok(follows) => {
                self.remaining = delivery.remaining;
                running.quiet = None;
                running.passed_over |= follows.is_some_and(|after| after.saturating_add(1) < delivery.id.sequence);
                if delivery.times == 1 || !fault::is(Fault::RedeliveriesAreElsewhere) {
                    running.others.took(delivery.consumer_sequence);
                }
                if ours { Taken::Offer { follows } } else { Taken::Dropped }
            }
            Err(end) => {
                self.end(&end, now);
                Taken::Dropped
            }
        }
    }

    /// The message was offered to the guard.
    pub(crate) fn offered(&mut self, bytes: u64, full: bool, now: Duration) {
        self.pace.offered(bytes, full, now);
    }

    /// So many rejected records wait for the dead-letter hook, with so many bytes: to be said before [`next`](Self::next).
    pub(crate) const fn unreported(&mut self, waiting: (usize, u64)) {
        self.reports.wait(waiting);
    }

    /// The dead-letter hook was called: nothing, or why it did not take the record.
    pub(crate) fn reported(&mut self, failure: Option<String>, now: Duration) {
        match failure {
            // What it took is permitted by a flush.
            None => {
                self.reports.taken();
                self.pace.full();
            }
            Some(why) => self.notes.push(self.reports.failed(why, now)),
        }
    }

    /// The guard flushed.
    pub(crate) fn flushed(&mut self, permits: &Permits, now: Duration) {
        self.stands_at(permits);
        let Phase::Running(running) = &mut self.phase else { return };
        running.quiet = None;
        if let Some(to) = permits.move_to() {
            if self.stop {
                self.phase = Phase::WoundUp;
            } else {
                self.must_move(to);
            }
            return;
        }
        if let Some(error) = permits.unknown() {
            if self.stop {
                self.phase = Phase::WoundUp;
            } else {
                let wait = self.backoff.wait();
                running.blocked = Some(now.saturating_add(wait));
                self.notes.push(Note::Retry { what: "flush", why: error.to_string(), wait });
            }
            return;
        }
        self.backoff.reset();
        running.answers = self.window.answers(permits, running.ack_all);
        // What a sink left for later, or waits for its ack, needs another flush, also if nothing comes any more.
        // A flush does nothing for what waits for the hook.
        let left = permits.pending() > permits.unreported();
        let forgotten = fault::is(Fault::LeftoverNotFlushed);
        self.pace.flushed(left && !forgotten, self.window.len() > 0 && !forgotten, now);
        running.last = self.stop;
        self.answered();
    }

    /// What [`Action::Answer`] gave was sent, or dropped. After the last flush that is the end.
    pub(crate) fn answered(&mut self) {
        if matches!(&self.phase, Phase::Running(running) if running.last && running.answers.is_empty()) {
            self.phase = Phase::WoundUp;
        }
    }

    /// Whether what lies between the deliveries of the session before must be asked of the stream: said once.
    pub(crate) const fn distrusts(&mut self) -> bool {
        std::mem::replace(&mut self.distrust, false)
    }

    /// The consumer was moved, or made anew on the way. The guard was told.
    pub(crate) fn moved(&mut self) {
        self.move_to = None;
        self.jump.under_way = false;
        (self.switch, self.switches) = (false, 0);
        self.backoff.reset();
    }

    /// The session is over.
    pub(crate) fn ended(&mut self, end: &SessionEnd, now: Duration) {
        self.end(end, now);
    }

    /// A request failed that may be tried again.
    fn failed(&mut self, what: &'static str, why: String, now: Duration) {
        match &mut self.phase {
            // A check that cannot be made is made the next time.
            Phase::Running(running) if running.look == Some(Look::Check) => {
                running.look = None;
                let wait = running.next_check.saturating_sub(now);
                self.notes.push(Note::Retry { what: "check", why, wait });
            }
            // As where the stream cannot be asked: what is durable is found again by the next run.
            Phase::Running(running) if running.look.is_some() && self.stop => self.phase = Phase::WoundUp,
            Phase::Running(running) if running.look.is_some() => {
                let wait = self.backoff.wait();
                (running.look, running.blocked) = (None, Some(now.saturating_add(wait)));
                self.notes.push(Note::Retry { what: "flush", why, wait });
            }
            _ => self.retry(what, why, now),
        }
    }

    /// What was asked of the consumer was refused, or not answered. Gives the error back if nothing can be done about it.
    pub(crate) fn refused(
        &mut self,
        what: &'static str,
        error: ConsumerError,
        now: Duration,
    ) -> Result<(), ConsumerError> {
        match error {
            // The consumer could not be moved over what is archived: it delivers it, and the guard skips it.
            error if what == "move" && self.jump.under_way => {
                self.move_to = None;
                self.jump.under_way = false;
                self.retry("fast-forward", error.to_string(), now);
            }
            // One that was deleted between two requests is made again.
            error if error.is_retriable() || matches!(error, ConsumerError::Missing { .. }) => {
                self.failed(what, error.to_string(), now);
            }
            // It can be neither made nor moved under its name.
            error @ (ConsumerError::Damaged { .. } | ConsumerError::Unsupported { .. })
                if what != "switch" && !fault::is(Fault::NamesNeverSwitched) =>
            {
                self.switch = true;
                self.retry("switch", error.to_string(), now);
            }
            // Nor can the next name. Where none can, it is not the names.
            error @ ConsumerError::Damaged { .. } if self.switches < NAMES - 1 => {
                self.switches += 1;
                self.retry("switch", error.to_string(), now);
            }
            error => return Err(error),
        }
        Ok(())
    }

    /// The floor that the guard verified last.
    fn stands_at(&mut self, permits: &Permits) {
        let before = if fault::is(Fault::JumpToUnverifiedFloor) { self.floor } else { 0 };
        self.floor = permits.floor().max(before);
    }

    fn must_move(&mut self, to: u64) {
        self.jump.under_way = false;
        if matches!(self.phase, Phase::Running(_)) {
            self.notes.push(Note::SessionEnded(format!("the consumer is to be moved to {to}")));
        }
        self.move_to = Some(to);
        self.phase = Phase::Between;
    }

    fn end(&mut self, end: &SessionEnd, now: Duration) {
        if matches!(self.phase, Phase::Running(_)) {
            self.notes.push(Note::SessionEnded(end.to_string()));
        }
        self.phase = Phase::Between;
        // A server that ends every session at once must not be asked in a tight loop.
        if matches!(end, SessionEnd::Server(_)) {
            self.retry("session", end.to_string(), now);
        }
    }

    fn retry(&mut self, what: &'static str, why: String, now: Duration) {
        let wait = self.backoff.wait();
        self.not_before = now.saturating_add(wait);
        self.notes.push(Note::Retry { what, why, wait });
        self.phase = Phase::Between;
    }
}

/// With no ack pending the server delivers nothing at or below its position again, whatever floor it shows.
fn place(position: &Position) -> ConsumerPosition {
    ConsumerPosition::new(position.delivered, position.stands_at())
}

#[cfg(test)]
mod flushes;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trials;
