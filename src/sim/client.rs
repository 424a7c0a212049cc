//! What stands between the archiver and the world: futures polled by hand, answers on their way, words for the history.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_nats::Subject;

use super::held::Wire;
use super::{MS, World};
use crate::jetstream::ack::Answer;
use crate::jetstream::plan::{Action, Plan};

/// How often a call may be pending before it is taken for hung, and its future dropped.
const HUNG: u32 = 2_000;

/// Sends answers as the driver does. What is sent while the connection is down the client holds back.
pub(super) fn send(world: &World, plan: &Plan, answers: Vec<(Subject, Answer)>) {
    for (reply, answer) in answers {
        // The client takes each one in its own time.
        world.state().tick();
        if !plan.is_current(world.connection()) {
            break;
        }
        let mut state = world.state();
        if state.is_down() {
            state.server.queued.push_back((reply.to_string(), answer));
        } else {
            state.answered(&reply, answer);
        }
    }
}

/// What is with a process: deliveries that were taken, and those that wait in its client.
pub(super) struct InHand<'a> {
    pub(super) plan: &'a mut Plan,
    pub(super) buffer: &'a Option<VecDeque<Wire>>,
}

impl InHand<'_> {
    /// Sends a round of in-progress acks.
    pub(super) fn keep_alive(&mut self, world: &World) {
        let now = Duration::from_nanos(u64::try_from(world.state().server.mono).unwrap());
        let waiting = self.buffer.iter().flatten().map(|wire| Subject::from(wire.reply.as_str()));
        let answers = self.plan.keep_alive(waiting, now);
        send(world, self.plan, answers);
    }
}

/// Runs a future to its end, and keeps deliveries alive meanwhile. `None` where it was dropped half way.
pub(super) fn poll<F: Future>(
    world: &World,
    budget: &mut Option<u32>,
    mut in_hand: Option<InHand<'_>>,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..HUNG {
        if let Some(left) = budget {
            *left = left.checked_sub(1)?;
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let before = world.state().server.mono;
        world.pass(5 * MS);
        world.state().stood_still(before);
        if let Some(in_hand) = &mut in_hand
            && let Some(round) = in_hand.plan.next_round()
            && u128::try_from(world.state().server.mono).unwrap() >= round.as_nanos()
        {
            in_hand.keep_alive(world);
        }
    }
    None
}

pub(super) fn brief(action: &Action) -> String {
    match action {
        Action::Answer(answers) => {
            let tokens = |reply: &Subject| reply.split('.').nth(5).unwrap_or_default().to_owned();
            let all: Vec<_> = answers.iter().map(|(reply, answer)| format!("{answer:?} {}", tokens(reply))).collect();
            format!("answer {}", all.join(", "))
        }
        other => format!("{other:?}").to_lowercase(),
    }
}
