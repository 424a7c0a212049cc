//! Deliveries: how they come, and what is done with each.

use std::time::Duration;

use async_nats::Subject;

use super::{Archiver, Stop};
use crate::jetstream::ack::{Delivery, detached};
use crate::jetstream::plan::Taken;
use crate::jetstream::session::SessionEnd;
use crate::sim::MS;
use crate::sim::client::{InHand, poll};
use crate::sim::held::Wire;
use crate::sim::law::{Broken, Law};
use crate::{Offer, Record};

impl Archiver {
    /// Time passes, until then or until something comes.
    pub(super) fn sleep(&mut self, until: Duration) {
        let until = i64::try_from(until.as_nanos()).unwrap_or(i64::MAX);
        let mut state = self.world.state();
        let due = state.next_due().unwrap_or(i64::MAX);
        let now = state.server.mono;
        let wake = until.min(due.max(now + MS)).max(now + MS / 10);
        state.pass(wake - now);
    }

    pub(super) fn pull(&mut self, until: Duration) -> Result<(), Stop> {
        self.books.pulls()?;
        let Some(alive) = &mut self.alive else { return Ok(()) };
        let Some(buffer) = &mut alive.buffer else {
            return Err(Broken { law: Law::Stopped, why: "nothing is subscribed to".to_owned() }.into());
        };
        if buffer.is_empty() {
            let mut state = self.world.state();
            let batch = 1 + state.server.rng.below(8);
            for _ in 0..batch {
                let Some(wire) = state.deliver() else { break };
                let delivery = Delivery::parse(&wire.reply).filter(|delivery| delivery.times > 1);
                if let Some(id) = delivery.map(|delivery| delivery.id)
                    && (alive.plan.waits_for(id) || buffer.iter().any(|before| before.is(id)))
                    && !state.is_disturbed()
                {
                    return Err(Broken { law: Law::ComesAgain, why: format!("{id} is in our hands") }.into());
                }
                if state.server.lose_deliveries > 0 {
                    state.server.lose_deliveries -= 1;
                } else {
                    buffer.push_back(wire);
                }
            }
        }
        if let Some(wire) = buffer.pop_front() {
            return self.take(wire);
        }
        if self.world.state().server.held.is_none() {
            let now = self.now();
            // As the server says it, or its silence.
            self.world.pass(10_000 * MS);
            self.with(|alive| alive.plan.ended(&SessionEnd::Server("Consumer Deleted".to_owned()), now));
        } else {
            self.sleep(until);
        }
        Ok(())
    }

    /// Offers one message.
    fn take(&mut self, wire: Wire) -> Result<(), Stop> {
        let now = self.now();
        let Some(delivery) = Delivery::parse(&wire.reply) else { return Ok(()) };
        // Read after the message was taken.
        let connection = self.world.connection();
        let Some(alive) = &mut self.alive else { return Ok(()) };
        let reply = detached(&Subject::from(wire.reply));
        let ours = delivery.times == 1 || self.source.matches(&wire.message.subject);
        let taken = alive.plan.delivered(&delivery, reply, ours, connection, now);
        let Taken::Offer { follows } = taken else { return Ok(()) };
        let (id, bytes) = (delivery.id, wire.message.payload.len() as u64);
        let record = Record::new(id.sequence, id.published, wire.message.subject, wire.message.payload);
        let before = self.sink.inside().writes;
        let in_hand = InHand { plan: &mut alive.plan, buffer: &alive.buffer };
        let outcome = poll(&self.world, &mut self.budget, Some(in_hand), alive.guard.offer(record, follows));
        if self.sink.inside().writes > before {
            self.books.written(id);
        }
        let offered = match outcome.ok_or_else(|| self.killed())? {
            Ok(offered) => offered,
            Err(error) => return Err(self.failed(&error.into())),
        };
        self.note(|| format!("  {id} follows {follows:?}, delivery {}: {offered:?}", delivery.times));
        let now = self.now();
        self.with(|alive| alive.plan.offered(bytes, offered == Offer::Full, now));
        let (waiting, _) = self.alive.as_ref().map_or((0, 0), |alive| alive.guard.unreported());
        if waiting as u64 > self.flush.count {
            return Err(Broken { law: Law::Rejected, why: format!("{waiting} wait for the hook") }.into());
        }
        Ok(())
    }
}
