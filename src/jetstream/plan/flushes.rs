//! What a plan does with permits: answers, waits, moves, and the way to a session with what a sink brings along.

use super::tests::{UP, deliver, next, plan, position, running};
use super::*;
use crate::guard::Placement;
use crate::jetstream::position::Moved;
use crate::record::RecordId;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);
const ZERO: Duration = Duration::ZERO;

fn id(sequence: u64) -> RecordId {
    RecordId::new(sequence, 1)
}

fn answers(list: &[(&str, Answer)]) -> String {
    let list: Vec<(Subject, Answer)> = list.iter().map(|(reply, answer)| (Subject::from(*reply), *answer)).collect();
    format!("Answer({list:?})")
}

/// The wait that the last note tells of.
fn wait(plan: &mut Plan, of: &str) -> Duration {
    match plan.notes().pop() {
        Some(Note::Retry { what, wait, .. }) if what == of => wait,
        other => panic!("{other:?}"),
    }
}

/// A plan whose session began with these permits and this position, up to the look at the consumer.
fn looked_at(mut plan: Plan, permits: &Permits, position: Position) -> Plan {
    plan.began(permits, UP, ZERO);
    plan.found(Some(position), ZERO);
    plan.looked(&Placement::Stands, ZERO);
    plan
}

fn without_fast_forward() -> Plan {
    let flush = Limits { count: 2, bytes: 1_000, age: SECOND * 5, window: None };
    Plan::new(flush, false, "mark".to_owned(), None, 7, 1)
}

#[test]
fn what_a_flush_permits_is_answered_before_anything_else() {
    let mut plan = running();
    for sequence in [1, 2, 3] {
        deliver(&mut plan, sequence, UP);
    }
    let permits = Permits::for_acks(&[id(1), id(3)], 1).with_rejected(&[id(2)]);
    plan.flushed(&permits, ZERO);
    let expected = answers(&[("ack.2", Answer::Term), ("ack.1", Answer::Ack), ("ack.3", Answer::Ack)]);
    assert_eq!(next(&mut plan, ZERO, UP), expected);
    plan.answered();
    assert_eq!(next(&mut plan, ZERO, UP), "Pull(10s)", "nothing waits");
}

#[test]
fn the_last_flush_is_answered_before_the_end() {
    let mut plan = running();
    deliver(&mut plan, 1, UP);
    plan.stop();
    assert_eq!(next(&mut plan, ZERO, UP), "Flush(Everything)");
    plan.flushed(&Permits::for_acks(&[id(1)], 1), ZERO);
    assert!(plan.is_current(UP));
    assert_eq!(next(&mut plan, ZERO, UP), answers(&[("ack.1", Answer::Ack)]));
    plan.answered();
    assert_eq!(next(&mut plan, ZERO, UP), "End");
    // Answers of a session that goes on are no end.
    let mut plan = running();
    plan.answered();
    assert_eq!(next(&mut plan, ZERO, UP), "Pull(10s)");
}

#[test]
fn a_process_that_is_to_stop_does_not_wait_for_a_stream_that_cannot_be_asked() {
    for permits in [Permits::default().with_unknown(), Permits::default().with_move_to(3)] {
        let mut plan = running();
        plan.stop();
        plan.flushed(&permits, ZERO);
        assert_eq!(next(&mut plan, ZERO, UP), "End");
    }
}

#[test]
fn after_a_fork_the_consumer_is_moved() {
    let mut plan = running();
    _ = plan.notes();
    plan.flushed(&Permits::default().with_move_to(3), ZERO);
    assert!(matches!(*plan.notes(), [Note::SessionEnded(_)]));
    assert_eq!(next(&mut plan, ZERO, UP), "Move(3)");
    let mut plan = super::tests::plan();
    plan.began(&Permits::default().with_move_to(4), UP, ZERO);
    assert_eq!((plan.notes(), next(&mut plan, ZERO, UP)), (Vec::new(), "Move(4)".to_owned()));
    let mut plan = running();
    plan.looked(&Placement::Fork(Permits::default().with_move_to(5)), ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), "Move(5)");
}

