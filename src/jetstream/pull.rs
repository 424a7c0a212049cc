//! One subscription that pulls from the consumer. Ends whenever what comes next may belong to another session.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::jetstream::consumer::Config;
use async_nats::{Client, Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep_until};

use super::pace::Backoff;
use super::session::SessionEnd;

/// How long a pull waits for messages, if the consumer allows it.
const EXPIRES: Duration = Duration::from_secs(60);
/// How often the server says that it is still there; never more than half of the time a pull waits, or the server refuses.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A server that says nothing for so long is not there: two heartbeats. Not less where a short pull makes them come more
/// often, or a link slower than that would end every session.
const SILENCE: Duration = Duration::from_secs(10);
/// A pull that ends sooner than this without a message is not repeated at once, unless the consumer gives it no more time.
const EARLY: Duration = Duration::from_millis(500);

/// What a pull asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) messages: usize,
    /// Payload, subject and headers of what one pull sends, in bytes.
    pub(crate) bytes: usize,
    /// How long it waits for messages.
    expires: Duration,
    heartbeat: Duration,
    /// The consumer takes one pull at a time. A second one is refused, and with heartbeats nobody says so.
    single: bool,
}

impl Batch {
    /// So many messages and bytes, or as many as the consumer allows in one pull: one that asks for more is refused.
    pub(crate) fn within(messages: usize, bytes: usize, config: &Config) -> Self {
        let least = |ours: usize, theirs: i64| match usize::try_from(theirs) {
            Ok(theirs @ 1..) => ours.min(theirs),
            _ => ours,
        };
        let expires = if config.max_expires.is_zero() { EXPIRES } else { EXPIRES.min(config.max_expires) };
        Self {
            messages: least(messages, config.max_batch),
            bytes: least(bytes, config.max_bytes),
            expires,
            heartbeat: HEARTBEAT.min(expires / 2),
            single: config.max_waiting == 1,
        }
    }

    /// A pull that ends sooner than this without a message did not end because its time was over.
    fn early(&self) -> Duration {
        EARLY.min(self.expires / 2)
    }
}

/// When to look again if nothing comes. A server that was asked for nothing owes no heartbeat: then only the next pull
/// counts.
fn wake(owed: bool, silent: Instant, next_pull: Option<Instant>) -> Instant {
    match next_pull {
        Some(at) if owed => at.min(silent),
        Some(at) => at,
        None => silent,
    }
}

/// What a status message means for the session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Status {
    /// The server is there.
    Heartbeat,
    /// A pull is over; this many of its messages did not come. `TooLarge`: the next message is larger than `bytes`.
    Over { left: Option<usize>, too_large: bool },
    /// So is the session.
    End(SessionEnd),
}

fn classify(code: u16, description: &str, left: Option<usize>) -> Status {
    let over = |too_large| Status::Over { left, too_large };
    match (code, description) {
        (100, _) => Status::Heartbeat,
        (404 | 408 | 423, _) => over(false),
        (409, "Message Size Exceeds MaxBytes") => over(true),
        (409, said) if said == "Batch Completed" || said.starts_with("Exceeded MaxWaiting") => over(false),
        (409 | 503, said) if !said.is_empty() => Status::End(SessionEnd::Server(said.to_owned())),
        (503, _) => Status::End(SessionEnd::Server("nobody answers for the consumer".to_owned())),
        (code, said) => Status::End(SessionEnd::Server(format!("status {code} {said}"))),
    }
}

fn can_be_acked(message: &Message) -> bool {
    message.reply.as_ref().is_some_and(|reply| reply.starts_with("$JS.ACK."))
}

fn over() -> SessionEnd {
    SessionEnd::Server("the subscription ended".to_owned())
}

/// A subscription that keeps pulls under way.
#[derive(Debug)]
pub(crate) struct Pull {
    client: Client,
    subscriber: Subscriber,
    /// What came and was not asked for yet, in its order: no more than pulls ask for, and the words of the server between.
    gathered: VecDeque<Message>,
    subject: String,
    inbox: String,
    batch: Batch,
    /// Messages asked for that did not come yet.
    wanted: usize,
    heard: Instant,
    /// Messages were taken since, without a look at the clock.
    took: bool,
    asked: Instant,
    not_before: Option<Instant>,
    backoff: Backoff,
    /// The next message is larger than a batch may be: it is asked for alone.
    large: bool,
}

