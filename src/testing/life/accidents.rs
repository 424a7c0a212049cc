//! What happens to a life: crashes, failures, a stream that loses its tail.

use std::time::Duration;

use super::{Crash, Life, Stop, broken};
use crate::error::{SinkFailure, chain};
use crate::store::MemoryStore;
use crate::testing::report::Promise;
use crate::testing::{Hook, Storage};

impl<S: Storage> Life<'_, S> {
    /// The process dies, with the power or without. What it leaves is looked at.
    pub(in crate::testing) async fn crash(&mut self, how: Crash) -> Result<(), Stop> {
        self.die().await?;
        if how.power {
            self.power_cut().await?;
        }
        if how.checkpoint {
            self.lose_checkpoint();
        }
        Ok(())
    }

    /// The process dies.
    pub(in crate::testing) async fn die(&mut self) -> Result<(), Stop> {
        self.watch.step("the process is gone");
        self.watch.notes().crashes += 1;
        self.guard = None;
        self.mend().await?;
        self.watch.calm();
        self.listen()?;
        self.books.crashed(self.facts.recovers);
        self.see(Promise::Kept).await
    }

    /// The power goes, if that can be had. All sinks are gone.
    pub(in crate::testing) async fn power_cut(&mut self) -> Result<(), Stop> {
        if !self.facts.durability {
            return Ok(());
        }
        self.watch.step("the power is cut");
        hook(self.storage.power_cut().await)?;
        self.see(Promise::Synced).await
    }

    /// The checkpoint is lost, and the consumer begins again.
    pub(in crate::testing) fn lose_checkpoint(&mut self) {
        self.watch.step("the checkpoint is lost");
        self.place = MemoryStore::new();
        self.acked.clear();
        if !self.facts.recovers {
            self.books.forgotten();
        }
        // A claim has one witness for a run of records: what a fork left of it is written again.
        self.forked |= self.books.lives() > 1;
    }

    /// From now on the storage's operation of this number fails.
    pub(in crate::testing) async fn fail_at(&mut self, operation: u64) -> Result<(), Stop> {
        self.watch.step(format!("the storage will fail, {operation} operations from now"));
        hook(self.storage.fail_at(Some(operation)).await)?;
        self.failing = true;
        Ok(())
    }

    /// Whether the storage can be made to fail.
    pub(in crate::testing) const fn can_fail(&self) -> bool {
        self.facts.failures
    }

    /// Whether the storage may fail.
    pub(in crate::testing) const fn is_failing(&self) -> bool {
        self.failing
    }

    /// The storage fails no more.
    pub(in crate::testing) async fn mend(&mut self) -> Result<(), Stop> {
        if std::mem::take(&mut self.failing) {
            hook(self.storage.fail_at(None).await)?;
        }
        Ok(())
    }

    /// The consumer forgets what was acked: all is delivered again.
    pub(in crate::testing) async fn rewind(&mut self) -> Result<(), Stop> {
        self.watch.step("all is delivered again");
        self.acked.clear();
        self.session().await
    }

    /// The stream loses its tail; the next messages get its numbers. A guard that is open must begin a session.
    pub(in crate::testing) fn lose_above(&mut self, sequence: u64) {
        self.watch.step(format!("the stream loses what is above {sequence}"));
        self.stream.lose_above(sequence);
        self.messages.retain(|record| record.sequence <= sequence);
        self.next_life(sequence);
    }

    /// The stream is made anew.
    pub(in crate::testing) fn recreate(&mut self) {
        self.watch.step("the stream is made anew");
        self.stream.recreate();
        self.messages.clear();
        self.next_life(0);
    }

    fn next_life(&mut self, through: u64) {
        self.acked.retain(|acked| *acked <= through);
        self.queue.retain(|queued| *queued <= through);
        self.books.next_life(through);
        self.forked = true;
        self.stream.pass(Duration::from_secs(30));
    }
}

fn hook(done: Result<Hook, SinkFailure>) -> Result<(), Stop> {
    match done {
        Ok(Hook::Done) => Ok(()),
        Ok(Hook::Missing) => broken(Promise::Works, "a hook of the storage is there at times only"),
        Err(error) => broken(Promise::Works, format!("a hook of the storage failed: {}", chain(&*error))),
    }
}