#[test]
fn while_the_stream_cannot_be_asked_nothing_is_pulled_flushed_or_reported() {
    let mut plan = running();
    deliver(&mut plan, 1, UP);
    plan.offered(1, true, ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), "Flush(Due)");
    plan.flushed(&Permits::default().with_unknown(), SECOND);
    let until = SECOND + wait(&mut plan, "flush");
    plan.unreported((1, 1));
    for now in [SECOND, until.saturating_sub(NANO)] {
        assert_eq!(next(&mut plan, now, UP), format!("Wait({until:?})"));
    }
    assert_eq!(next(&mut plan, until, UP), "Report");
    plan.reported(Some("down".to_owned()), until);
    let again = until + wait(&mut plan, "dead-letter");
    assert_eq!(next(&mut plan, until, UP), "Flush(Due)");
    plan.flushed(&Permits::default().with_pending(1, 1), until);
    assert_eq!(next(&mut plan, until, UP), format!("Pull({again:?})"), "the hook is tried again");
    // A wait that is over is forgotten, and the next one is short again.
    plan.flushed(&Permits::default().with_unknown(), until);
    assert!(wait(&mut plan, "flush") <= Duration::from_millis(100));
}

#[test]
fn what_the_hook_took_makes_a_flush_due() {
    let mut plan = running();
    plan.unreported((2, 2));
    assert_eq!(next(&mut plan, ZERO, UP), "Report", "as much as a flush holds");
    plan.reported(None, ZERO);
    plan.unreported((0, 0));
    assert_eq!(next(&mut plan, ZERO, UP), "Flush(Due)");
}

#[test]
fn while_too_many_wait_for_the_hook_nothing_is_pulled() {
    let mut plan = running();
    plan.unreported((2, 2));
    plan.reported(Some("down".to_owned()), ZERO);
    let again = wait(&mut plan, "dead-letter");
    assert_eq!(next(&mut plan, ZERO, UP), format!("Wait({again:?})"));
}

#[test]
fn what_a_sink_left_for_later_is_flushed_again_but_not_what_waits_for_the_hook() {
    for (pending, unreported, expected) in [(2, 1, "Pull(5s)"), (1, 1, "Pull(10s)")] {
        let mut plan = running();
        plan.flushed(&Permits::default().with_pending(pending, unreported), ZERO);
        assert_eq!(next(&mut plan, ZERO, UP), expected);
    }
}

#[test]
fn what_a_sink_brings_into_a_session_is_flushed() {
    let permits = Permits::default;
    let standing = || position("mark", 1);
    for (permits, expected) in [
        (permits(), "Pull(10s)"),
        (permits().with_pending(1, 0), "Pull(5s)"),
        (permits().with_flush_due(), "Flush(Due)"),
    ] {
        let mut plan = looked_at(plan(), &permits, standing());
        plan.subscribed(ZERO);
        assert_eq!(next(&mut plan, ZERO, UP), expected);
    }
}

#[test]
fn a_full_ack_window_makes_a_flush_of_everything_due() {
    for (window, expected) in [(1, "Flush(Everything)"), (2, "Pull(5s)"), (0, "Pull(5s)"), (-1, "Pull(5s)")] {
        let mut position = position("mark", 1);
        position.config.max_ack_pending = window;
        let mut plan = looked_at(plan(), &Permits::default(), position);
        plan.subscribed(ZERO);
        deliver(&mut plan, 1, UP);
        plan.offered(1, false, ZERO);
        assert_eq!(next(&mut plan, ZERO, UP), expected, "{window}");
    }
}

#[test]
fn a_session_follows_the_consumers_ack_policy_and_deliver_policy() {
    let mut all = position("mark", 1);
    all.config.ack_policy = AckPolicy::All;
    let mut plan = looked_at(super::tests::plan(), &Permits::default(), all);
    plan.subscribed(ZERO);
    for sequence in [1, 2, 3] {
        deliver(&mut plan, sequence, UP);
    }
    plan.flushed(&Permits::for_acks(&[id(1), id(2), id(3)], 2), ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), answers(&[("ack.2", Answer::Ack)]));
    let mut last = position("mark", 1);
    last.config.deliver_policy = DeliverPolicy::LastPerSubject;
    let mut plan = looked_at(super::tests::plan(), &Permits::default(), last);
    plan.subscribed(ZERO);
    deliver(&mut plan, 1, UP);
    assert_eq!(deliver(&mut plan, 2, UP), Taken::Offer { follows: None });
    let mut plan = running();
    deliver(&mut plan, 1, UP);
    assert_eq!(deliver(&mut plan, 2, UP), Taken::Offer { follows: Some(1) });
}

