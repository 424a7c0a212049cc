//! A small world in memory: a stream that can suffer every accident a real one suffers, a consumer that forgets or stands
//! ahead, a sink that keeps only what it made durable, and the loop between them.
//!
//! Nothing here sleeps or reads a clock: time moves when the world is told to move it.

mod accident;
mod api;
mod archiver;
mod books;
mod client;
mod consumer;
mod driver;
mod guard;
mod hand;
mod held;
mod later;
mod law;
mod life;
mod lives;
mod server;
mod sink;
mod store;
mod stream;
mod teeth;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

pub(crate) use crate::rng::Rng;
pub(crate) use consumer::{AfterLoss, Consumer};
pub(crate) use driver::{Driver, Stop};
pub(crate) use server::Server;
pub(crate) use sink::{Disk, Partial, Recover, TestSink};
pub(crate) use store::TestStore;
pub(crate) use stream::World;

/// One millisecond of the world's clock.
pub(crate) const MS: i64 = 1_000_000;

/// Runs a future that waits for nothing but itself. `budget` is how often it may still be polled; when that is used up it
/// is dropped where it stands, as a process is by a power cut.
pub(crate) fn run<F: Future>(budget: &mut Option<u32>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Some(left) = budget {
            *left = left.checked_sub(1)?;
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
    }
    panic!("a future makes no progress");
}

/// Runs a future to its end.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    run(&mut None, future).expect("a future without a budget is never dropped")
}

/// Pending so many times: places at which a call can be cancelled.
pub(crate) struct Stutter(pub(crate) u32);

impl Future for Stutter {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.0.checked_sub(1) {
            None => Poll::Ready(()),
            Some(left) => {
                self.0 = left;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}
