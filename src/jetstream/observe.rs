//! Asking a stream's leader over a client connection.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::RawMessage;
use futures_util::future::{BoxFuture, try_join_all};

use super::api::{Api, Failure, code};
use super::denials::Denials;
use super::time::unix_nanos;
use crate::observer::{ObserveError, Observer, Reading, StreamView};
use crate::record::RecordId;
use crate::source::Source;
use crate::witness::Witness;

/// How long a sequence must stay beyond the stream's end to be [`Reading::Above`].
const ABOVE_AGAIN: Duration = Duration::from_secs(1);
/// How many filters are asked at once.
const FILTERS_AT_ONCE: usize = 16;

/// An [`Observer`] that asks the stream's leader.
///
/// It uses `STREAM.INFO` and `STREAM.MSG.GET` only, never a direct get, and keeps nothing between two calls, so one
/// observer serves over any number of reconnects. Several calls may run at once; all are cancel safe.
///
/// One request may take 5 seconds; without an answer by then the call fails with [`ObserveError::Unavailable`]. So does one
/// the user has **no permission** for, unless the observer is told by [`with_denials`](Self::with_denials): then it is
/// [`ObserveError::Denied`].
///
/// ```no_run
/// use replay_guard::{Observer, Source, async_nats, jetstream::StreamObserver};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = async_nats::connect("nats://localhost").await?;
/// let source = Source::new("ORDERS").with_filters(["orders.new"]);
/// let observer = StreamObserver::new(async_nats::jetstream::new(client), &source);
/// println!("the first order that is still there: {:?}", observer.next(1).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StreamObserver {
    api: Api,
    stream: String,
    /// Never empty.
    filters: Vec<String>,
}

impl StreamObserver {
    /// An observer of this source. The context must be one of the source's domain; its request time-out is not used.
    pub fn new(context: Context, source: &Source) -> Self {
        Self::over(Api::new(context), source)
    }

    pub(crate) fn over(api: Api, source: &Source) -> Self {
        let filters = match source.filters() {
            [] => vec![">".to_owned()],
            filters => filters.to_vec(),
        };
        Self { api, stream: source.stream().to_owned(), filters }
    }

    /// The same observer, which knows what the server refused to its connection.
    #[must_use]
    pub fn with_denials(self, denials: Denials) -> Self {
        Self { api: self.api.with_denials(denials), ..self }
    }

    async fn view(&self) -> Result<StreamView, ObserveError> {
        let info = self.api.stream_info(&self.stream).await.map_err(|failure| self.error(failure))?;
        info.view().map_err(|reason| ObserveError::Unavailable { reason })
    }

    async fn get(&self, seq: u64, next_by_subj: Option<&str>) -> Result<Option<Witness>, ObserveError> {
        let subject = format!("STREAM.MSG.GET.{}", self.stream);
        match self.api.request::<_, Got>(&subject, &Get { seq, next_by_subj }).await {
            Ok(got) => {
                let witness = got.message.witness().map_err(|reason| ObserveError::Unavailable { reason })?;
                let fits = if next_by_subj.is_some() { witness.sequence() >= seq } else { witness.sequence() == seq };
                if fits {
                    return Ok(Some(witness));
                }
                let reason = format!("asked for sequence {seq} and was given {}", witness.sequence());
                Err(ObserveError::Unavailable { reason })
            }
            Err(failure) if failure.code() == Some(code::NO_MESSAGE) => Ok(None),
            Err(failure) => Err(self.error(failure)),
        }
    }

    /// What stands at a sequence.
    ///
    /// A message that is not found has gone only if the stream's last was at or above it **before** it was looked for:
    /// in the moment between a "not found" and a stream info a new message may take the sequence.
    async fn reading(&self, sequence: u64) -> Result<Reading, ObserveError> {
        if sequence == 0 {
            // No message ever has it, and the server takes it for a malformed request.
            return Ok(Reading::Gone);
        }
        if let Some(witness) = self.get(sequence, None).await? {
            return Ok(Reading::Message(witness));
        }
        if sequence > self.view().await?.last {
            tokio::time::sleep(ABOVE_AGAIN).await;
            if sequence > self.view().await?.last {
                return Ok(Reading::Above);
            }
        }
        Ok(self.get(sequence, None).await?.map_or(Reading::Gone, Reading::Message))
    }

