//! The structured events. Names and fields are part of the public interface; the table in the documentation lists them,
//! and a test keeps the two together.

use tracing::{error, info, warn};

use crate::guard::{Fork, OpenReport};
use crate::observer::ObserveError;
use crate::record::RecordId;
use crate::skip::SkipRun;
use crate::source::Source;

/// The target of all events.
const TARGET: &str = "replay_guard";

pub(crate) fn opened(source: &Source, report: &OpenReport) {
    info!(
        name: "replay_guard.opened", target: TARGET,
        source = %source,
        state_id = %report.state_id,
        trust = ?report.trust,
        origin = report.origin,
        floor = report.floor,
        spans = report.spans,
        claimed = report.claimed,
        "opened"
    );
}

pub(crate) fn checkpoint_damaged(source: &Source, location: &str, damage: &str, set_aside: Option<&str>) {
    warn!(
        name: "replay_guard.checkpoint_damaged", target: TARGET,
        source = %source,
        location,
        damage,
        set_aside,
        "a checkpoint state is damaged"
    );
}

pub(crate) fn checkpoint_distrusted(source: &Source, through: u64) {
    warn!(
        name: "replay_guard.checkpoint_distrusted", target: TARGET,
        source = %source,
        through,
        "the stream contradicts the checkpoint: what lies above is written again"
    );
}

pub(crate) fn created_drifted(source: &Source, before: i64, now: i64) {
    info!(
        name: "replay_guard.created_drifted", target: TARGET,
        source = %source,
        before,
        now,
        "the same stream shows another creation time"
    );
}

pub(crate) fn claims_recovered(source: &Source, claimed: usize, history: usize) {
    info!(
        name: "replay_guard.claims_recovered", target: TARGET,
        source = %source,
        claimed,
        history,
        "the sink's claims were read back"
    );
}

pub(crate) fn passed_by(source: &Source, first: u64, last: u64, up_to: u64) {
    warn!(
        name: "replay_guard.passed_by", target: TARGET,
        source = %source,
        first,
        last,
        up_to,
        "the stream dropped messages before they were archived"
    );
}

pub(crate) fn rewind(source: &Source, first: u64) {
    info!(
        name: "replay_guard.rewind", target: TARGET,
        source = %source,
        first,
        "archived messages come again: the server forgot, or an ack was lost"
    );
}

pub(crate) fn skip_run(source: &Source, run: SkipRun) {
    info!(
        name: "replay_guard.skip_run", target: TARGET,
        source = %source,
        count = run.count,
        first = run.first,
        last = run.last,
        "archived messages were skipped"
    );
}

pub(crate) fn fork(source: &Source, fork: &Fork) {
    warn!(
        name: "replay_guard.fork", target: TARGET,
        source = %source,
        at = fork.at,
        archived = ?fork.archived,
        found = ?fork.found,
        last = fork.last,
        orphaned = fork.orphaned.len(),
        created = ?fork.created,
        "the stream lost its tail: what lies above is archived again"
    );
}

pub(crate) fn move_required(source: &Source, to: u64) {
    info!(name: "replay_guard.move_required", target: TARGET, source = %source, to, "the consumer must be moved");
}

pub(crate) fn unverified(source: &Source, held: usize, error: &ObserveError) {
    warn!(
        name: "replay_guard.unverified", target: TARGET,
        source = %source,
        held,
        error = %error,
        "the stream could not be asked: nothing is acked"
    );
}

pub(crate) fn by_time(source: &Source, last: u64) {
    info!(
        name: "replay_guard.by_time", target: TARGET,
        source = %source,
        last,
        "the span's newest record is gone from the stream: it holds record by record"
    );
}

pub(crate) fn gap_closed(source: &Source, first: u64, last: u64) {
    info!(
        name: "replay_guard.gap_closed", target: TARGET,
        source = %source,
        first,
        last,
        "nothing of the source lies between two archived records"
    );
}

pub(crate) fn spans_forgotten(source: &Source, count: usize, first: u64, last: u64) {
    warn!(
        name: "replay_guard.spans_forgotten", target: TARGET,
        source = %source,
        count,
        first,
        last,
        "too many gaps: archived messages in this range may be written again"
    );
}

pub(crate) fn rejected(source: &Source, sequence: u64, reason: &str) {
    warn!(
        name: "replay_guard.rejected", target: TARGET,
        source = %source,
        sequence,
        reason,
        "the sink can never store this record"
    );
}

