//! The ack subject: who a delivery is, and what answers it.

use async_nats::Subject;
use bytes::Bytes;

use crate::record::RecordId;

/// What an ack subject says of its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) id: RecordId,
    /// How often it was delivered, this time included. Says nothing of whether it was seen before: a server that lost its
    /// memory counts from 1 again.
    pub(crate) times: u64,
    pub(crate) consumer_sequence: u64,
    /// How many messages the consumer had not delivered yet.
    pub(crate) remaining: u64,
}

impl Delivery {
    /// Reads `$JS.ACK.<stream>.<consumer>.<times>.<stream sequence>.<consumer sequence>.<published>.<remaining>`, or the
    /// later form with domain and account hash before the stream and perhaps more after the end.
    pub(crate) fn parse(subject: &str) -> Option<Self> {
        let rest = subject.strip_prefix("$JS.ACK.")?;
        let mut tokens = [""; 9];
        let mut count = 0;
        for token in rest.split('.') {
            if let Some(place) = tokens.get_mut(count) {
                *place = token;
            }
            count += 1;
        }
        // Neither stream nor consumer names contain a dot, so the two forms differ by their count.
        let skip = match count {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let mut tokens = tokens.into_iter().skip(skip);
        let mut number = || tokens.next()?.parse::<u64>().ok();
        let (times, sequence, consumer_sequence) = (number()?, number()?, number()?);
        let published = i64::try_from(number()?).ok()?;
        let remaining = number()?;
        Some(Self { id: RecordId::new(sequence, published), times, consumer_sequence, remaining })
    }
}

/// How a delivery is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ack,
    /// Never deliver it again, although it was not stored.
    Term,
    /// It is being worked on: the ack deadline begins anew.
    Progress,
}

impl Answer {
    pub(crate) const fn payload(self) -> Bytes {
        Bytes::from_static(match self {
            Self::Ack => b"+ACK",
            Self::Term => b"+TERM",
            Self::Progress => b"+WPI",
        })
    }
}

/// Where to answer a delivery. A copy of its own: a slice of the message's buffer would keep the payload alive.
pub(crate) fn detached(reply: &Subject) -> Box<str> {
    reply.as_str().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_ack_subject_are_read() {
        let expected =
            Delivery { id: RecordId::new(7, 1_700_000_000_123_456_789), times: 1, consumer_sequence: 9, remaining: 3 };
        let v1 = "$JS.ACK.ORDERS.archiver.1.7.9.1700000000123456789.3";
        let v2 = "$JS.ACK._.hash.ORDERS.archiver.1.7.9.1700000000123456789.3";
        let later = "$JS.ACK.hub.hash.ORDERS.archiver.1.7.9.1700000000123456789.3.random";
        for subject in [v1, v2, later] {
            assert_eq!(Delivery::parse(subject), Some(expected), "{subject}");
        }
    }

    #[test]
    fn a_detached_reply_keeps_no_payload_alive() {
        let buffer = Bytes::from(b"$JS.ACK.x and a large payload".to_vec());
        let reply = Subject::from_utf8(buffer.slice(..9)).expect("text");
        let kept = detached(&reply);
        drop(reply);
        assert_eq!(&*kept, "$JS.ACK.x");
        assert!(buffer.is_unique());
    }

    #[test]
    fn anything_else_is_no_delivery() {
        for subject in [
            "",
            "$JS.ACK.",
            "orders.new",
            "$JS.ACK.ORDERS.archiver.1.7.9.1700000000123456789",
            "$JS.ACK.ORDERS.archiver.1.x.9.1700000000123456789.3",
            "$JS.ACK.ORDERS.archiver.1.7.9.99999999999999999999.3",
            "$JS.ACK._.ORDERS.archiver.1.7.9.1700000000123456789.3",
        ] {
            assert_eq!(Delivery::parse(subject), None, "{subject}");
        }
    }
    #[test]
    fn answers_are_what_a_server_understands() {
        let payloads = [Answer::Ack, Answer::Term, Answer::Progress].map(Answer::payload);
        assert_eq!(payloads, ["+ACK", "+TERM", "+WPI"]);
    }
}