impl Pull {
    /// Subscribes; nothing is asked for yet. `prefix` is the API prefix, such as `$JS.API`.
    pub(crate) async fn new(
        client: Client,
        prefix: &str,
        stream: &str,
        consumer: &str,
        batch: Batch,
    ) -> Result<Self, SessionEnd> {
        let inbox = client.new_inbox();
        let subscriber =
            client.subscribe(inbox.clone()).await.map_err(|error| SessionEnd::Server(error.to_string()))?;
        let subject = format!("{prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let now = Instant::now();
        let backoff = Backoff::new(Backoff::seed());
        Ok(Self {
            client,
            subscriber,
            gathered: VecDeque::new(),
            subject,
            inbox,
            batch,
            wanted: 0,
            heard: now,
            took: false,
            asked: now,
            not_before: None,
            backoff,
            large: false,
        })
    }

    /// The next message. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Message, SessionEnd> {
        loop {
            if self.is_short() && self.not_before.is_none_or(|at| Instant::now() >= at) {
                self.ask().await?;
            }
            // What is there already needs no clock: to read it costs as much as to decide about a message.
            let message = if let Some(message) = self.come()? {
                message
            } else {
                if std::mem::take(&mut self.took) {
                    self.heard = Instant::now();
                }
                let silent = self.heard + SILENCE;
                let wake = wake(self.wanted > 0, silent, self.not_before.filter(|_| self.is_short()));
                let message = tokio::select! {
                    biased;
                    message = self.subscriber.next() => message,
                    () = sleep_until(wake) => {
                        if Instant::now() >= silent && self.wanted > 0 {
                            return Err(SessionEnd::Server("two heartbeats were missed".to_owned()));
                        }
                        continue;
                    }
                };
                self.heard = Instant::now();
                message.ok_or_else(over)?
            };
            if self.is_delivery(&message)? {
                return Ok(message);
            }
        }
    }

