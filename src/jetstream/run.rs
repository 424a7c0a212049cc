//! Executes the plan: asks the server, calls the guard, sends acks. Decides nothing.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Message, Statistics, Subject};
use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::ack::{Answer, Delivery, detached};
use super::api::api_prefix;
use super::driver::{Driver, DriverError, Stop};
use super::error::ConsumerError;
use super::pace::{Backoff, Limits};
use super::plan::{Action, Connection, LAST, LONG, Note, Plan, Taken};
use super::pull::{Batch, Pull};
use super::session::SessionEnd;
use super::settings::Expected;
use super::switch::{remove_leftovers, take_over};
use crate::crash;
use crate::error::chain;
use crate::events;
use crate::guard::{Offer, Reported};
use crate::record::Record;
use crate::sink::Sink;
use crate::source::Source;

/// How often the connection is looked at while there is nothing to do; costs no request.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// How long sending acks may take when the connection does not take them.
const SEND_DEADLINE: Duration = Duration::from_secs(2);
/// The most messages one pull asks for.
const BATCH: u64 = 10_000;
/// How many messages that have come already are taken between two looks at the connection and at the wish to stop, and, with
/// a sink that takes its time, at most for how long: [`WATCH_EVERY`].
const AT_ONCE: usize = 32;
/// The least bytes one pull asks for, so that a small flush size does not make every message one pull.
const BATCH_BYTES: u64 = 1024 * 1024;

/// What the plan is executed with.
struct Run {
    plan: Plan,
    /// Of the context, which gives a copy each time: too dear for every message.
    client: Client,
    /// The client's.
    statistics: Arc<Statistics>,
    pull: Option<Pull>,
    began: Instant,
}

impl Run {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn connection(&self) -> Connection {
        connection(&self.client)
    }

    /// How many connections there were.
    fn connects(&self) -> u64 {
        self.statistics.connects.load(Ordering::Relaxed)
    }

    /// Tells the server that what it delivered is being worked on: what was taken, and what waits in the client because the
    /// sink takes its time.
    async fn keep_alive(&mut self, source: &Source) {
        let now = self.now();
        let answers = self.plan.keep_alive(self.pull.iter_mut().flat_map(Pull::gather), now);
        if !answers.is_empty() {
            tracing::debug!(%source, deliveries = answers.len(), "keeping deliveries alive");
            send(&self.client, &self.plan, answers).await;
        }
        self.plan.kept_alive(self.now());
    }

    /// The value; nothing, and a note to the plan, for a failure that it knows what to do about; any other failure.
    fn passes<T>(&mut self, what: &'static str, outcome: Result<T, ConsumerError>) -> Result<Option<T>, DriverError> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let now = self.now();
                self.plan.refused(what, error, now)?;
                Ok(None)
            }
        }
    }
}

