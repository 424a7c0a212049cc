//! The plan, step by step; lives go through it in any order.

use super::*;
use crate::guard::Placement;
use crate::jetstream::position::Moved;
use crate::jetstream::settings::METADATA_KEY;
use crate::record::RecordId;
use async_nats::jetstream::consumer::Config;

const SECOND: Duration = Duration::from_secs(1);
pub(super) const UP: Connection = Connection { up: true, count: 1 };
const DOWN: Connection = Connection { up: false, count: 1 };
const NEXT: Connection = Connection { up: true, count: 2 };

pub(super) fn plan() -> Plan {
    let flush = Limits { count: 2, bytes: 1_000, age: SECOND * 5, window: None };
    Plan::new(flush, true, "mark".to_owned(), None, 7, 1)
}

pub(super) fn position(mark: &str, created: i64) -> Position {
    let metadata = [(METADATA_KEY.to_owned(), mark.to_owned())].into();
    let config = Config { metadata, ack_wait: SECOND * 40, ..Config::default() };
    Position { created, deliveries: 7, pending: 90, ..Position::at(7, 7, config) }
}

/// What is to be done, but for a round of in-progress acks.
pub(super) fn next(plan: &mut Plan, now: Duration, connection: Connection) -> String {
    let mut action = plan.next(now, connection);
    if matches!(action, Action::KeepAlive) {
        _ = plan.keep_alive([], now);
        action = plan.next(now, connection);
    }
    format!("{action:?}")
}

/// A plan whose session runs since the time zero.
pub(super) fn running() -> Plan {
    let mut plan = plan();
    plan.began(&Permits::default(), UP, Duration::ZERO);
    plan.found(Some(position("mark", 1)), Duration::ZERO);
    plan.looked(&Placement::Stands, Duration::ZERO);
    plan.subscribed(Duration::ZERO);
    plan
}

pub(super) fn deliver(plan: &mut Plan, sequence: u64, connection: Connection) -> Taken {
    let id = RecordId::new(sequence, 1);
    let delivery = Delivery { id, times: 1, consumer_sequence: sequence, remaining: 100 - sequence };
    plan.delivered(&delivery, format!("ack.{sequence}").into(), true, connection, Duration::ZERO)
}

#[test]
fn the_way_to_a_session() {
    let (mut plan, now) = (plan(), Duration::ZERO);
    assert_eq!(next(&mut plan, now, DOWN), "Connect");
    assert_eq!(next(&mut plan, now, UP), "Begin");
    assert_eq!((plan.remaining(), plan.next_round(), plan.is_starting()), (0, None, true));
    plan.began(&Permits::default(), UP, now);
    assert_eq!(next(&mut plan, now, UP), "Find");
    plan.found(None, now);
    assert_eq!(next(&mut plan, now, UP), "Make(1)", "above the floor that the guard verified");
    plan.found(Some(position("", 1)), now);
    assert_eq!((next(&mut plan, now, UP), plan.remaining()), ("Mark".to_owned(), 90));
    plan.found(Some(position("mark", 1)), now);
    let look = "Look(ConsumerPosition { delivered: 7, ack_floor: 7 })";
    assert_eq!(next(&mut plan, now, UP), look);
    plan.made(Moved { to: 8, created: true, position: position("mark", 1) });
    assert_eq!(next(&mut plan, now, UP), look);
    assert!(plan.is_starting() && !plan.is_current(UP));
    plan.looked(&Placement::Stands, now);
    assert_eq!(next(&mut plan, now, UP), "Subscribe");
    plan.subscribed(now);
    assert!(!plan.is_starting() && plan.is_current(UP) && !plan.is_current(DOWN) && !plan.is_current(NEXT));
    assert_eq!(plan.notes(), [Note::SessionBegan { floor: 0 }]);
    assert_eq!(plan.notes(), []);
    assert_eq!((plan.next_round(), plan.remaining()), (Some(SECOND * 10), 90), "four times in an ack deadline");
    assert_eq!(next(&mut plan, now, UP), "Pull(10s)");
    assert_eq!(deliver(&mut plan, 3, UP), Taken::Offer { follows: None });
    assert_eq!(plan.remaining(), 97);
    plan.offered(1, false, now);
    assert_eq!(next(&mut plan, now, UP), "Pull(5s)", "until its age makes a flush due");
}

