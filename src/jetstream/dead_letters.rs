//! A dead-letter hook that publishes to a stream.

use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use async_nats::jetstream::Context;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Subject, jetstream};

use crate::dead_letter::{DeadLetter, DeadLetters};

/// The longest reason that is published, in bytes: headers count towards the size that a server takes.
const REASON_LENGTH: usize = 1_024;
/// What the server may act upon, whatever its letter case.
const SERVERS: &str = "nats-";
const OURS: &str = "replay-guard-";
/// The header by which a stream knows a message again.
const ID: &str = "Nats-Msg-Id";

/// Publishes rejected records to a subject, which a stream must keep.
///
/// Subject, payload and headers: the payload is the record's, and so are the headers, repeated names included, but for those
/// with `Nats-` in their names, which the server would act upon: a `Nats-Msg-Id` might be taken for a duplicate of another
/// message, a `Nats-Expected-*` might be refused, a `Nats-Rollup` remove the letters before. They are kept under
/// [`ORIGINAL`](Self::ORIGINAL) and the name in lower case, and so is everything that begins with `Replay-Guard-`. In lower
/// case, since nats-server 2.10.26 does not find a `Nats-Msg-Id` that comes after another mention of it; one in a value of the
/// record's own headers may make it keep a letter twice. To these come
///
/// | header | what |
/// |---|---|
/// | `Replay-Guard-Reason` | why the sink rejected it; one line, at most 1,024 bytes |
/// | `Replay-Guard-Stream` | the stream it was in |
/// | `Replay-Guard-Sequence` | its sequence there |
/// | `Replay-Guard-Published` | when it was published there, Unix nanoseconds |
/// | `Replay-Guard-Subject` | the subject it was published to |
/// | `Nats-Msg-Id` | made of source, sequence and publish time, so that the stream drops what comes twice within its duplicate window |
///
/// A record counts as taken when the stream has acknowledged it; how durable that is, its replicas and the server's
/// `sync_interval` say. A subject that no stream keeps is an error, and so is one that belongs to the source itself, where
/// every letter would come back. The stream must take messages somewhat larger than the largest record: the new headers
/// need up to 2 KiB.
///
/// ```no_run
/// use replay_guard::{DeadLetterSubject, Driver, async_nats};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let jetstream = async_nats::jetstream::new(async_nats::connect("localhost").await?);
/// let builder = Driver::builder(jetstream.clone(), "ORDERS")
///     .dead_letters(DeadLetterSubject::new(jetstream, "dead.orders"));
/// # let _ = builder;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DeadLetterSubject {
    context: Context,
    subject: Subject,
    /// The source itself keeps the subject: nothing more is published.
    loops: AtomicBool,
}

/// Why a rejected record was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadLetterError {
    /// It was not published, or not acknowledged.
    #[error("the record was not published to {subject}")]
    Publish {
        /// Where to.
        subject: Subject,
        /// Why.
        source: PublishError,
    },
    /// The subject belongs to the source, so that every dead letter would be delivered again.
    #[error("{subject} belongs to {source_name} itself: every dead letter would come back")]
    Loop {
        /// Where to.
        subject: Subject,
        /// The source.
        source_name: String,
    },
    /// A header of the record cannot be published.
    #[error("the header {name} cannot be published")]
    Header {
        /// Its name.
        name: String,
    },
}

impl DeadLetterSubject {
    /// The header with the reason.
    pub const REASON: &str = "Replay-Guard-Reason";
    /// The header with the stream's name.
    pub const STREAM: &str = "Replay-Guard-Stream";
    /// The header with the stream sequence.
    pub const SEQUENCE: &str = "Replay-Guard-Sequence";
    /// The header with the publish time, Unix nanoseconds.
    pub const PUBLISHED: &str = "Replay-Guard-Published";
    /// The header with the subject.
    pub const SUBJECT: &str = "Replay-Guard-Subject";
    /// What is put before the names of headers that must not keep theirs.
    pub const ORIGINAL: &str = "Replay-Guard-Original-";

    /// Publishes to this subject, in the context's account and domain.
    pub fn new(context: Context, subject: impl Into<Subject>) -> Self {
        Self { context, subject: subject.into(), loops: AtomicBool::new(false) }
    }

    async fn publish(&self, message: PublishMessage) -> Result<jetstream::publish::PublishAck, PublishError> {
        self.context.send_publish(self.subject.clone(), message).await?.await
    }
}

impl DeadLetters for DeadLetterSubject {
    type Error = DeadLetterError;

    async fn take(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        let subject = || self.subject.clone();
        let looped = || DeadLetterError::Loop { subject: subject(), source_name: letter.source.to_string() };
        if self.loops.load(Ordering::Relaxed) {
            return Err(looped());
        }
        let message = PublishMessage::build()
            .headers(headers(&letter)?)
            .message_id(message_id(&letter))
            .payload(letter.record.payload.clone());
        let ack =
            self.publish(message).await.map_err(|source| DeadLetterError::Publish { subject: subject(), source })?;
        let elsewhere = letter.source.domain().is_some_and(|domain| !ack.domain.is_empty() && ack.domain != domain);
        if ack.stream == letter.source.stream() && !elsewhere && letter.source.matches(&self.subject) {
            self.loops.store(true, Ordering::Relaxed);
            return Err(looped());
        }
        Ok(())
    }
}