#[test]
fn a_new_session_waits_for_no_answer_of_the_one_before() {
    let mut plan = running();
    deliver(&mut plan, 1, UP);
    plan.ended(&SessionEnd::Reconnected, ZERO);
    let mut plan = looked_at(plan, &Permits::default(), position("mark", 1));
    plan.subscribed(ZERO);
    plan.flushed(&Permits::for_acks(&[id(1)], 1), ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), "Pull(10s)");
}

#[test]
fn an_archived_backlog_is_passed_over_once() {
    let verified = || Permits::default().with_verified_through(9);
    let mut plan = looked_at(plan(), &verified(), position("mark", 1));
    assert_eq!(plan.notes(), [Note::FastForward { from: 7, through: 9 }]);
    assert_eq!(next(&mut plan, ZERO, UP), "Move(10)");
    plan.moved();
    let mut plan = looked_at(plan, &verified(), position("mark", 1));
    assert_eq!((next(&mut plan, ZERO, UP), plan.notes()), ("Subscribe".to_owned(), Vec::new()), "not twice");
    let mut plan = looked_at(plan, &Permits::default().with_verified_through(20), position("mark", 1));
    assert_eq!(next(&mut plan, ZERO, UP), "Move(21)");
}

#[test]
fn a_backlog_is_read_where_it_is_small_or_none_or_not_to_be_passed_over() {
    let through = |sequence| Permits::default().with_verified_through(sequence);
    let drained = Position { pending: 0, ..position("mark", 1) };
    for (plan, permits, position) in [
        (plan(), through(8), position("mark", 1)),
        (plan(), through(6), position("mark", 1)),
        (plan(), through(90), drained),
        (plan(), Permits::default(), position("mark", 1)),
        (without_fast_forward(), through(90), position("mark", 1)),
    ] {
        let mut plan = looked_at(plan, &permits, position);
        assert_eq!((next(&mut plan, ZERO, UP), plan.notes()), ("Subscribe".to_owned(), Vec::new()));
    }
    // A consumer that seems to have passed over a message is looked at again first.
    let mut suspected = plan();
    suspected.began(&through(90), UP, ZERO);
    suspected.found(Some(position("mark", 1)), ZERO);
    suspected.looked(&Placement::PassedOver(5), ZERO);
    assert_eq!(next(&mut suspected, ZERO, UP), format!("Wait({SECOND_LOOK:?})"));
    // And in a session that runs, nothing is passed over.
    let mut running = looked_at(plan(), &through(8), position("mark", 1));
    running.subscribed(ZERO);
    running.jump.verified_through = Some(90);
    running.looked(&Placement::Stands, ZERO);
    assert!(!running.is_starting());
}

#[test]
fn a_backlog_that_cannot_be_passed_over_is_read_but_another_move_is_tried_again() {
    let unavailable = || ConsumerError::Unavailable { reason: "none".to_owned() };
    let damaged = || ConsumerError::Damaged { consumer: "c".to_owned(), reason: "files".to_owned() };
    for error in [unavailable(), damaged()] {
        let verified = Permits::default().with_verified_through(90);
        let mut plan = looked_at(plan(), &verified, position("mark", 1));
        _ = plan.notes();
        plan.refused("move", error, ZERO).expect("it spared a backlog, no more");
        let until = wait(&mut plan, "fast-forward");
        assert_eq!(next(&mut plan, until, UP), "Begin");
        let mut plan = looked_at(plan, &verified, position("mark", 1));
        assert_eq!(next(&mut plan, until, UP), "Subscribe");
    }
    // Another request says nothing about the move.
    let mut plan = looked_at(plan(), &Permits::default().with_verified_through(90), position("mark", 1));
    plan.refused("begin", unavailable(), ZERO).expect("it may be tried again");
    let until = wait(&mut plan, "begin");
    assert_eq!(next(&mut plan, until, UP), "Move(91)");
    // A move after a fork must be made.
    let mut plan = super::tests::plan();
    plan.began(&Permits::default().with_move_to(4), UP, ZERO);
    plan.refused("move", unavailable(), ZERO).expect("it may be tried again");
    let until = wait(&mut plan, "move");
    assert_eq!(next(&mut plan, until, UP), "Move(4)");
}

