//! The `JetStream` API of the simulated server, as far as the driver asks it: what comes in and goes out is JSON, so that the
//! driver's own requests and answers are used.

use async_nats::jetstream::consumer::{Config, DeliverPolicy};
use async_nats::jetstream::response::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::World;
use super::held::Held;
use super::stream::State;
use crate::jetstream::api::code;

impl World {
    /// One request.
    pub(crate) async fn answer<T, V>(&self, subject: &str, payload: &T) -> Result<Response<V>, String>
    where
        T: Serialize + Sync,
        V: DeserializeOwned,
    {
        self.stutter().await;
        let answer = {
            let mut state = self.state();
            state.tick();
            let request = serde_json::to_value(payload).map_err(|error| error.to_string())?;
            let down = state.is_down();
            if state.is_silent() {
                // Carried out or not: the answer is lost.
                if !down && state.server.rng.one_in(2) {
                    state.serve(subject, &request);
                }
                None
            } else {
                state.serve(subject, &request)
            }
        };
        self.stutter().await;
        let answer = answer.ok_or_else(|| "no answer".to_owned())?;
        serde_json::from_value(answer).map_err(|error| error.to_string())
    }
}

#[expect(clippy::unnecessary_wraps, reason = "an answer, as all the others")]
fn refused(status: u16, code: u64) -> Option<Value> {
    Some(json!({ "error": { "code": status, "err_code": code, "description": "refused" } }))
}

impl State {
    fn serve(&mut self, subject: &str, request: &Value) -> Option<Value> {
        let mut words = subject.splitn(3, '.');
        match (words.next()?, words.next()?, words.next()?) {
            ("STREAM", "INFO", _) => Some(self.stream_info()),
            ("STREAM", "MSG", _) => self.message(request),
            ("CONSUMER", verb, rest) => {
                let name = rest.split('.').nth(1)?.to_owned();
                self.consumer(verb, &name, request)
            }
            _ => None,
        }
    }

    fn stream_info(&self) -> Value {
        let first = self.messages.keys().next().copied().unwrap_or(self.last + 1);
        let published = self.messages.values().next_back().map_or(0, |message| message.published);
        json!({
            "config": { "retention": if self.work_queue { "workqueue" } else { "limits" } },
            "created": time(self.created),
            "state": { "first_seq": first, "last_seq": self.last, "last_ts": time(published) },
        })
    }

    fn message(&self, request: &Value) -> Option<Value> {
        let from = request["seq"].as_u64()?;
        let found = match request["next_by_subj"].as_str() {
            None => self.messages.get_key_value(&from),
            Some(pattern) => {
                let prefix = pattern.trim_end_matches('>');
                self.messages.range(from..).find(|(_, message)| message.subject.starts_with(prefix))
            }
        };
        let Some((at, message)) = found else { return refused(404, code::NO_MESSAGE) };
        let data = base64(message.payload.as_bytes());
        Some(json!({ "message": {
            "subject": message.subject, "seq": at, "data": data, "time": time(message.published),
        } }))
    }

    fn consumer(&mut self, verb: &str, name: &str, request: &Value) -> Option<Value> {
        match (verb, self.server.held.as_mut().filter(|held| held.name() == name)) {
            ("INFO", Some(_)) => Some(self.consumer_info()),
            ("DELETE", Some(_)) => {
                self.server.held = None;
                self.server.left.take_if(|(left, _)| left == name);
                Some(json!({ "success": true }))
            }
            ("INFO" | "DELETE", None) => refused(404, code::CONSUMER_NOT_FOUND),
            ("CREATE", _) if self.server.damaged.contains(name) => refused(500, code::CONSUMER_CREATE),
            ("CREATE", _) => {
                let config: Config = serde_json::from_value(request["config"].clone()).unwrap();
                self.create(config, request["action"] == "update")
            }
            // Of a consumer that is not there nobody answers.
            ("RESET", Some(held)) if self.server.version.starts_with("2.14") => {
                let to = request["seq"].as_u64()?;
                let refuses = match held.config.deliver_policy {
                    DeliverPolicy::ByStartSequence { start_sequence } => to < start_sequence,
                    _ => false,
                };
                if refuses || self.server.refuse_resets > 0 {
                    self.server.refuse_resets = self.server.refuse_resets.saturating_sub(1);
                    return refused(400, code::CONSUMER_INVALID_RESET);
                }
                held.reset(to);
                self.server.begun.push((to, self.server.stamp));
                Some(self.consumer_info())
            }
            _ => None,
        }
    }

    fn create(&mut self, config: Config, update: bool) -> Option<Value> {
        // One that others took over from is in nobody's way.
        let same_name = |held: &&mut Held| held.config.durable_name == config.durable_name;
        if let Some(held) = self.server.held.as_mut().filter(same_name) {
            let same = Config { metadata: held.config.metadata.clone(), ..config.clone() } == held.config;
            if update && same {
                held.config = config;
            } else if held.config != config {
                return refused(400, code::CONSUMER_EXISTS);
            }
            return Some(self.consumer_info());
        }
        if update {
            return refused(404, code::CONSUMER_NOT_FOUND);
        }
        let start = match config.deliver_policy {
            DeliverPolicy::ByStartSequence { start_sequence } if self.work_queue => {
                let _ = start_sequence;
                return refused(400, 10_101);
            }
            DeliverPolicy::ByStartSequence { start_sequence } => start_sequence,
            _ => 1,
        };
        let held = Held::made(config, self);
        self.server.left.take_if(|(name, _)| name == held.name());
        self.server.held = Some(held);
        self.server.begun.push((start, self.server.stamp));
        Some(self.consumer_info())
    }

    fn consumer_info(&self) -> Value {
        let Some(held) = &self.server.held else { return Value::Null };
        let progress = &held.progress;
        let remaining = held.paused_until - self.clock;
        json!({
            "paused": remaining > 0,
            "pause_remaining": remaining.max(0),
            "ts": time(self.clock),
            "created": time(held.created),
            "config": serde_json::to_value(&held.config).unwrap(),
            "delivered": { "stream_seq": progress.delivered, "consumer_seq": progress.consumer_sequence },
            "ack_floor": { "stream_seq": held.ack_floor(), "consumer_seq": 0 },
            "num_ack_pending": progress.pending.len(),
            "num_pending": self.remaining(),
        })
    }
}

/// RFC 3339, as the server writes times.
fn time(nanoseconds: i64) -> String {
    let (seconds, nanos) = (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since the first of March of year 0; years begin in March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap();
            text.push(if digit > chunk.len() { '=' } else { char::from(DIGITS[index]) });
        }
    }
    text
}

#[test]
fn times_and_payloads_are_written_as_they_are_read() {
    for nanoseconds in [0, 951_782_400_000_000_001, 1_700_000_000_123_456_789, 1_709_164_800_000_000_000] {
        assert_eq!(crate::jetstream::time::unix_nanos(&time(nanoseconds)), Some(nanoseconds));
    }
    assert_eq!((base64(b"a"), base64(b"ab"), base64(b"abc")), ("YQ==".into(), "YWI=".into(), "YWJj".into()));
}