/// What makes a letter the same one when it is published again. Never the record's own id: that of a message in another
/// stream may be equal.
fn message_id(letter: &DeadLetter) -> String {
    let source = crc32fast::hash(letter.source.to_string().as_bytes());
    let id = letter.record.id();
    format!("{}-{source:08x}-{}-{}", letter.source.stream(), id.sequence, id.published)
}

fn headers(letter: &DeadLetter) -> Result<HeaderMap, DeadLetterError> {
    let mut headers = HeaderMap::new();
    for (name, values) in letter.record.headers.iter() {
        let text: &str = name.as_ref();
        let lower = text.to_ascii_lowercase();
        let renamed = if lower.contains(SERVERS) || lower.starts_with(OURS) {
            let renamed = format!("{}{lower}", DeadLetterSubject::ORIGINAL);
            renamed.parse::<HeaderName>().map_err(|_| DeadLetterError::Header { name: renamed })?
        } else {
            name.clone()
        };
        for value in values {
            headers.append(renamed.clone(), value.clone());
        }
    }
    let record = &letter.record;
    for (name, value) in [
        (DeadLetterSubject::REASON, line(&letter.reason).replace(ID, &ID.to_ascii_lowercase())),
        (DeadLetterSubject::STREAM, letter.source.stream().to_owned()),
        (DeadLetterSubject::SEQUENCE, record.sequence.to_string()),
        (DeadLetterSubject::PUBLISHED, record.published.to_string()),
        (DeadLetterSubject::SUBJECT, record.subject.to_string()),
    ] {
        let value = value.parse::<HeaderValue>().map_err(|_| DeadLetterError::Header { name: name.to_owned() })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// A text as one line of bounded length.
fn line(text: &str) -> String {
    let mut line = String::new();
    for character in text.trim().chars().map(|character| if character.is_control() { ' ' } else { character }) {
        if line.len() + character.len_utf8() > REASON_LENGTH {
            break;
        }
        line.push(character);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::source::Source;

    fn letter(source: Source, sequence: u64, headers: HeaderMap, reason: &str) -> DeadLetter {
        DeadLetter::new(source, Record::new(sequence, 17, "orders.new", "x").with_headers(headers), reason.to_owned())
    }

    #[test]
    fn headers_that_the_server_acts_upon_get_another_name_and_all_others_stay() {
        let mut original = HeaderMap::new();
        for (name, value) in [
            ("Nats-Msg-Id", "a"),
            ("X-Nats-Msg-Id", "b"),
            ("nats-expected-stream", "ORDERS"),
            ("Nats-Rollup", "all"),
            ("Replay-Guard-Reason", "before"),
            ("Natsy", "no"),
        ] {
            original.insert(name, value);
        }
        original.append("Twice", "1");
        original.append("Twice", "2");
        let headers = headers(&letter(Source::new("ORDERS"), 5, original, "why")).expect("headers");
        let get = |name: &str| headers.get_all(name).map(HeaderValue::as_str).collect::<Vec<_>>();
        assert_eq!(get("Replay-Guard-Original-nats-msg-id"), ["a"]);
        assert_eq!(get("Replay-Guard-Original-x-nats-msg-id"), ["b"]);
        assert_eq!(get("Replay-Guard-Original-nats-expected-stream"), ["ORDERS"]);
        assert_eq!(get("Replay-Guard-Original-nats-rollup"), ["all"]);
        assert_eq!(get("Replay-Guard-Original-replay-guard-reason"), ["before"]);
        assert_eq!((get("Natsy"), get("Twice")), (vec!["no"], vec!["1", "2"]));
        assert_eq!((get(DeadLetterSubject::REASON), get(DeadLetterSubject::SEQUENCE)), (vec!["why"], vec!["5"]));
        assert!(headers.iter().all(|(name, _)| !name.to_string().contains("Nats-")));
        let headers =
            super::headers(&letter(Source::new("ORDERS"), 5, HeaderMap::new(), "no Nats-Msg-Id")).expect("headers");
        assert_eq!(headers.get(DeadLetterSubject::REASON).map(HeaderValue::as_str), Some("no nats-msg-id"));
    }

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(line(" a\r\nb\tc\n"), "a  b c");
        let long = line(&"\u{e4}".repeat(2_000));
        assert_eq!((long.len(), long.chars().all(|character| character == '\u{e4}')), (REASON_LENGTH, true));
        assert!(headers(&letter(Source::new("S"), 1, HeaderMap::new(), "two\nlines")).is_ok());
    }

    #[test]
    fn a_message_id_is_of_one_record_of_one_source() {
        let id = |source: Source, sequence| message_id(&letter(source, sequence, HeaderMap::new(), ""));
        let all = Source::new("ORDERS");
        assert_eq!(id(all.clone(), 5), id(all.clone(), 5));
        let others = [
            id(all.clone(), 6),
            id(Source::new("OTHER"), 5),
            id(all.clone().with_domain("hub"), 5),
            id(all.clone().with_filters(["a.>"]), 5),
        ];
        assert!(others.iter().all(|other| *other != id(all.clone(), 5)), "{others:?}");
    }
}