    async fn first_of_source(&self, sequence: u64) -> Result<Option<Witness>, ObserveError> {
        if let [filter] = self.filters.as_slice() {
            return self.get(sequence.max(1), Some(filter)).await;
        }
        let mut first = None;
        for filters in self.filters.chunks(FILTERS_AT_ONCE) {
            let found = try_join_all(filters.iter().map(|filter| self.get(sequence.max(1), Some(filter)))).await?;
            first = found.into_iter().flatten().chain(first).min_by_key(Witness::sequence);
        }
        Ok(first)
    }

    fn error(&self, failure: Failure) -> ObserveError {
        match failure {
            Failure::Refused { code: code::STREAM_NOT_FOUND, .. } => {
                ObserveError::NoStream { stream: self.stream.clone() }
            }
            Failure::Denied { subject, reason } => ObserveError::Denied { subject, reason },
            Failure::Refused { reason, .. } | Failure::Unanswered(reason) => ObserveError::Unavailable { reason },
        }
    }
}

impl Observer for StreamObserver {
    fn stream(&self) -> BoxFuture<'_, Result<StreamView, ObserveError>> {
        Box::pin(self.view())
    }

    fn read(&self, sequence: u64) -> BoxFuture<'_, Result<Reading, ObserveError>> {
        Box::pin(self.reading(sequence))
    }

    fn next(&self, sequence: u64) -> BoxFuture<'_, Result<Option<Witness>, ObserveError>> {
        Box::pin(self.first_of_source(sequence))
    }
}

#[derive(serde::Serialize)]
struct Get<'a> {
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_by_subj: Option<&'a str>,
}

#[derive(serde::Deserialize)]
struct Got {
    message: Stored,
}

/// A message as it is stored. Its headers are left out: they are no part of a witness, and ones that cannot be parsed
/// must not keep a message from being verified.
#[derive(serde::Deserialize)]
struct Stored {
    subject: String,
    seq: u64,
    #[serde(default)]
    data: String,
    time: String,
}

impl Stored {
    fn witness(self) -> Result<Witness, String> {
        let published =
            unix_nanos(&self.time).ok_or_else(|| format!("message {} was published {:?}", self.seq, self.time))?;
        // The client's decoder of base64 comes with a whole message only.
        let raw = RawMessage {
            subject: self.subject,
            sequence: self.seq,
            payload: self.data,
            headers: None,
            time: async_nats::datetime::now(),
        };
        let message = StreamMessage::try_from(raw).map_err(|error| format!("message {}: {error}", self.seq))?;
        Ok(Witness::new(RecordId::new(self.seq, published), &message.subject, &message.payload))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn stored(json: &str) -> Result<Witness, String> {
        serde_json::from_str::<Got>(json).unwrap().message.witness()
    }

    #[test]
    fn a_message_without_payload_or_with_headers_nobody_can_parse_has_a_witness() {
        let id = RecordId::new(3, 1_700_000_000_123_456_789);
        let witness = stored(
            r#"{"type":"x","message":{"subject":"a.b","seq":3,"hdrs":"/w==","time":"2023-11-14T22:13:20.123456789Z"}}"#,
        );
        assert_eq!(witness.unwrap(), Witness::new(id, "a.b", b""));
        let witness = stored(
            r#"{"message":{"subject":"a.b","seq":3,"data":"aGVsbG8=","time":"2023-11-14T22:13:20.123456789Z"}}"#,
        );
        assert_eq!(witness.unwrap(), Witness::new(id, "a.b", b"hello"));
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        assert!(stored(r#"{"message":{"subject":"a","seq":3,"data":"???","time":"2023-11-14T22:13:20Z"}}"#).is_err());
        assert!(stored(r#"{"message":{"subject":"a","seq":3,"time":"yesterday"}}"#).is_err());
    }
}