#[test]
fn another_connection_begins_anew() {
    for connection in [DOWN, NEXT] {
        let mut starting = plan();
        starting.began(&Permits::default(), UP, Duration::ZERO);
        let expected = if connection.up { "Begin" } else { "Connect" };
        assert_eq!(next(&mut starting, Duration::ZERO, connection), expected);
        assert_eq!(starting.notes(), []);
        let mut plan = running();
        _ = plan.notes();
        assert_eq!(next(&mut plan, Duration::ZERO, connection), expected);
        assert!(matches!(*plan.notes(), [Note::SessionEnded(_)]));
        let mut plan = running();
        assert_eq!(deliver(&mut plan, 1, connection), Taken::Dropped, "it may be from before");
        assert!(plan.is_starting());
    }
}

#[test]
fn the_wish_to_stop_flushes_once_and_ends() {
    let mut between = plan();
    between.stop();
    assert_eq!(next(&mut between, Duration::ZERO, DOWN), "End");
    let mut plan = running();
    plan.stop();
    assert_eq!(next(&mut plan, Duration::ZERO, UP), "Flush(Everything)");
    plan.flushed(&Permits::default(), Duration::ZERO);
    assert_eq!(next(&mut plan, Duration::ZERO, UP), "End");
    assert!(!plan.is_starting());
}

#[test]
fn what_waits_for_its_ack_after_a_flush_makes_another_due() {
    let mut plan = running();
    plan.flushed(&Permits::default(), SECOND);
    assert_eq!(next(&mut plan, SECOND, UP), "Pull(10s)", "nothing waits");
    assert_eq!(deliver(&mut plan, 1, UP), Taken::Offer { follows: None });
    plan.flushed(&Permits::default(), SECOND);
    assert_eq!(next(&mut plan, SECOND, UP), "Pull(6s)", "it was not acked");
    assert_eq!(next(&mut plan, SECOND * 6, UP), "Flush(Due)");
}

#[test]
fn what_waits_for_its_ack_is_said_to_be_worked_on_in_every_round() {
    let mut plan = running();
    assert_eq!(deliver(&mut plan, 1, UP), Taken::Offer { follows: None });
    assert_eq!(next(&mut plan, SECOND * 10, UP), "Pull(20s)", "it came in this round");
    assert_eq!(next(&mut plan, SECOND * 19, UP), "Pull(20s)");
    let progress = |replies: &[&str]| -> Vec<_> {
        replies.iter().map(|reply| (Subject::from(*reply), Answer::Progress)).collect()
    };
    assert!(matches!(plan.next(SECOND * 20, UP), Action::KeepAlive));
    assert_eq!(plan.keep_alive([], SECOND * 20), progress(&["ack.1"]));
    assert_eq!(next(&mut plan, SECOND * 20, UP), "Pull(30s)");
    assert_eq!(plan.next_round(), Some(SECOND * 30), "also while the guard is busy");
    assert_eq!(
        plan.keep_alive(["ack.2".into()], SECOND * 31),
        progress(&["ack.1", "ack.2"]),
        "and what waits in the client"
    );
    assert_eq!(plan.next_round(), Some(SECOND * 41));
    plan.kept_alive(SECOND * 45);
    let action = format!("{:?}", plan.next(SECOND * 45, UP));
    assert_eq!(action, "Pull(55s)", "a round that takes long leaves time for the rest");
    let mut between = super::tests::plan();
    assert_eq!((between.keep_alive(["ack.2".into()], SECOND), between.next_round()), (vec![], None), "of no session");
}

#[test]
fn a_consumer_is_looked_at_every_minute_and_another_one_ends_the_session() {
    let minute = SECOND * 60;
    let checked = |found: Option<Position>| {
        let mut plan = running();
        _ = plan.notes();
        assert_eq!(next(&mut plan, SECOND * 59, UP), "Pull(60s)");
        assert_eq!(next(&mut plan, minute, UP), "Find");
        plan.found(found, minute);
        plan
    };
    let mut same = checked(Some(position("mark", 1)));
    assert_eq!(next(&mut same, minute, UP), "Look(ConsumerPosition { delivered: 7, ack_floor: 7 })");
    assert_eq!(next(&mut same, minute, UP), "Pull(69s)");
    let mut narrower = position("mark", 1);
    narrower.config.filter_subject = "a".to_owned();
    for other in [Some(position("mark", 2)), Some(narrower), None] {
        let gone = other.is_none();
        let mut plan = checked(other);
        assert!(plan.is_starting());
        assert_eq!(plan.notes().len(), if gone { 2 } else { 1 }, "a server that says so is asked again after a while");
        assert_eq!(next(&mut plan, minute, UP).starts_with("Wait"), gone);
    }
}