#[test]
fn a_session_that_cannot_be_verified_is_tried_again_after_a_wait() {
    let mut beginning = plan();
    beginning.began(&Permits::default().with_unknown(), UP, ZERO);
    let until = wait(&mut beginning, "session");
    assert_eq!(next(&mut beginning, until.saturating_sub(NANO), UP), format!("Wait({until:?})"));
    assert_eq!(next(&mut beginning, until, UP), "Begin");
    let unknown = || Placement::Unknown(crate::observer::ObserveError::Unavailable { reason: "no".to_owned() });
    let mut looking = plan();
    looking.began(&Permits::default(), UP, ZERO);
    looking.found(Some(position("mark", 1)), ZERO);
    looking.looked(&unknown(), ZERO);
    let until = wait(&mut looking, "session");
    assert_eq!(next(&mut looking, until, UP), "Begin");
    let mut running = running();
    running.looked(&unknown(), ZERO);
    assert!(!running.is_starting(), "the next look will tell");
}

#[test]
fn what_is_in_our_hands_counts_for_nothing_that_was_passed_over() {
    for (in_hand, expected) in [(0, 5), (1, 7), (2, 7)] {
        let mut plan = running();
        for sequence in 0..in_hand {
            deliver(&mut plan, sequence + 1, UP);
        }
        plan.found(Some(Position { ack_floor: 5, ack_pending: 1, ..position("mark", 1) }), ZERO);
        let look = format!("Look(ConsumerPosition {{ delivered: 7, ack_floor: {expected} }})");
        assert_eq!(next(&mut plan, ZERO, UP), look, "{in_hand}");
    }
}

#[test]
fn checks_come_as_often_as_is_said() {
    let mut plan = looked_at(plan().checking_every(SECOND * 3), &Permits::default(), position("mark", 1));
    plan.subscribed(ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), "Pull(3s)");
    assert_eq!(next(&mut plan, SECOND * 3, UP), "Find");
    assert_eq!(next(&mut plan, SECOND * 3, UP), "Pull(6s)");
}

#[test]
fn a_round_is_never_shorter_than_it_takes_to_send_one() {
    let mut short = position("mark", 1);
    short.config.ack_wait = Duration::from_millis(20);
    let mut plan = looked_at(plan(), &Permits::default(), short);
    plan.subscribed(ZERO);
    assert_eq!(plan.next_round(), Some(LEAST_ROUND));
    _ = plan.keep_alive([], SECOND);
    assert_eq!(plan.next_round(), Some(SECOND + LEAST_ROUND));
}

#[test]
fn a_message_of_somebody_else_is_neither_offered_nor_acked() {
    let mut plan = running();
    let delivery = Delivery { id: id(1), times: 1, consumer_sequence: 1, remaining: 9 };
    assert_eq!(plan.delivered(&delivery, "ack.1".into(), false, UP, ZERO), Taken::Dropped);
    assert!(!plan.is_starting());
    plan.flushed(&Permits::for_acks(&[id(1)], 1), ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), "Pull(10s)");
}

#[test]
fn two_publish_times_at_one_sequence_end_the_session() {
    let mut plan = running();
    let delivery = |published, consumer_sequence| Delivery {
        id: RecordId::new(1, published),
        times: consumer_sequence,
        consumer_sequence,
        remaining: 9,
    };
    plan.delivered(&delivery(1, 1), "a".into(), true, UP, ZERO);
    assert_eq!(plan.delivered(&delivery(2, 2), "b".into(), true, UP, ZERO), Taken::Dropped);
    assert!(plan.is_starting());
}

