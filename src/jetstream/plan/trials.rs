//! What a plan does while nothing happens, while somebody else does something, and while the consumer is paused.

use async_nats::jetstream::consumer::Config;

use super::*;
use crate::guard::Placement;
use crate::jetstream::settings;
use crate::record::RecordId;

const CONNECTION: Connection = Connection { up: true, count: 1 };
const MINUTE: Duration = Duration::from_secs(60);

struct Trial {
    plan: Plan,
    now: Duration,
    position: Position,
    notes: Vec<Note>,
    steps: u32,
}

impl Trial {
    /// A session over a consumer that has delivered ten messages and waits for none of them.
    fn new() -> Self {
        let limits = Limits { count: 100, bytes: 1 << 20, age: Duration::from_secs(5), window: None };
        let config = settings::marked(Config::default(), "mark");
        let position = Position { created: 1, deliveries: 10, ..Position::at(10, 10, config) };
        let plan = Plan::new(limits, true, "mark".to_owned(), None, 10, 7);
        let mut trial = Self { plan, now: Duration::ZERO, position, notes: Vec::new(), steps: 0 };
        while trial.plan.is_starting() {
            trial.step();
        }
        trial.notes();
        trial
    }

    /// Does what the plan wants, in a world in which nothing comes. Gives the name of the request, where it was one.
    fn step(&mut self) -> Option<&'static str> {
        self.steps += 1;
        assert!(self.steps < 10_000, "it goes round in circles");
        match self.plan.next(self.now, CONNECTION) {
            Action::Begin => {
                self.plan.began(&Permits::default(), CONNECTION, self.now);
                Some("begin")
            }
            Action::Find => {
                self.plan.found(Some(self.position.clone()), self.now);
                Some("find")
            }
            Action::Look(_) => {
                self.plan.looked(&Placement::Stands, self.now);
                Some("look")
            }
            Action::Reread(_) => {
                self.plan.looked(&Placement::Stands, self.now);
                Some("reread")
            }
            Action::Subscribe => {
                self.plan.subscribed(self.now);
                Some("subscribe")
            }
            Action::Pull(until) | Action::Wait(until) => {
                self.now = until;
                None
            }
            Action::Flush(_) => {
                self.plan.flushed(&Permits::default(), self.now);
                Some("flush")
            }
            Action::Answer(_) => {
                self.plan.answered();
                None
            }
            Action::KeepAlive => {
                _ = self.plan.keep_alive([], self.now);
                None
            }
            other => panic!("{other:?}"),
        }
    }

    /// The requests until this time.
    fn until(&mut self, time: Duration) -> Vec<&'static str> {
        let mut requests = Vec::new();
        while self.now < time {
            requests.extend(self.step());
        }
        requests
    }

    /// The consumer delivers the next message, to us or elsewhere.
    fn deliver(&mut self, here: bool) {
        self.position.deliveries += 1;
        self.position.delivered += 1;
        let (number, remaining) = (self.position.deliveries, 0);
        if here {
            let sequence = self.position.delivered;
            let id = RecordId::new(sequence, i64::try_from(sequence).expect("small"));
            let delivery = Delivery { id, times: 1, consumer_sequence: number, remaining };
            let taken = self.plan.delivered(&delivery, "reply".into(), true, CONNECTION, self.now);
            assert!(matches!(taken, Taken::Offer { .. }));
            self.plan.offered(1, false, self.now);
        }
    }

    fn notes(&mut self) -> Vec<Note> {
        self.notes.extend(self.plan.notes());
        std::mem::take(&mut self.notes)
    }
}

#[test]
fn an_idle_stream_costs_one_request_a_minute_and_no_word() {
    let mut trial = Trial::new();
    let requests = trial.until(MINUTE * 60 + Duration::from_secs(1));
    // The first look is a whole one. From then on the stream and the consumer are asked in turn.
    let mut expected = vec!["find", "look"];
    expected.extend(["find", "reread"].repeat(30));
    expected.pop();
    assert_eq!(requests, expected);
    assert_eq!(trial.notes(), []);
}

#[test]
fn what_happens_on_an_idle_stream_makes_the_next_look_a_whole_one() {
    let mut trial = Trial::new();
    let minute = |trial: &mut Trial, minute| trial.until(MINUTE * minute + Duration::from_secs(1));
    assert_eq!(minute(&mut trial, 2), ["find", "look", "find"]);
    // Elsewhere: it is seen when the consumer is asked, in its turn.
    trial.deliver(false);
    assert_eq!(minute(&mut trial, 6), ["reread", "find", "look", "find", "reread"]);
    // A look that is not at its end goes on.
    trial.plan.looked(&Placement::StandsSoFar, trial.now);
    assert_eq!(minute(&mut trial, 9), ["find", "look", "find", "reread"]);
    trial.deliver(true);
    let mut requests = minute(&mut trial, 10);
    requests.retain(|request| *request != "flush");
    assert_eq!(requests, ["find", "look"]);
}

#[test]
fn a_paused_consumer_is_said_once_and_costs_no_more() {
    let mut trial = Trial::new();
    trial.position.paused_until = Some(1_000_000_000_000);
    for minute in 1..=5 {
        // The server's two numbers never add up to quite the same.
        trial.position.paused_until = trial.position.paused_until.map(|until| until + minute);
        let requests = trial.until(MINUTE * u32::try_from(minute).expect("small") + Duration::from_secs(1));
        let expected: &[_] =
            if minute == 1 { &["find", "look"] } else { &[["find"], ["reread"]][usize::from(minute % 2 == 1)] };
        assert_eq!(requests, expected, "minute {minute}");
    }
    assert_eq!(trial.notes(), [Note::Paused { until: 1_000_000_000_001 }]);
    let longer = 2_000_000_000_000;
    for until in [Some(longer), None, Some(longer)] {
        trial.position.paused_until = until;
        trial.until(trial.now + MINUTE * 2);
    }
    assert_eq!(trial.notes(), [Note::Paused { until: longer }, Note::Paused { until: longer }]);
}

#[test]
fn who_takes_every_other_delivery_is_found_in_two_checks() {
    let mut trial = Trial::new();
    for minute in 1..=5 {
        trial.until(MINUTE * minute + Duration::from_secs(1));
        // Nothing is said at the first check, nor where deliveries went elsewhere for the first time, nor twice.
        let expected = if minute == 3 { vec![Note::Shared { count: 2 }] } else { Vec::new() };
        assert_eq!(trial.notes(), expected, "minute {minute}");
        for here in [true, false, true] {
            trial.deliver(here);
        }
    }
}

#[test]
fn who_takes_every_delivery_is_found_too() {
    let mut trial = Trial::new();
    for minute in 1..=6 {
        trial.until(MINUTE * minute + Duration::from_secs(1));
        trial.deliver(false);
    }
    assert!(matches!(trial.notes()[..], [Note::Shared { .. }]));
}

#[test]
fn a_session_forgets_what_the_one_before_lost() {
    let mut trial = Trial::new();
    for minute in 1..=10 {
        trial.until(MINUTE * minute + Duration::from_secs(1));
        trial.deliver(true);
        trial.deliver(false);
        if minute % 2 == 0 {
            trial.plan.ended(&SessionEnd::Reconnected, trial.now);
            trial.until(trial.now + Duration::from_secs(1));
        }
    }
    let notes = trial.notes();
    assert!(!notes.iter().any(|note| matches!(note, Note::Shared { .. })), "{notes:?}");
}