#[test]
fn what_was_refused_is_tried_again_after_a_wait() {
    let unavailable = || ConsumerError::Unavailable { reason: "none".to_owned() };
    let mut plan = plan();
    plan.began(&Permits::default(), UP, SECOND);
    plan.refused("find", unavailable(), SECOND).expect("it may be tried again");
    let Some(Note::Retry { wait, .. }) = plan.notes().pop() else { panic!("nobody was told") };
    assert!(wait > Duration::ZERO);
    let until = SECOND + wait;
    assert_eq!(next(&mut plan, SECOND, UP), format!("Wait({until:?})"));
    assert_eq!(next(&mut plan, until.saturating_sub(Duration::from_nanos(1)), UP), format!("Wait({until:?})"));
    assert_eq!(next(&mut plan, until, UP), "Begin");
    // While a session runs, a check that failed is no reason to end it.
    let mut plan = running();
    assert_eq!(next(&mut plan, SECOND * 60, UP), "Find");
    plan.refused("find", unavailable(), SECOND * 60).expect("it may be tried again");
    assert!(!plan.is_starting());
    plan.refused("find", unavailable(), SECOND * 60).expect("it may be tried again");
    assert!(plan.is_starting(), "no check was under way");
}

#[test]
fn a_consumer_that_can_be_neither_made_nor_moved_is_switched() {
    let damaged = || ConsumerError::Damaged { consumer: "c".to_owned(), reason: "files".to_owned() };
    let mut plan = plan();
    plan.refused("make", damaged(), Duration::ZERO).expect("another name serves");
    assert_eq!(next(&mut plan, SECOND, UP), "Switch(8)");
    // The other names may be damaged as well, but hardly all nine.
    for _ in 0..9 {
        assert!(plan.refused("switch", damaged(), Duration::ZERO).is_ok());
        assert!(matches!(plan.next(Duration::from_secs(60), UP), Action::Switch(_)));
    }
    assert!(plan.refused("switch", damaged(), Duration::ZERO).is_err());
    plan.moved();
    assert_eq!(next(&mut plan, Duration::from_secs(60), UP), "Begin");
    let rejected = ConsumerError::Rejected { reason: "no".to_owned() };
    assert!(plan.refused("make", rejected, Duration::ZERO).is_err());
}

#[test]
fn a_message_passed_over_twice_moves_the_consumer() {
    let mut plan = plan();
    plan.began(&Permits::default(), UP, SECOND);
    plan.found(Some(position("mark", 1)), SECOND);
    plan.looked(&Placement::PassedOver(5), SECOND);
    let second = SECOND + SECOND_LOOK;
    assert_eq!(next(&mut plan, SECOND, UP), format!("Wait({second:?})"));
    assert_eq!(next(&mut plan, second, UP), "Find");
    plan.found(Some(position("mark", 1)), second);
    plan.looked(&Placement::PassedOver(6), second);
    assert!(next(&mut plan, second, UP).starts_with("Wait"), "another one");
    plan.looked(&Placement::PassedOver(6), second);
    assert_eq!(plan.notes(), [Note::PassedOver(6)]);
    assert_eq!(next(&mut plan, second, UP), "Move(6)");
    plan.moved();
    assert_eq!(next(&mut plan, second, UP), "Begin");

    let mut plan = running();
    plan.looked(&Placement::PassedOver(5), SECOND);
    assert_eq!(next(&mut plan, SECOND, UP), format!("Pull({second:?})"));
    assert_eq!(next(&mut plan, second, UP), "Find", "sooner than in a minute");
    plan.looked(&Placement::Stands, second);
    plan.looked(&Placement::PassedOver(5), second);
    assert!(!plan.is_starting(), "not twice in a row");
    plan.looked(&Placement::Beyond { to: 3 }, second);
    assert_eq!(next(&mut plan, second, UP), "Move(3)");
}