impl<S: Sink + 'static> Driver<S> {
    /// Runs one guard until the wish to stop. Returns how many records are left with the sink without a checkpoint.
    pub(super) async fn serve<F: Future<Output = ()>>(&mut self, stop: &mut Stop<F>) -> Result<usize, DriverError> {
        let limits = Limits { count: self.flush.count, bytes: self.flush.bytes, age: self.flush.age, window: None };
        let mark = self.guard.state_id().to_string();
        let (move_to, floor) = (self.guard.move_pending(), self.guard.floor());
        let plan = Plan::new(limits, self.fast_forward, mark, move_to, floor, Backoff::seed());
        let plan = plan.checking_every(self.check_every);
        let client = self.context.client();
        let mut run = Run { plan, statistics: client.statistics(), client, pull: None, began: Instant::now() };
        loop {
            if stop.came() {
                run.plan.stop();
            }
            run.plan.unreported(self.guard.unreported());
            let connection = run.connection();
            let now = run.now();
            let action = run.plan.next(now, connection);
            self.tell(&mut run.plan);
            if matches!(action, Action::End) {
                return Ok(self.guard.pending());
            }
            if run.plan.is_starting() {
                run.pull = None;
                // Nothing is lost by cutting this off: what was not acked is delivered again.
                tokio::select! {
                    biased;
                    () = stop.wait() => {}
                    done = self.start(&mut run, action, connection) => done?,
                }
            } else {
                self.go_on(&mut run, action, now, stop).await?;
            }
        }
    }

    fn tell(&mut self, plan: &mut Plan) {
        for note in plan.notes() {
            let (source, consumer) = (&self.source, self.consumer.name());
            match note {
                Note::SessionBegan { floor } => {
                    events::session_began(source, consumer, floor);
                    self.publish(plan.remaining(), 1);
                }
                Note::FastForward { from, through } => self.guard.fast_forward(consumer, from, through),
                Note::SessionEnded(why) => events::session_ended(source, &why),
                Note::Retry { what, why, wait } => events::retry(source, what, &why, wait),
                Note::PassedOver(sequence) => events::passed_over(source, consumer, sequence),
                Note::Shared { count } => {
                    events::shared(source, consumer, count);
                    self.status.send_modify(|status| status.shared += 1);
                }
                Note::Paused { until } => events::paused(source, consumer, until),
            }
        }
    }

    /// What leads to a session.
    async fn start(&mut self, run: &mut Run, action: Action, connection: Connection) -> Result<(), DriverError> {
        let mark = self.guard.state_id().to_string();
        match action {
            Action::Connect => sleep(WATCH_EVERY).await,
            Action::Wait(until) => sleep_until(run.began + until).await,
            Action::Begin => {
                if run.plan.distrusts() {
                    self.guard.forget_links();
                }
                let permits = self.guard.begin_session().await?;
                run.plan.began(&permits, connection, run.now());
            }
            Action::Find => {
                let found = self.consumer.find().await;
                if let Some(position) = run.passes("find", found)? {
                    // Somebody may have made it anew with settings under which messages are lost.
                    if let Some(position) = &position {
                        let expected = Expected::new(self.flush.count, self.flush.age);
                        self.consumer.check(&position.config, expected)?;
                        self.config = position.config.clone();
                    }
                    run.plan.found(position, run.now());
                }
            }
            Action::Mark => {
                let marked = self.consumer.mark(&mark).await;
                if let Some(position) = run.passes("mark", marked)? {
                    run.plan.found(Some(position), run.now());
                }
            }
            Action::Make(from) => {
                let made = self.consumer.create(&self.config, from, &mark).await;
                if let Some(made) = run.passes("make", made)? {
                    events::consumer_made(&self.source, self.consumer.name(), made.to);
                    self.config = made.position.config.clone();
                    run.plan.made(made);
                }
            }
            Action::Move(to) => {
                let moved = self.consumer.move_to(to, &self.config, &mark).await;
                if let Some(moved) = run.passes("move", moved)? {
                    events::consumer_moved(&self.source, self.consumer.name(), moved.to);
                    self.config = moved.position.config;
                    self.guard.moved();
                    run.plan.moved();
                }
            }
            Action::Switch(to) => {
                let (consumer, leftovers) = (&mut self.consumer, &mut self.leftovers);
                let switched = take_over(&mut self.guard, consumer, leftovers, &mut self.config, to, &mark).await?;
                if let Some(to) = run.passes("switch", switched)? {
                    events::consumer_switched(&self.source, self.consumer.name(), to);
                    self.guard.moved();
                    run.plan.moved();
                }
            }
            Action::Look(position) => {
                let placement = self.guard.check(position).await?;
                run.plan.looked(&placement, run.now());
            }
            Action::Subscribe => {
                remove_leftovers(&mut self.leftovers, &mark).await;
                let count = usize::try_from(self.flush.count.clamp(1, BATCH)).unwrap_or(1);
                let bytes = usize::try_from(self.flush.bytes.max(BATCH_BYTES)).unwrap_or(usize::MAX);
                let batch = Batch::within(count, bytes, &self.config);
                let prefix = api_prefix(&self.source);
                match Pull::new(run.client.clone(), &prefix, self.source.stream(), self.consumer.name(), batch).await {
                    Ok(pull) => {
                        run.pull = Some(pull);
                        run.plan.subscribed(run.now());
                    }
                    Err(end) => run.plan.ended(&end, run.now()),
                }
            }
            Action::Pull(_)
            | Action::Reread(_)
            | Action::Report
            | Action::Flush(_)
            | Action::Answer(_)
            | Action::KeepAlive
            | Action::End => {}
        }
        Ok(())
    }

    /// What happens in a session. Never cut off: the guard would be closed. `now`: when the action was decided.
    async fn go_on<F: Future<Output = ()>>(
        &mut self,
        run: &mut Run,
        action: Action,
        now: Duration,
        stop: &mut Stop<F>,
    ) -> Result<(), DriverError> {
        match action {
            Action::Pull(until) => {
                let until = run.began + until.min(now.saturating_add(WATCH_EVERY));
                let Some(pull) = &mut run.pull else {
                    run.plan.ended(&SessionEnd::Server("nothing is subscribed to".to_owned()), run.now());
                    return Ok(());
                };
                let first = tokio::select! {
                    biased;
                    () = stop.wait() => Ok(None),
                    message = pull.next() => message.map(Some),
                    () = sleep_until(until) => Ok(None),
                };
                self.take_all(run, first).await?;
            }
            Action::Wait(until) => {
                let until = run.began + until.min(now.saturating_add(WATCH_EVERY));
                tokio::select! {
                    () = stop.wait() => {}
                    () = sleep_until(until) => {}
                }
            }
            Action::Report => {
                let failure = self.call_hook(run, stop).await?;
                run.plan.reported(failure, run.now());
                self.publish(run.plan.remaining(), 0);
            }
            Action::Flush(reason) => {
                let flushed = alive(run, &self.source, self.guard.flush(reason)).await?;
                run.plan.flushed(&flushed, run.now());
                self.publish(run.plan.remaining(), 0);
            }
            Action::Answer(answers) => {
                let count = answers.len();
                let dropped = send(&run.client, &run.plan, answers).await;
                if dropped > 0 {
                    events::acks_dropped(&self.source, dropped);
                }
                // Acks that only wait in the client would be lost with the process.
                if stop.came()
                    && dropped == 0
                    && !matches!(timeout(SEND_DEADLINE, run.client.flush()).await, Ok(Ok(())))
                {
                    events::acks_dropped(&self.source, count);
                }
                crash::point("acks-sent");
                run.plan.answered();
            }
            Action::KeepAlive => run.keep_alive(&self.source).await,
            Action::Find => {
                let found = alive(run, &self.source, self.consumer.find()).await;
                if let Some(position) = run.passes("find", found)? {
                    run.plan.found(position, run.now());
                    self.publish(run.plan.remaining(), 0);
                }
            }
            Action::Look(position) => {
                let looked = alive(run, &self.source, self.guard.check(position)).await?;
                run.plan.looked(&looked, run.now());
            }
            Action::Reread(position) => {
                let looked = alive(run, &self.source, self.guard.reread(position)).await?;
                run.plan.looked(&looked, run.now());
            }
            Action::Connect
            | Action::Begin
            | Action::Make(_)
            | Action::Mark
            | Action::Subscribe
            | Action::Move(_)
            | Action::Switch(_)
            | Action::End => {}
        }
        Ok(())
    }

    /// Lets the dead-letter hook take one record. Says why it did not.
    async fn call_hook<F: Future<Output = ()>>(
        &mut self,
        run: &mut Run,
        stop: &mut Stop<F>,
    ) -> Result<Option<String>, DriverError> {
        // Other than the guard's other calls, this one may be cut off.
        let too_long = async {
            tokio::select! {
                () = sleep(LONG) => LONG,
                () = async { stop.wait().await; sleep(LAST).await } => LAST,
            }
        };
        let reported = tokio::select! {
            biased;
            reported = alive(run, &self.source, self.guard.report_rejected()) => reported?,
            after = too_long => return Ok(Some(format!("no answer within {} s", after.as_secs()))),
        };
        Ok(match reported {
            Reported::Nothing | Reported::Taken(_) => None,
            Reported::Failed(error) => Some(chain(&*error)),
        })
    }

    /// Takes the first message and others that have come already.
    async fn take_all(&mut self, run: &mut Run, first: Result<Option<Message>, SessionEnd>) -> Result<(), DriverError> {
        let mut now = run.now();
        let until = now.saturating_add(WATCH_EVERY);
        let (mut next, mut taken) = (first, 0);
        loop {
            match next {
                Ok(Some(message)) => self.take(run, message, now).await?,
                Ok(None) => return Ok(()),
                Err(end) => {
                    run.plan.ended(&end, now);
                    return Ok(());
                }
            }
            taken += 1;
            // What the sink took for it may have made a flush, a check or in-progress acks due.
            now = run.now();
            run.plan.unreported(self.guard.unreported());
            if taken == AT_ONCE || now >= until || !run.plan.pulls_on(now) {
                return Ok(());
            }
            next = run.pull.as_mut().map_or(Ok(None), Pull::ready);
        }
    }

    /// Offers one message.
    async fn take(&mut self, run: &mut Run, message: Message, now: Duration) -> Result<(), DriverError> {
        // Read after the message was taken. A connection that was lost since the last look ends the session at the next one:
        // what came before it was lost is of this session.
        let connection = Connection { up: true, count: run.connects() };
        let Some((reply, delivery)) = message.reply.as_ref().and_then(|reply| Some((reply, Delivery::parse(reply)?)))
        else {
            let reply = message.reply.as_deref().unwrap_or("none").to_owned();
            run.plan.ended(&SessionEnd::Server(format!("a message came with reply subject {reply}")), now);
            return Ok(());
        };
        // The server filters what it delivers for the first time.
        let ours = delivery.times == 1 || self.source.matches(&message.subject);
        if !ours {
            events::foreign(&self.source, delivery.id, &message.subject);
        }
        let taken = run.plan.delivered(&delivery, detached(reply), ours, connection, now);
        let Taken::Offer { follows } = taken else { return Ok(()) };
        let bytes = message.payload.len() as u64;
        let mut record = Record::new(delivery.id.sequence, delivery.id.published, message.subject, message.payload);
        if let Some(headers) = message.headers {
            record.headers = headers;
        }
        let offer = self.guard.offer(record, follows);
        let offered = alive(run, &self.source, offer).await?;
        run.plan.offered(bytes, offered == Offer::Full, now);
        Ok(())
    }
}

