//! One request to the server, with its answer told apart from no answer.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::response::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::denials::Denials;
use super::time::unix_nanos;
use crate::observer::StreamView;
use crate::source::Source;

/// How long one request may take. Far above what a loaded server needs (0.4 ms is usual), and short enough that a guard
/// which asks two or three times is not taken for dead.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// What the subjects of all requests about a source begin with.
pub(crate) fn api_prefix(source: &Source) -> String {
    source.domain().map_or_else(|| "$JS.API".to_owned(), |domain| format!("$JS.{domain}.API"))
}

/// Server error codes, as in the server's `errors.json`.
pub(crate) mod code {
    pub(crate) const CONSUMER_CREATE: u64 = 10_012;
    pub(crate) const CONSUMER_NAME_EXIST: u64 = 10_013;
    pub(crate) const CONSUMER_NOT_FOUND: u64 = 10_014;
    pub(crate) const NO_MESSAGE: u64 = 10_037;
    pub(crate) const STREAM_NOT_FOUND: u64 = 10_059;
    pub(crate) const CONSUMER_EXISTS: u64 = 10_148;
    pub(crate) const CONSUMER_INVALID_RESET: u64 = 10_204;
}

/// Why a request brought no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered: no.
    Refused {
        /// As in HTTP: 4xx for what will not do, 5xx for what may do later.
        status: usize,
        /// One of [`code`].
        code: u64,
        /// In the server's words.
        reason: String,
    },
    /// The user has no permission to ask.
    Denied {
        /// The API subject, without its prefix.
        subject: String,
        /// In the server's words.
        reason: String,
    },
    /// No answer, or none that can be read.
    Unanswered(String),
}

impl Failure {
    pub(crate) const fn code(&self) -> Option<u64> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Denied { .. } | Self::Unanswered(_) => None,
        }
    }
}

/// An empty JSON object.
#[derive(Serialize)]
pub(crate) struct Empty {}

/// The `JetStream` API of one server, through one connection.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    link: Link,
    denials: Denials,
}

/// The way to the server.
#[cfg_attr(test, allow(clippy::large_enum_variant, reason = "the other variant is only there in tests"))]
#[derive(Clone, Debug)]
enum Link {
    Client(Context),
    #[cfg(test)]
    Sim(crate::sim::World),
}

impl Api {
    pub(crate) fn new(mut context: Context) -> Self {
        context.set_timeout(REQUEST_DEADLINE);
        Self { link: Link::Client(context), denials: Denials::default() }
    }

    /// The simulated server takes the place of the real one.
    #[cfg(test)]
    pub(crate) fn simulated(world: crate::sim::World) -> Self {
        Self { link: Link::Sim(world), denials: Denials::default() }
    }

    pub(crate) fn with_denials(self, denials: Denials) -> Self {
        Self { denials, ..self }
    }

    /// Cancel safe: the answer is lost, a request that was sent is carried out all the same.
    pub(crate) async fn request<T, V>(&self, subject: &str, payload: &T) -> Result<V, Failure>
    where
        T: Serialize + Sync,
        V: DeserializeOwned,
    {
        let denials = self.denials.count();
        match self.link.ask(subject, payload).await {
            Ok(Response::Ok(value)) => Ok(value),
            Ok(Response::Err { error }) => Err(Failure::Refused {
                status: error.code(),
                code: error.error_code().0,
                reason: format!("{subject}: {error}"),
            }),
            Err(why) => Err(self.unanswered(denials, subject, format!("{subject}: {why}"))),
        }
    }

    fn unanswered(&self, denials: u64, subject: &str, reason: String) -> Failure {
        match self.denials.since(denials, subject) {
            Some(reason) => Failure::Denied { subject: subject.to_owned(), reason },
            None => Failure::Unanswered(reason),
        }
    }

    /// Stream info, asked afresh.
    pub(crate) async fn stream_info(&self, stream: &str) -> Result<StreamInfo, Failure> {
        self.request(&format!("STREAM.INFO.{stream}"), &Empty {}).await
    }

    /// The version the connected server gives, for messages.
    pub(crate) fn server_version(&self) -> String {
        match &self.link {
            Link::Client(context) => context.client().server_info().version,
            #[cfg(test)]
            Link::Sim(world) => world.version(),
        }
    }

    /// Whether the connected server is of this version or newer.
    pub(crate) fn server_is_at_least(&self, major: u64, minor: u64) -> bool {
        let version = self.server_version();
        let mut parts = version.split('.').map_while(|part| part.parse::<u64>().ok());
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
    }
}

impl Link {
    async fn ask<T, V>(&self, subject: &str, payload: &T) -> Result<Response<V>, String>
    where
        T: Serialize + Sync,
        V: DeserializeOwned,
    {
        let context = match self {
            Self::Client(context) => context,
            #[cfg(test)]
            Self::Sim(world) => return world.answer(subject, payload).await,
        };
        // The client's own limit does not cover the queue to a connection that is down.
        match tokio::time::timeout(REQUEST_DEADLINE, context.request(subject.to_owned(), payload)).await {
            Ok(answered) => answered.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {REQUEST_DEADLINE:?}")),
        }
    }
}

/// What is needed of `STREAM.INFO`.
#[derive(serde::Deserialize)]
pub(crate) struct StreamInfo {
    pub(crate) config: StreamConfig,
    created: String,
    state: StreamState,
}

#[derive(serde::Deserialize)]
pub(crate) struct StreamConfig {
    #[serde(default)]
    pub(crate) retention: Retention,
}

/// When a stream lets go of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Retention {
    #[default]
    Limits,
    Interest,
    WorkQueue,
}

#[derive(serde::Deserialize)]
struct StreamState {
    first_seq: u64,
    last_seq: u64,
    #[serde(default)]
    last_ts: String,
}

impl StreamInfo {
    /// As an observer tells it. A creation time that cannot be read is an error: it is compared for equality.
    pub(crate) fn view(&self) -> Result<StreamView, String> {
        let created =
            unix_nanos(&self.created).ok_or_else(|| format!("the stream's creation time is {:?}", self.created))?;
        let last_published = unix_nanos(&self.state.last_ts).unwrap_or(0);
        let removed = self.config.retention != Retention::Limits;
        let view = StreamView::new(created, self.state.first_seq, self.state.last_seq, last_published);
        Ok(view.with_acked_removed(removed))
    }

    pub(crate) const fn last(&self) -> u64 {
        self.state.last_seq
    }
}
