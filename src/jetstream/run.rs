//! One guard's life in a driver: session after session, until the wish to stop or a failure.

use std::future::Future;
use std::time::Duration;

use async_nats::Message;
use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};
use std::sync::atomic::Ordering;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep, sleep_until, timeout};

use super::ack::{Answer, Delivery, detached};
use super::driver::{Driver, DriverError, SECOND_LOOK, Stop};
use super::pace::{Backoff, Limits, Pace};
use super::position::Position;
use super::pull::{Batch, Pull};
use super::session::{Chain, SessionEnd, Window};
use super::settings;
use crate::error::GuardError;
use crate::events;
use crate::guard::{ConsumerPosition, Offer, Permits, Placement};
use crate::record::Record;
use crate::sink::{Reason, Sink};

/// How often the newest witness is read back and the consumer's position is compared with the floor.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// How often the connection is looked at; costs no request.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// How long sending acks may take when the connection does not take them.
const SEND_DEADLINE: Duration = Duration::from_secs(2);
/// The most messages one pull asks for.
const BATCH: u64 = 10_000;
/// The least bytes one pull asks for, so that a small flush size does not make every message one pull.
const BATCH_BYTES: u64 = 1024 * 1024;

/// What a session needs.
struct Session {
    pull: Pull,
    chain: Chain,
    window: Window,
    pace: Pace,
    /// The connection it began on.
    connects: u64,
    ack_all: bool,
    ack_deadline: Duration,
    began: Instant,
    remaining: u64,
}

/// Why a session's loop was left.
enum Left {
    /// The next session is to begin.
    Ended(SessionEnd),
    /// The consumer is to be moved first.
    Move(u64),
    /// The wish to stop came, and everything that could be flushed was.
    Stopped { unverified: usize },
}

/// How a session start went.
enum Began {
    Session(Box<Session>),
    Again,
    Move(u64),
}