#[test]
fn a_consumer_that_was_made_is_looked_at() {
    let mut plan = plan();
    plan.began(&Permits::default(), UP, ZERO);
    plan.found(None, ZERO);
    plan.made(Moved { to: 1, created: true, position: position("mark", 1) });
    assert_eq!(next(&mut plan, ZERO, UP), "Look(ConsumerPosition { delivered: 7, ack_floor: 7 })");
}

#[test]
fn a_pause_that_ends_a_second_later_is_another_one() {
    let mut plan = running();
    _ = plan.notes();
    for (until, said) in [(5, true), (1_000_000_004, false), (2_000_000_004, true)] {
        plan.found(Some(Position { paused_until: Some(until), ..position("mark", 1) }), ZERO);
        assert_eq!(plan.notes().len(), usize::from(said), "{until}");
    }
}

/// 3 follows 1: what lies between them the consumer left out.
fn passed_over() -> Plan {
    let mut plan = running();
    for (consumer_sequence, sequence) in [(1, 1), (2, 3)] {
        let delivery = Delivery { id: id(sequence), times: 1, consumer_sequence, remaining: 0 };
        let reply = format!("ack.{sequence}").into();
        assert!(matches!(plan.delivered(&delivery, reply, true, UP, ZERO), Taken::Offer { .. }));
        plan.offered(1, false, ZERO);
    }
    plan
}

#[test]
fn a_flush_that_relies_on_the_filters_looks_at_them_first() {
    let mut plan = passed_over();
    assert_eq!(next(&mut plan, ZERO, UP), "Find");
    plan.found(Some(position("mark", 1)), ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), "Flush(Due)");
    plan.flushed(&Permits::for_acks(&[id(1), id(3)], 3), ZERO);
    plan.answered();
    for sequence in [4, 5] {
        deliver(&mut plan, sequence, UP);
        plan.offered(1, false, ZERO);
    }
    assert_eq!(next(&mut plan, ZERO, UP).split('(').next(), Some("Answer"));
    assert_eq!(next(&mut plan, ZERO, UP), "Flush(Due)", "nothing was passed over since");
    assert!(!plan.distrusts());

    let mut plan = passed_over();
    plan.stop();
    assert_eq!(next(&mut plan, ZERO, UP), "Find");
    plan.found(Some(position("mark", 1)), ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), "Flush(Everything)");
}

#[test]
fn filters_that_were_edited_prove_nothing_of_what_was_left_out() {
    let mut plan = passed_over();
    assert_eq!(next(&mut plan, ZERO, UP), "Find");
    let mut edited = position("mark", 1);
    edited.config.filter_subject = "orders.a".to_owned();
    plan.found(Some(edited), ZERO);
    assert_eq!(next(&mut plan, ZERO, UP), "Begin");
    assert_eq!((plan.distrusts(), plan.distrusts()), (true, false));
}

fn lost() -> ConsumerError {
    ConsumerError::Unavailable { reason: "no answer".to_owned() }
}

#[test]
fn a_check_that_cannot_be_made_is_told_and_made_the_next_time() {
    let mut plan = running();
    let minute = SECOND * 60;
    assert_eq!(next(&mut plan, minute, UP), "Find");
    plan.refused("find", lost(), minute).unwrap();
    assert_eq!(wait(&mut plan, "check"), minute);
    assert_eq!(next(&mut plan, minute, UP), "Pull(70s)", "the session goes on");
    assert_eq!(next(&mut plan, minute * 2, UP), "Find");
}

#[test]
fn a_flush_waits_for_the_filters_and_a_stop_does_not() {
    let mut plan = passed_over();
    assert_eq!(next(&mut plan, ZERO, UP), "Find");
    plan.refused("find", lost(), ZERO).unwrap();
    let until = wait(&mut plan, "flush");
    assert_eq!(next(&mut plan, ZERO, UP), format!("Wait({until:?})"));
    assert_eq!(next(&mut plan, until, UP), "Find");
    plan.stop();
    plan.refused("find", lost(), until).unwrap();
    assert_eq!(next(&mut plan, until, UP), "End");
}