pub(crate) fn no_dead_letters(source: &Source) {
    warn!(
        name: "replay_guard.no_dead_letters", target: TARGET,
        source = %source,
        "there is no dead-letter hook: of a record that the sink rejects only an event is left"
    );
}

pub(crate) fn reported(source: &Source, sequence: u64) {
    info!(
        name: "replay_guard.reported", target: TARGET,
        source = %source,
        sequence,
        "the dead-letter hook took a rejected record"
    );
}

pub(crate) fn report_failed(source: &Source, sequence: u64, error: &str) {
    warn!(
        name: "replay_guard.report_failed", target: TARGET,
        source = %source,
        sequence,
        error,
        "the dead-letter hook did not take a rejected record: it waits, and is not acked"
    );
}

pub(crate) fn ids_ignored(source: &Source, count: u64) {
    warn!(
        name: "replay_guard.ids_ignored", target: TARGET,
        source = %source,
        count,
        "the sink named records as durable that nobody waits for"
    );
}

pub(crate) fn closed(source: &Source, why: &str) {
    error!(name: "replay_guard.closed", target: TARGET, source = %source, why, "the guard is closed");
}

pub(crate) fn replay_wanted(source: &Source, from: u64, last: u64) {
    warn!(
        name: "replay_guard.replay_wanted", target: TARGET,
        source = %source,
        from,
        last,
        "on the operator's wish what is archived from here on is written again"
    );
}

pub(crate) fn retry(source: &Source, what: &str, why: &str, wait: std::time::Duration) {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    warn!(name: "replay_guard.retry", target: TARGET, source = %source, what, why, wait_ms, "trying again");
}

pub(crate) fn setting(source: &Source, consumer: &str, setting: &str) {
    warn!(name: "replay_guard.setting", target: TARGET, source = %source, consumer, setting, "a setting that works, and not well");
}

pub(crate) fn session_began(source: &Source, consumer: &str, floor: u64) {
    info!(name: "replay_guard.session_began", target: TARGET, source = %source, consumer, floor, "a session began");
}

pub(crate) fn session_ended(source: &Source, why: &str) {
    info!(name: "replay_guard.session_ended", target: TARGET, source = %source, why, "a session ended");
}

pub(crate) fn consumer_made(source: &Source, consumer: &str, from: u64) {
    warn!(name: "replay_guard.consumer_made", target: TARGET, source = %source, consumer, from, "the consumer was missing and was made");
}

pub(crate) fn consumer_moved(source: &Source, consumer: &str, to: u64) {
    warn!(name: "replay_guard.consumer_moved", target: TARGET, source = %source, consumer, to, "the consumer was moved");
}

pub(crate) fn fast_forward(source: &Source, consumer: &str, from: u64, through: u64) {
    info!(
        name: "replay_guard.fast_forward",
        target: TARGET,
        source = %source,
        consumer,
        from,
        through,
        "the server forgot what is archived: the consumer is moved over it unread"
    );
}

pub(crate) fn consumer_switched(source: &Source, consumer: &str, to: u64) {
    warn!(
        name: "replay_guard.consumer_switched",
        target: TARGET,
        source = %source,
        consumer,
        to,
        "the consumer of the other name took over"
    );
}

pub(crate) fn passed_over(source: &Source, consumer: &str, sequence: u64) {
    warn!(
        name: "replay_guard.passed_over", target: TARGET,
        source = %source,
        consumer,
        sequence,
        "the consumer passed over a message that is not archived"
    );
}

pub(crate) fn shared(source: &Source, consumer: &str, count: u64) {
    warn!(
        name: "replay_guard.shared", target: TARGET,
        source = %source,
        consumer,
        count,
        "somebody else takes deliveries of this consumer: give each worker a consumer of its own, with filters that do not overlap"
    );
}

pub(crate) fn paused(source: &Source, consumer: &str, until: i64) {
    info!(name: "replay_guard.paused", target: TARGET, source = %source, consumer, until, "the consumer is paused");
}

pub(crate) fn foreign(source: &Source, id: RecordId, subject: &str) {
    let (sequence, published) = (id.sequence, id.published);
    warn!(
        name: "replay_guard.foreign",
        target: TARGET,
        source = %source,
        sequence,
        published,
        subject,
        "a message of another subject was redelivered: the stream lost its tail; it is neither archived nor acked"
    );
}

pub(crate) fn acks_dropped(source: &Source, count: usize) {
    info!(
        name: "replay_guard.acks_dropped", target: TARGET,
        source = %source,
        count,
        "acks were not sent: the messages come again and are skipped"
    );
}
