//! The durable pull consumer: its configuration, its mark and its position.

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::Config;
use serde::{Deserialize, Serialize};

use super::api::{Api, Empty, Failure, Retention, StreamInfo, code};
use super::denials::Denials;
use super::error::ConsumerError;
use super::observe::StreamObserver;
use super::position::{Info, Moved, Position};
use super::settings::{self, Expected, Warning};
use crate::observer::{ObserveError, Observer};
use crate::source::Source;

/// What the alternate names have at their ends, but for their number.
const SUFFIX: &str = "-rg";
/// How many names there are. Each power cut may damage the one in use for ever.
pub(crate) const NAMES: u8 = 10;
/// How often a consumer that was just made is made again if it stands where an old state file of its name left it.
const TRIES: u32 = 3;

/// The durable pull consumer of one source.
///
/// Knows no guard and no checkpoint; nothing is kept between two calls. Each request may take 5 seconds. None of the calls
/// that change something is cancel safe in the sense that dropping it undoes anything: call it again, they are all
/// idempotent, also after a crash half way.
#[derive(Clone, Debug)]
pub struct Consumer {
    api: Api,
    observer: StreamObserver,
    source: Source,
    name: String,
    /// Which of its names that is, from 0.
    number: u8,
    first: String,
}

/// One of the names that serve in turn.
fn alternate(first: &str, number: u8) -> String {
    match number {
        0 => first.to_owned(),
        1 => format!("{first}{SUFFIX}"),
        _ => format!("{first}{SUFFIX}{number}"),
    }
}

impl Consumer {
    /// The names under which a consumer of this name may be found: itself, `NAME-rg`, `NAME-rg2` and so on to `NAME-rg9`.
    pub fn names(name: &str) -> impl Iterator<Item = String> {
        (0..NAMES).map(move |number| alternate(name, number))
    }

    /// The consumer of this name; it need not exist. The context must be one of the source's domain.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::InvalidName`].
    pub fn new(context: Context, source: &Source, name: impl Into<String>) -> Result<Self, ConsumerError> {
        let name = name.into();
        for name in [source.stream(), &name] {
            let bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
            if name.is_empty() || name.contains(bad) {
                return Err(ConsumerError::InvalidName { name: name.to_owned() });
            }
        }
        let observer = StreamObserver::new(context.clone(), source);
        Ok(Self { api: Api::new(context), observer, source: source.clone(), first: name.clone(), name, number: 0 })
    }

    /// The consumer of a simulated server.
    #[cfg(test)]
    pub(crate) fn simulated(world: &crate::sim::World, source: &Source, name: &str) -> Self {
        let api = Api::simulated(world.clone());
        let observer = StreamObserver::over(api.clone(), source);
        Self { api, observer, source: source.clone(), first: name.to_owned(), name: name.to_owned(), number: 0 }
    }

    /// The same consumer, which knows what the server refused to its connection.
    #[must_use]
    pub fn with_denials(self, denials: Denials) -> Self {
        let observer = self.observer.with_denials(denials.clone());
        Self { api: self.api.with_denials(denials), observer, ..self }
    }

    /// The consumer under the next of its [`names`](Self::names); after the last comes the first. It serves where the server
    /// can neither create nor delete this one, or where deleting it first would lose messages.
    #[must_use]
    pub fn other(&self) -> Self {
        let number = (self.number + 1) % NAMES;
        Self { name: alternate(&self.first, number), number, ..self.clone() }
    }

    /// The same under all its other names, the next one first.
    pub(crate) fn others(&self) -> Vec<Self> {
        std::iter::successors(Some(self.other()), |one| Some(one.other())).take(usize::from(NAMES) - 1).collect()
    }

