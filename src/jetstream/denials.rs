//! What the server refuses for want of a permission.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Event, ServerError};

/// How many are remembered. One request looks only at what came while it waited.
const KEPT: usize = 64;

/// Remembers which requests the server refused for want of a permission.
///
/// The server tells a refusal to the connection and not to the request, which then gets no answer, and async-nats gives
/// it to the event callback of the connection's options only. Fed from there, an observer or a consumer says "denied"
/// where it would otherwise say "no answer".
///
/// ```no_run
/// use replay_guard::{Source, async_nats, jetstream::{Denials, StreamObserver}};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let denials = Denials::default();
/// let noted = denials.clone();
/// let options = async_nats::ConnectOptions::new().event_callback(move |event| {
///     noted.note(&event);
///     async {}
/// });
/// let client = options.connect("nats://localhost").await?;
/// let observer =
///     StreamObserver::new(async_nats::jetstream::new(client), &Source::new("ORDERS")).with_denials(denials);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Denials(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    count: u64,
    last: VecDeque<String>,
}

impl Denials {
    /// Takes an event of the connection; all but refused publications are ignored.
    pub fn note(&self, event: &Event) {
        let Event::ServerError(ServerError::Other(text)) = event else { return };
        if !text.to_ascii_lowercase().starts_with("permissions violation for publish") {
            return;
        }
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.count += 1;
        noted.last.push_back(text.clone());
        if noted.last.len() > KEPT {
            noted.last.pop_front();
        }
    }

    /// How many there were so far.
    pub(super) fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// What the server said of a request to this subject (without the API prefix) after so many.
    pub(super) fn since(&self, count: u64, subject: &str) -> Option<String> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = usize::try_from(noted.count.saturating_sub(count)).unwrap_or(usize::MAX);
        let wanted = format!(".{subject}\"");
        noted.last.iter().rev().take(new).find(|text| text.contains(&wanted)).cloned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn refused(verb: &str, subject: &str) -> Event {
        Event::ServerError(ServerError::Other(format!("Permissions Violation for {verb} \"{subject}\"")))
    }

    #[test]
    fn only_the_request_itself_and_only_what_is_new() {
        let denials = Denials::default();
        denials.note(&refused("Publish to", "$JS.API.STREAM.MSG.GET.S"));
        let count = denials.count();
        assert_eq!(denials.since(count, "STREAM.MSG.GET.S"), None, "from before");
        denials.note(&refused("Publish to", "$JS.hub.API.STREAM.MSG.GET.SS"));
        denials.note(&refused("Subscription to", "$JS.API.STREAM.MSG.GET.S"));
        denials.note(&Event::Connected);
        assert_eq!(denials.since(count, "STREAM.MSG.GET.S"), None, "another stream, another verb");
        denials.note(&refused("Publish to", "$JS.hub.API.STREAM.MSG.GET.S"));
        assert!(denials.since(count, "STREAM.MSG.GET.S").unwrap().contains("hub"));
    }

    #[test]
    fn bounded() {
        let denials = Denials::default();
        for number in 0..1_000 {
            denials.note(&refused("Publish to", &format!("$JS.API.STREAM.INFO.{number}")));
        }
        assert_eq!(denials.count(), 1_000);
        assert_eq!(denials.0.lock().unwrap().last.len(), KEPT);
        assert!(denials.since(0, "STREAM.INFO.999").is_some());
    }
}