    /// The next message, if it has come already and nothing need be asked for before.
    pub(crate) fn ready(&mut self) -> Result<Option<Message>, SessionEnd> {
        while !self.is_short() {
            let Some(message) = self.come()? else { break };
            if self.is_delivery(&message)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// What has come already.
    fn come(&mut self) -> Result<Option<Message>, SessionEnd> {
        if let Some(message) = self.gathered.pop_front() {
            return Ok(Some(message));
        }
        let Some(message) = self.subscriber.next().now_or_never() else { return Ok(None) };
        self.took = true;
        message.ok_or_else(over).map(Some)
    }

    /// Where to answer what has come and was not taken yet.
    pub(crate) fn gather(&mut self) -> impl Iterator<Item = Subject> {
        // Within its budget tokio would give no more than some hundred at a time.
        while let Some(Some(message)) = unconstrained(self.subscriber.next()).now_or_never() {
            self.took = true;
            self.gathered.push_back(message);
        }
        self.gathered.iter().filter(|message| can_be_acked(message)).filter_map(|message| message.reply.clone())
    }

    /// Tells a delivery from what the server says about a pull.
    fn is_delivery(&mut self, message: &Message) -> Result<bool, SessionEnd> {
        // A publisher may give its message a status line of its own: what can be acked is a delivery.
        let Some(status) = message.status.filter(|_| !can_be_acked(message)) else {
            self.wanted = self.wanted.saturating_sub(1);
            self.large = false;
            self.backoff.reset();
            self.not_before = None;
            return Ok(true);
        };
        let left = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        let left = left.and_then(|left| left.as_str().parse().ok());
        match classify(status.as_u16(), message.description.as_deref().unwrap_or_default(), left) {
            Status::Heartbeat => {}
            Status::Over { left, too_large } => {
                self.wanted = self.wanted.saturating_sub(left.unwrap_or(self.batch.messages));
                self.large = too_large;
                if !too_large && self.asked.elapsed() < self.batch.early() {
                    self.not_before = Some(Instant::now() + self.backoff.wait());
                }
            }
            Status::End(end) => return Err(end),
        }
        Ok(false)
    }

    /// Whether more is to be asked for. A message that is asked for alone is asked for once.
    const fn is_short(&self) -> bool {
        self.wanted <= if self.large || self.batch.single { 0 } else { self.batch.messages / 2 }
    }

    async fn ask(&mut self) -> Result<(), SessionEnd> {
        let (messages, bytes) = if self.large { (1, None) } else { (self.batch.messages, Some(self.batch.bytes)) };
        let (expires, heartbeat) = (self.batch.expires.as_nanos(), self.batch.heartbeat.as_nanos());
        let limit = bytes.map(|bytes| format!(r#","max_bytes":{bytes}"#)).unwrap_or_default();
        let request = format!(r#"{{"batch":{messages},"expires":{expires},"idle_heartbeat":{heartbeat}{limit}}}"#);
        self.client
            .publish_with_reply(self.subject.clone(), self.inbox.clone(), Bytes::from(request))
            .await
            .map_err(|error| SessionEnd::Server(error.to_string()))?;
        self.asked = Instant::now();
        if self.wanted == 0 {
            // Nobody owed us a heartbeat while nothing was asked for, however long a flush took.
            self.heard = self.asked;
        }
        self.wanted += messages;
        self.not_before = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_asks_for_what_the_consumer_allows() {
        let free = Batch::within(1_000, 1 << 20, &Config::default());
        assert_eq!((free.messages, free.bytes, free.expires, free.single), (1_000, 1 << 20, EXPIRES, false));
        let max_expires = Duration::from_secs(3);
        let strict = Config { max_batch: 7, max_bytes: 500, max_expires, max_waiting: 1, ..Config::default() };
        let strict = Batch::within(1_000, 1 << 20, &strict);
        assert_eq!((strict.messages, strict.bytes, strict.expires, strict.single), (7, 500, max_expires, true));
        for batch in [free, strict] {
            assert!(batch.heartbeat * 2 <= batch.expires, "the server refuses {batch:?}");
        }
        let wide = Config { max_batch: 5_000, max_bytes: 1 << 30, max_expires: EXPIRES * 2, ..Config::default() };
        assert_eq!(Batch::within(1_000, 1 << 20, &wide), free);
    }

    #[test]
    fn a_short_pull_that_ends_in_its_time_is_repeated_at_once() {
        let short = Config { max_expires: Duration::from_millis(200), ..Config::default() };
        let short = Batch::within(1_000, 1 << 20, &short);
        assert!(short.early() < short.expires, "it would be taken for refused each time");
        assert_eq!(Batch::within(1_000, 1 << 20, &Config::default()).early(), EARLY);
    }

    #[test]
    fn waiting_for_the_next_pull_is_no_tight_loop() {
        let now = Instant::now();
        let (past, soon, later) = (now, now + EARLY, now + EXPIRES);
        assert_eq!(wake(false, past, Some(later)), later, "nothing is asked for: no heartbeat is due");
        assert_eq!(wake(true, soon, Some(later)), soon);
        assert_eq!(wake(true, later, Some(soon)), soon);
        assert_eq!(wake(true, soon, None), soon);
    }

    #[test]
    fn the_ordinary_end_of_a_pull_is_no_end_of_the_session() {
        for (code, said, too_large) in [
            (404, "No Messages", false),
            (408, "Request Timeout", false),
            (409, "Batch Completed", false),
            (409, "Exceeded MaxWaiting", false),
            (409, "Message Size Exceeds MaxBytes", true),
            (423, "Nats-Wrong-Pin-Id", false),
        ] {
            assert_eq!(classify(code, said, Some(3)), Status::Over { left: Some(3), too_large }, "{said}");
        }
        assert_eq!(classify(100, "Idle Heartbeat", None), Status::Heartbeat);
    }

    #[test]
    fn what_may_bring_another_life_ends_the_session() {
        for (code, said) in
            [(409, "Consumer Deleted"), (409, "Leadership Change"), (409, "Server Shutdown"), (503, ""), (400, "Bad")]
        {
            assert!(matches!(classify(code, said, None), Status::End(_)), "{said}");
        }
    }
}