fn connection(client: &Client) -> Connection {
    let up = client.connection_state() == State::Connected;
    Connection { up, count: client.statistics().connects.load(Ordering::Relaxed) }
}

/// So many bytes of answers may be on their way to the socket: less than the client writes at once (64 KiB), and drops with a
/// connection. More would wait in its queue of commands, which outlives the connection.
const UNSENT: usize = 48 * 1024;
/// What an answer takes beside its subject, at most.
const FRAME: usize = 32;

/// Sends answers as long as this is the connection the deliveries came on; says how many were dropped. What is not sent is
/// delivered again and skipped: an ack that waited for a reconnect would reach whatever message has its sequence then.
async fn send(client: &Client, plan: &Plan, answers: Vec<(Subject, Answer)>) -> usize {
    let (mut left, half) = (answers.len(), answers.len() / 2);
    crash::point("acks-unsent");
    let deadline = Instant::now() + SEND_DEADLINE;
    let mut unsent = 0;
    for (reply, answer) in answers {
        if !plan.is_current(connection(client)) {
            break;
        }
        unsent += reply.len() + FRAME;
        let full = unsent >= UNSENT;
        let passes = async {
            let published = client.publish(reply, answer.payload()).await.is_ok();
            published && (!full || client.flush().await.is_ok())
        };
        if !matches!(tokio::time::timeout_at(deadline, passes).await, Ok(true)) {
            break;
        }
        left -= 1;
        unsent = if full { 0 } else { unsent };
        if left == half {
            crash::point("acks-half-sent");
        }
    }
    left
}

/// Runs a call to its end, and keeps the deliveries alive meanwhile.
async fn alive<T>(run: &mut Run, source: &Source, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    // The common case costs no timer.
    if let Some(done) = call.as_mut().now_or_never() {
        return done;
    }
    while let Some(round) = run.plan.next_round() {
        tokio::select! {
            biased;
            done = &mut call => return done,
            () = sleep_until(run.began + round) => run.keep_alive(source).await,
        }
    }
    call.await
}
