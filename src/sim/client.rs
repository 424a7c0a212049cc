//! What stands between the archiver and the world: futures polled by hand, answers on their way, words for the history.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use async_nats::Subject;

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

/// Runs a future to its end, and keeps deliveries alive meanwhile. `None` where it was dropped half way.
pub(super) fn poll<F: Future>(
    world: &World,
    budget: &mut Option<u32>,
    mut plan: Option<&mut Plan>,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut since = world.state().server.mono;
    for _ in 0..HUNG {
        if let Some(left) = budget {
            *left = left.checked_sub(1)?;
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        world.pass(5 * MS);
        let now = world.state().server.mono;
        if let Some(plan) = &mut plan
            && u128::try_from(now - since).unwrap_or(0) >= plan.round().as_nanos()
        {
            since = now;
            let overdue = plan.overdue();
            send(world, plan, overdue);
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