    /// Deletes it, if it exists and carries this mark. Says whether it did.
    ///
    /// # Errors
    ///
    /// As for [`find`](Self::find).
    pub async fn remove(&self, mark: &str) -> Result<bool, ConsumerError> {
        match self.find().await? {
            Some(position) if position.mark() == Some(mark) => self.delete().await.map(|()| true),
            _ => Ok(false),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The configuration for a consumer that nobody has configured: durable, the source's filters, explicit acks within
    /// 30 seconds, and this ack window (-1: unlimited).
    pub fn default_config(&self, max_ack_pending: i64) -> Config {
        settings::fresh(&self.name, &self.source, max_ack_pending)
    }

    /// Whether a consumer with this configuration can feed an archiver of this source, and how well.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::Refused`]: acks off, push, headers only, or another filter than the source's.
    pub fn check(&self, config: &Config, expected: Expected) -> Result<Vec<Warning>, ConsumerError> {
        settings::check(&self.name, config, &self.source, expected)
    }

    /// Asks the server about it; `None` where there is none. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::NoStream`], [`ConsumerError::Unavailable`].
    pub async fn find(&self) -> Result<Option<Position>, ConsumerError> {
        match self.api.request::<_, Info>(&self.subject("INFO"), &Empty {}).await {
            Ok(info) => info.position().map(Some),
            Err(failure) if failure.code() == Some(code::CONSUMER_NOT_FOUND) => Ok(None),
            Err(failure) => Err(self.error(failure)),
        }
    }

    /// Makes it where it is missing, marked, so that the first message of the source at or above `from` comes first. On a
    /// work-queue stream: the first message of the source.
    ///
    /// A server that lost a consumer's configuration and not its state lets the new one take over the old state; that is
    /// found and undone.
    ///
    /// # Errors
    ///
    /// Any but [`ConsumerError::Refused`]; [`ConsumerError::Rejected`] too where it exists with another configuration.
    pub async fn create(&self, config: &Config, from: u64, mark: &str) -> Result<Moved, ConsumerError> {
        let stream = self.stream().await?;
        self.make(config.clone(), from, mark, &stream).await
    }

    /// Sets the mark of an existing consumer and changes nothing else.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::Missing`] and whatever asking and changing it may meet.
    pub async fn mark(&self, mark: &str) -> Result<Position, ConsumerError> {
        let missing = || ConsumerError::Missing { consumer: self.name.clone() };
        let found = self.find().await?.ok_or_else(missing)?;
        self.ensure_mark(found, mark).await
    }

    /// Moves it, forward or back: the next delivery is the first message of the source at or above `sequence` (see
    /// [`Moved::to`] for the two exceptions). It is made where it is missing, from `config`; an existing one keeps its own
    /// configuration but for the deliver policy. Afterwards it carries the mark.
    ///
    /// Servers from 2.14 reset it. Where that is refused, and on older ones, it is deleted and made again, except on
    /// interest retention, where a deletion drops every un-acked message.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::Unsupported`] on interest retention without reset, and any but [`ConsumerError::Refused`].
    pub async fn move_to(&self, sequence: u64, config: &Config, mark: &str) -> Result<Moved, ConsumerError> {
        let stream = self.stream().await?;
        let Some(found) = self.find().await? else {
            return self.make(config.clone(), sequence, mark, &stream).await;
        };
        let to = start(sequence, &stream);
        if self.can_reset()
            && let Some(position) = self.reset(to).await?
        {
            let position = self.ensure_mark(position, mark).await?;
            return Ok(Moved { to, created: false, position });
        }
        self.may_delete(stream.config.retention)?;
        self.delete().await?;
        self.make(found.config, sequence, mark, &stream).await
    }

    /// Makes it and sees that it stands where it should.
    async fn make(&self, config: Config, from: u64, mark: &str, stream: &StreamInfo) -> Result<Moved, ConsumerError> {
        let retention = stream.config.retention;
        let to = start(from, stream);
        let config = settings::starting(settings::marked(config, mark), to, retention);
        let config = settings::named(config, &self.name, &self.source);
        let mut stood = 0;
        for _ in 0..TRIES {
            let position = self.put(&config, "create").await?;
            if self.stands_before(&position, to).await? {
                return Ok(Moved { to, created: true, position });
            }
            tracing::warn!(
                stream = self.source.stream(),
                consumer = self.name,
                delivered = position.delivered,
                wanted = to,
                "the new consumer took over the state of an old one of its name"
            );
            stood = position.delivered;
            if self.can_reset()
                && let Some(position) = self.reset(to).await?
            {
                return Ok(Moved { to, created: true, position });
            }
            self.may_delete(retention)?;
            // Now that it is loaded, deleting it deletes the old state too.
            self.delete().await?;
        }
        let reason = format!("consumer {} was made to start at {to} and stands at {stood}", self.name);
        Err(ConsumerError::Unavailable { reason })
    }

    /// Whether nothing was delivered yet and the first message of the source at or above a sequence is still to come.
    async fn stands_before(&self, position: &Position, to: u64) -> Result<bool, ConsumerError> {
        let Some(next) = position.delivered.checked_add(1) else { return Ok(false) };
        if position.deliveries != 0 || position.ack_pending != 0 || next < to {
            return Ok(false);
        }
        if next == to {
            return Ok(true);
        }
        // Above: right if the stream begins there, wrong if it is what an old consumer left.
        match self.observer.next(to).await.map_err(observed)? {
            Some(first) => Ok(next <= first.sequence()),
            None => Ok(position.delivered <= self.observer.stream().await.map_err(observed)?.last),
        }
    }

    /// Where this server has no reset, or refuses this one, or there is nothing to reset: `None`.
    async fn reset(&self, to: u64) -> Result<Option<Position>, ConsumerError> {
        match self.api.request::<_, Info>(&self.subject("RESET"), &Reset { seq: to }).await {
            Ok(info) => info.position().map(Some),
            Err(Failure::Refused { code: code::CONSUMER_INVALID_RESET | code::CONSUMER_NOT_FOUND, .. }) => Ok(None),
            Err(failure @ Failure::Unanswered(_)) => match self.find().await? {
                // A reset of a consumer that is not there is not answered at all.
                None => Ok(None),
                Some(_) => Err(self.error(failure)),
            },
            Err(failure) => Err(self.error(failure)),
        }
    }

    async fn delete(&self) -> Result<(), ConsumerError> {
        match self.api.request::<_, Deleted>(&self.subject("DELETE"), &Empty {}).await {
            Ok(Deleted { success: true }) => Ok(()),
            Ok(Deleted { success: false }) => {
                Err(ConsumerError::Unavailable { reason: format!("consumer {} was not deleted", self.name) })
            }
            Err(failure) if failure.code() == Some(code::CONSUMER_NOT_FOUND) => Ok(()),
            Err(failure) => Err(self.error(failure)),
        }
    }

    async fn ensure_mark(&self, position: Position, mark: &str) -> Result<Position, ConsumerError> {
        if position.mark() == Some(mark) {
            return Ok(position);
        }
        self.put(&settings::marked(position.config, mark), "update").await
    }

    /// Creates or updates it.
    async fn put(&self, config: &Config, action: &str) -> Result<Position, ConsumerError> {
        let mut subject = self.subject("CREATE");
        if !config.filter_subject.is_empty() {
            subject = format!("{subject}.{}", config.filter_subject);
        }
        let request = Put { stream_name: self.source.stream(), config, action };
        match self.api.request::<_, Info>(&subject, &request).await {
            Ok(info) => info.position(),
            Err(Failure::Refused { code: code::CONSUMER_CREATE, reason, .. }) => {
                Err(ConsumerError::Damaged { consumer: self.name.clone(), reason })
            }
            Err(failure) => Err(self.error(failure)),
        }
    }

    async fn stream(&self) -> Result<StreamInfo, ConsumerError> {
        self.api.stream_info(self.source.stream()).await.map_err(|failure| self.error(failure))
    }

    fn subject(&self, verb: &str) -> String {
        format!("CONSUMER.{verb}.{}.{}", self.source.stream(), self.name)
    }

    fn can_reset(&self) -> bool {
        self.api.server_is_at_least(2, 14)
    }

    fn may_delete(&self, retention: Retention) -> Result<(), ConsumerError> {
        if retention != Retention::Interest {
            return Ok(());
        }
        Err(ConsumerError::Unsupported {
            consumer: self.name.clone(),
            retention: "interest",
            version: self.api.server_version(),
            reason: "deleting the consumer would drop every message that is not acked; a server from 2.14 and a deliver \
                     policy that allows a reset are needed",
        })
    }

    fn error(&self, failure: Failure) -> ConsumerError {
        match failure {
            Failure::Refused { code: code::STREAM_NOT_FOUND, .. } => {
                ConsumerError::NoStream { stream: self.source.stream().to_owned() }
            }
            Failure::Refused { code: code::CONSUMER_NOT_FOUND, .. } => {
                ConsumerError::Missing { consumer: self.name.clone() }
            }
            Failure::Refused { code: code::CONSUMER_EXISTS | code::CONSUMER_NAME_EXIST, reason, .. } => {
                ConsumerError::Rejected { reason }
            }
            Failure::Refused { status: 500.., reason, .. } | Failure::Unanswered(reason) => {
                ConsumerError::Unavailable { reason }
            }
            Failure::Refused { reason, .. } => ConsumerError::Rejected { reason },
            Failure::Denied { subject, reason } => ConsumerError::Denied { subject, reason },
        }
    }
}

/// Never beyond the stream's last + 1: from 2.11 on the server would pass over what comes in between.
fn start(sequence: u64, stream: &StreamInfo) -> u64 {
    match stream.config.retention {
        // What is stored there was not acked: passed over it would stay for ever.
        Retention::WorkQueue => 1,
        Retention::Limits | Retention::Interest => sequence.clamp(1, stream.last().saturating_add(1)),
    }
}

fn observed(error: ObserveError) -> ConsumerError {
    match error {
        ObserveError::NoStream { stream } => ConsumerError::NoStream { stream },
        ObserveError::Denied { subject, reason } => ConsumerError::Denied { subject, reason },
        ObserveError::Unavailable { reason } => ConsumerError::Unavailable { reason },
    }
}

#[derive(Serialize)]
struct Put<'a> {
    stream_name: &'a str,
    config: &'a Config,
    action: &'a str,
}

#[derive(Serialize)]
struct Reset {
    seq: u64,
}

#[derive(Deserialize)]
struct Deleted {
    success: bool,
}