impl<S: Sink + 'static> Driver<S> {
    /// Runs sessions until the wish to stop. Returns how many records are left with the sink without a checkpoint.
    pub(super) async fn serve<F: Future<Output = ()>>(&mut self, stop: &mut Stop<F>) -> Result<usize, DriverError> {
        let mut backoff = Backoff::new();
        loop {
            if stop.came() {
                return Ok(self.guard.pending());
            }
            if let Some(to) = self.guard.move_pending()
                && !self.move_consumer(to, stop).await?
            {
                continue;
            }
            while self.context.client().connection_state() != State::Connected && !stop.came() {
                tokio::select! {
                    () = stop.wait() => {}
                    () = sleep(WATCH_EVERY) => {}
                }
            }
            let began = tokio::select! {
                () = stop.wait() => return Ok(self.guard.pending()),
                began = self.begin() => began,
            };
            let left = match began {
                Ok(Began::Session(session)) => {
                    backoff.reset();
                    self.session(*session, stop).await?
                }
                Ok(Began::Move(to)) => Left::Move(to),
                Ok(Began::Again) => {
                    self.pause(&mut backoff, "session", "the stream could not be asked", stop).await;
                    continue;
                }
                Err(DriverError::Consumer(error)) if error.is_retriable() => {
                    self.pause(&mut backoff, "session", &error.to_string(), stop).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match left {
                Left::Stopped { unverified } => return Ok(unverified),
                Left::Ended(end) => {
                    events::session_ended(&self.source, &end.to_string());
                    // A server that ends every session at once must not be asked in a tight loop.
                    if matches!(end, SessionEnd::Server(_)) {
                        self.pause(&mut backoff, "session", &end.to_string(), stop).await;
                    }
                }
                Left::Move(to) => _ = self.move_consumer(to, stop).await?,
            }
        }
    }

    async fn pause<F: Future<Output = ()>>(
        &mut self,
        backoff: &mut Backoff,
        what: &str,
        why: &str,
        stop: &mut Stop<F>,
    ) {
        let wait = backoff.wait();
        events::retry(&self.source, what, why, wait);
        tokio::select! {
            () = stop.wait() => {}
            () = sleep(wait) => {}
        }
    }

    /// Moves the consumer, trying until it is done. False if the wish to stop came first.
    async fn move_consumer<F: Future<Output = ()>>(
        &mut self,
        to: u64,
        stop: &mut Stop<F>,
    ) -> Result<bool, DriverError> {
        let mark = self.guard.state_id().to_string();
        let mut backoff = Backoff::new();
        loop {
            let moved = tokio::select! {
                () = stop.wait() => return Ok(false),
                moved = self.consumer.move_to(to, &self.config, &mark) => moved,
            };
            match moved {
                Ok(moved) => {
                    events::consumer_moved(&self.source, self.consumer.name(), moved.to);
                    self.config = moved.position.config;
                    self.guard.moved();
                    return Ok(true);
                }
                Err(error) if error.is_retriable() => {
                    self.pause(&mut backoff, "move", &error.to_string(), stop).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn connects(&self) -> u64 {
        self.context.client().statistics().connects.load(Ordering::Relaxed)
    }

    fn connected(&self, connects: u64) -> bool {
        is_current(&self.context.client(), connects)
    }

    /// Begins a session: the guard verifies, the consumer is made where it is missing and looked at.
    async fn begin(&mut self) -> Result<Began, DriverError> {
        let client = self.context.client();
        let connects = self.connects();
        let permits = self.guard.begin_session().await?;
        if let Some(to) = permits.move_to() {
            return Ok(Began::Move(to));
        }
        if permits.unknown().is_some() {
            return Ok(Began::Again);
        }
        let mark = self.guard.state_id().to_string();
        let (position, start) = match self.consumer.find().await? {
            Some(position) if position.mark() != Some(mark.as_str()) => (self.consumer.mark(&mark).await?, None),
            Some(position) => (position, None),
            None => {
                let from = self.guard.floor().saturating_add(1);
                let made = self.consumer.create(&self.config, from, &mark).await?;
                events::consumer_made(&self.source, self.consumer.name(), made.to);
                (made.position, Some(made.to.saturating_sub(1)))
            }
        };
        // A consumer that never delivered anything begins where it says it stands.
        let fresh = position.deliveries == 0 && position.ack_pending == 0;
        let start = start.or_else(|| fresh.then_some(position.delivered));
        match self.look(&position).await? {
            Look::Fine => {}
            Look::Again => return Ok(Began::Again),
            Look::Move(to) => return Ok(Began::Move(to)),
            Look::PassedOver(sequence) => {
                sleep(SECOND_LOOK).await;
                let Some(position) = self.consumer.find().await? else { return Ok(Began::Again) };
                match self.look(&position).await? {
                    Look::PassedOver(again) if again == sequence => {
                        events::passed_over(&self.source, self.consumer.name(), sequence);
                        return Ok(Began::Move(sequence));
                    }
                    Look::Move(to) => return Ok(Began::Move(to)),
                    Look::Fine => {}
                    Look::Again | Look::PassedOver(_) => return Ok(Began::Again),
                }
            }
        }
        self.config = position.config;
        let config = &self.config;
        let window = u64::try_from(config.max_ack_pending).ok().filter(|window| *window > 0);
        let limits = Limits { count: self.flush.count, bytes: self.flush.bytes, age: self.flush.age, window };
        let batch = Batch {
            messages: usize::try_from(self.flush.count.clamp(1, BATCH)).unwrap_or(1),
            bytes: usize::try_from(self.flush.bytes.max(BATCH_BYTES)).unwrap_or(usize::MAX),
        };
        let dense = !matches!(config.deliver_policy, DeliverPolicy::LastPerSubject);
        let prefix = api_prefix(self.source.domain());
        let pull = Pull::new(client, &prefix, self.source.stream(), self.consumer.name(), batch).await;
        let Ok(pull) = pull else { return Ok(Began::Again) };
        self.publish(position.pending, 1);
        events::session_began(&self.source, self.consumer.name(), self.guard.floor());
        Ok(Began::Session(Box::new(Session {
            pull,
            chain: Chain::new(dense, start),
            window: Window::default(),
            pace: Pace::new(limits),
            connects,
            ack_all: matches!(config.ack_policy, AckPolicy::All),
            ack_deadline: settings::ack_deadline(config),
            began: Instant::now(),
            remaining: position.pending,
        })))
    }

    /// Compares the consumer's position with what is archived.
    async fn look(&mut self, position: &Position) -> Result<Look, DriverError> {
        // With nothing pending the server will not deliver at or below its position again, whatever floor it shows.
        let place = ConsumerPosition::new(position.delivered, position.stands_at());
        Ok(match self.guard.check(place).await? {
            Placement::Stands => Look::Fine,
            Placement::PassedOver(sequence) => Look::PassedOver(sequence),
            Placement::Beyond { to } => Look::Move(to),
            Placement::Fork(permits) => permits.move_to().map_or(Look::Again, Look::Move),
            Placement::Unknown(_) => Look::Again,
        })
    }

    /// One session's loop.
    async fn session<F: Future<Output = ()>>(
        &mut self,
        mut session: Session,
        stop: &mut Stop<F>,
    ) -> Result<Left, DriverError> {
        let half = (session.ack_deadline / 2).max(Duration::from_millis(10));
        // Twice within an ack deadline, and once more for the way to the server.
        let mut keep_alive = interval_at(Instant::now() + half / 2, half / 2);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut check = interval_at(Instant::now() + CHECK_EVERY, CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A lost connection is silent: the subscription is kept, and what was asked for never comes.
        let mut watch = interval(WATCH_EVERY);
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut retry = Backoff::new();
        let mut blocked: Option<Instant> = None;
        let mut suspect = None;
        loop {
            let due = session.pace.due(session.window.len() as u64, session.began.elapsed());
            if blocked.is_none()
                && let Some(reason) = due
            {
                match self.flush(&mut session, reason).await? {
                    Flushed::Permitted => retry.reset(),
                    Flushed::Move(to) => return Ok(Left::Move(to)),
                    Flushed::Unknown => blocked = Some(Instant::now() + retry.wait()),
                }
                if !self.connected(session.connects) {
                    return Ok(Left::Ended(SessionEnd::Reconnected));
                }
                continue;
            }
            let deadline = blocked.or_else(|| session.pace.deadline().map(|age| session.began + age));
            tokio::select! {
                biased;
                () = stop.wait() => return self.wind_up(&mut session).await,
                _ = keep_alive.tick() => progress(&self.context.client(), &mut session).await,
                _ = watch.tick() => {
                    if !self.connected(session.connects) {
                        return Ok(Left::Ended(SessionEnd::Reconnected));
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(|| session.began + CHECK_EVERY)), if deadline.is_some() => {
                    blocked = None;
                }
                _ = check.tick() => {
                    let position = match self.consumer.find().await {
                        Ok(Some(position)) => position,
                        Ok(None) => return Ok(Left::Ended(SessionEnd::Server("the consumer is gone".to_owned()))),
                        Err(error) if error.is_retriable() => continue,
                        Err(error) => return Err(error.into()),
                    };
                    let seen = suspect.take();
                    match self.look(&position).await? {
                        Look::Fine | Look::Again => {}
                        Look::Move(to) => return Ok(Left::Move(to)),
                        Look::PassedOver(sequence) if seen == Some(sequence) => {
                            events::passed_over(&self.source, self.consumer.name(), sequence);
                            return Ok(Left::Move(sequence));
                        }
                        Look::PassedOver(sequence) => {
                            suspect = Some(sequence);
                            check.reset_after(SECOND_LOOK);
                        }
                    }
                }
                message = session.pull.next(), if blocked.is_none() => {
                    // Read after the message was taken: what was buffered before a reconnect is thrown away with it.
                    if !self.connected(session.connects) {
                        return Ok(Left::Ended(SessionEnd::Reconnected));
                    }
                    let message = match message {
                        Ok(message) => message,
                        Err(end) => return Ok(Left::Ended(end)),
                    };
                    if let Err(end) = self.take(&mut session, message).await? {
                        return Ok(Left::Ended(end));
                    }
                }
            }
        }
    }

    /// Offers one message.
    async fn take(&mut self, session: &mut Session, message: Message) -> Result<Result<(), SessionEnd>, DriverError> {
        let Some(reply) = &message.reply else {
            return Ok(Err(SessionEnd::Server("a message without a reply subject came".to_owned())));
        };
        let Some(delivery) = Delivery::parse(reply) else {
            return Ok(Err(SessionEnd::Server(format!("{reply} is no ack subject"))));
        };
        let follows = match session.chain.take(&delivery) {
            Ok(follows) => follows,
            Err(end) => return Ok(Err(end)),
        };
        if let Err(end) = session.window.add(delivery.id, detached(reply)) {
            return Ok(Err(end));
        }
        session.remaining = delivery.remaining;
        let bytes = message.payload.len() as u64;
        let record = Record::new(delivery.id.sequence, delivery.id.published, message.subject, message.payload)
            .with_headers(message.headers.unwrap_or_default());
        let offered = alive(&self.source, self.guard.offer(record, follows), session, &self.context).await;
        let full = match offered {
            Ok(offer) => offer == Offer::Full,
            Err(error) => return Err(error.into()),
        };
        session.pace.offered(bytes, full, session.began.elapsed());
        Ok(Ok(()))
    }

    async fn flush(&mut self, session: &mut Session, reason: Reason) -> Result<Flushed, DriverError> {
        let permits = alive(&self.source, self.guard.flush(reason), session, &self.context).await?;
        if let Some(to) = permits.move_to() {
            return Ok(Flushed::Move(to));
        }
        if permits.unknown().is_some() {
            return Ok(Flushed::Unknown);
        }
        session.pace.flushed();
        self.ack(session, &permits).await;
        self.publish(session.remaining, 0);
        Ok(Flushed::Permitted)
    }

    /// Sends what is permitted, while this is still the connection the deliveries came on. What is not sent is delivered
    /// again and skipped: an ack that waits for a reconnect would reach whatever message has its sequence then.
    async fn ack(&mut self, session: &mut Session, permits: &Permits) {
        let client = self.context.client();
        let answers = session.window.answers(permits, session.ack_all);
        let (count, connects) = (answers.len(), session.connects);
        let send = async {
            for (sent, (reply, answer)) in answers.into_iter().enumerate() {
                if !is_current(&client, connects) || client.publish(reply, answer.payload()).await.is_err() {
                    return sent;
                }
            }
            count
        };
        let done = timeout(SEND_DEADLINE, send).await.unwrap_or(0);
        if done < count {
            events::acks_dropped(&self.source, count - done);
        }
    }

    /// The wish to stop came: flushes what there is, acks, and waits until the server has the acks.
    async fn wind_up(&mut self, session: &mut Session) -> Result<Left, DriverError> {
        let permits = alive(&self.source, self.guard.flush(Reason::Everything), session, &self.context).await?;
        let unverified = self.guard.pending();
        if permits.unknown().is_none() && permits.move_to().is_none() {
            self.ack(session, &permits).await;
            if self.connected(session.connects) && timeout(SEND_DEADLINE, self.context.client().flush()).await.is_err()
            {
                events::acks_dropped(&self.source, permits.acks().len());
            }
        }
        Ok(Left::Stopped { unverified })
    }
}

/// How a consumer stands.
enum Look {
    Fine,
    Again,
    Move(u64),
    PassedOver(u64),
}

/// What came of a flush.
enum Flushed {
    Permitted,
    Move(u64),
    Unknown,
}

/// Whether this is still the connection with this count, and up.
fn is_current(client: &async_nats::Client, connects: u64) -> bool {
    client.connection_state() == State::Connected && client.statistics().connects.load(Ordering::Relaxed) == connects
}

fn api_prefix(domain: Option<&str>) -> String {
    domain.map_or_else(|| "$JS.API".to_owned(), |domain| format!("$JS.{domain}.API"))
}

/// Sends in-progress acks for what has waited long.
async fn progress(client: &async_nats::Client, session: &mut Session) {
    if !is_current(client, session.connects) {
        return;
    }
    for reply in session.window.overdue() {
        // An in-progress ack that is not sent only lets the message come again.
        if !matches!(timeout(SEND_DEADLINE, client.publish(reply, Answer::Progress.payload())).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Runs a call of the guard to its end, and keeps the deliveries alive meanwhile.
async fn alive<T>(
    source: &crate::source::Source,
    call: impl Future<Output = Result<T, GuardError>>,
    session: &mut Session,
    context: &async_nats::jetstream::Context,
) -> Result<T, GuardError> {
    let every = (session.ack_deadline / 4).max(Duration::from_millis(10));
    let mut call = std::pin::pin!(call);
    // The common case costs no timer.
    if let Some(done) = futures_util::FutureExt::now_or_never(call.as_mut()) {
        return done;
    }
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let client = context.client();
    loop {
        tokio::select! {
            biased;
            done = &mut call => return done,
            _ = ticks.tick() => {
                tracing::debug!(%source, waiting = session.window.len(), "keeping deliveries alive");
                progress(&client, session).await;
            }
        }
    }
}
