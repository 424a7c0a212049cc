//! What a consumer's configuration must be like. Pure: no requests.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy};

use super::api::Retention;
use super::error::ConsumerError;
use crate::source::Source;

/// The name under which the state id stands in a consumer's metadata.
pub const METADATA_KEY: &str = "replay-guard";

/// What the server takes where `ack_wait` is not set.
pub(super) const ACK_WAIT: Duration = Duration::from_secs(30);
/// What the server takes where `max_ack_pending` is not set.
const MAX_ACK_PENDING: i64 = 1_000;

/// How an archiver flushes, for [`Consumer::check`](super::Consumer::check) to compare a configuration with.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Expected {
    /// Records after which a flush is due.
    pub flush_count: u64,
    /// Time after which a flush is due.
    pub flush_age: Duration,
}

impl Expected {
    /// A flush after so many records, and after so long.
    pub const fn new(flush_count: u64, flush_age: Duration) -> Self {
        Self { flush_count, flush_age }
    }
}

/// A setting with which archiving works, but not well. `Display` says what it means and gives the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The ack window is smaller than twice the flush count.
    AckWindow {
        /// The consumer's `max_ack_pending`.
        max_ack_pending: u64,
        /// Records after which a flush is due.
        flush_count: u64,
    },
    /// The server gives a message up after so many deliveries: without a sink for long enough it is never archived.
    MaxDeliver {
        /// The consumer's `max_deliver`.
        deliveries: u64,
    },
    /// The server deletes the consumer when nobody has pulled for this long.
    InactiveThreshold {
        /// The consumer's `inactive_threshold`.
        threshold: Duration,
    },
    /// Messages are delivered again unless they are acked sooner than a flush is due.
    AckDeadline {
        /// The first of the consumer's `backoff`, or its `ack_wait`.
        deadline: Duration,
        /// Time after which a flush is due.
        flush_age: Duration,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AckWindow { max_ack_pending, flush_count } => write!(
                f,
                "max_ack_pending is {max_ack_pending}: pulling pauses while a flush runs; set it to {} or more, twice the \
                 flush count of {flush_count}",
                flush_count.saturating_mul(2)
            ),
            Self::MaxDeliver { deliveries } => {
                write!(
                    f,
                    "max_deliver is {deliveries}: the server gives up a message after so many deliveries, and each try of a \
                     sink that is down costs one; set it to -1"
                )
            }
            Self::InactiveThreshold { threshold } => {
                write!(
                    f,
                    "inactive_threshold is {threshold:?}: the server deletes the consumer when nobody pulls for so long; \
                     set it to 0, here and in the stream's consumer limits"
                )
            }
            Self::AckDeadline { deadline, flush_age } => write!(
                f,
                "the ack deadline of {deadline:?} is shorter than the flush age of {flush_age:?}: messages need \
                 in-progress acks to wait for a flush; set ack_wait, or the first backoff, to more than {flush_age:?}"
            ),
        }
    }
}

/// Whether a consumer with this configuration can feed an archiver of this source.
pub(super) fn check(
    name: &str,
    config: &Config,
    source: &Source,
    expected: Expected,
) -> Result<Vec<Warning>, ConsumerError> {
    let refused = |reason: String| Err(ConsumerError::Refused { consumer: name.to_owned(), reason });
    if let Some(subject) = &config.deliver_subject {
        return refused(format!("it is a push consumer (deliver_subject {subject}); a pull consumer is needed"));
    }
    match config.ack_policy {
        AckPolicy::Explicit | AckPolicy::All => {}
        AckPolicy::None => {
            return refused(
                "its ack policy is none: the server takes a message for done when it sends it, so what was not yet \
                 durable at a crash would be lost; explicit or all is needed"
                    .into(),
            );
        }
        other @ AckPolicy::FlowControl => {
            return refused(format!("its ack policy is {other:?}; explicit or all is needed"));
        }
    }
    if let [group, ..] = &config.priority_groups[..] {
        return refused(format!(
            "it has the priority group {group}: whom the server then delivers to changes without a word; a consumer without \
             groups is needed"
        ));
    }
    if config.headers_only {
        return refused("it delivers headers only, so there are no payloads to archive".into());
    }
    let (has, wanted) = (filters(config), whole(source.filters().to_vec()));
    if has != wanted {
        let list = |filters: &[String]| match filters {
            [] => "the whole stream".to_owned(),
            filters => filters.join(", "),
        };
        return refused(format!("its filter is {}, the source's is {}", list(&has), list(&wanted)));
    }
    Ok(warnings(config, expected))
}

fn warnings(config: &Config, expected: Expected) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let window = if config.max_ack_pending == 0 { MAX_ACK_PENDING } else { config.max_ack_pending };
    // Negative: unlimited.
    if let Ok(max_ack_pending) = u64::try_from(window)
        && max_ack_pending < expected.flush_count.saturating_mul(2)
    {
        warnings.push(Warning::AckWindow { max_ack_pending, flush_count: expected.flush_count });
    }
    if let Ok(deliveries @ 1..) = u64::try_from(config.max_deliver) {
        warnings.push(Warning::MaxDeliver { deliveries });
    }
    if !config.inactive_threshold.is_zero() {
        warnings.push(Warning::InactiveThreshold { threshold: config.inactive_threshold });
    }
    let deadline = ack_deadline(config);
    if deadline < expected.flush_age {
        warnings.push(Warning::AckDeadline { deadline, flush_age: expected.flush_age });
    }
    warnings
}

/// After how long the server delivers an un-acked message for the second time.
pub(super) fn ack_deadline(config: &Config) -> Duration {
    match config.backoff.first() {
        Some(first) => *first,
        None if config.ack_wait.is_zero() => ACK_WAIT,
        None => config.ack_wait,
    }
}

/// A consumer's filters, sorted; none for the whole stream.
pub(super) fn filters(config: &Config) -> Vec<String> {
    let mut filters = config.filter_subjects.clone();
    if !config.filter_subject.is_empty() {
        filters.push(config.filter_subject.clone());
    }
    filters.sort_unstable();
    filters.dedup();
    whole(filters)
}

/// `>` alone is the whole stream.
fn whole(filters: Vec<String>) -> Vec<String> {
    if filters == [">"] { Vec::new() } else { filters }
}

/// The configuration of a consumer that nobody has configured.
pub(super) fn fresh(name: &str, source: &Source, max_ack_pending: i64) -> Config {
    let (filter_subject, filter_subjects) = match source.filters() {
        [] => (String::new(), Vec::new()),
        [filter] => (filter.clone(), Vec::new()),
        filters => (String::new(), filters.to_vec()),
    };
    Config {
        durable_name: Some(name.to_owned()),
        name: Some(name.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_ack_pending,
        filter_subject,
        filter_subjects,
        ..Config::default()
    }
}

/// The same configuration under a name, with the source's filters.
pub(super) fn named(config: Config, name: &str, source: &Source) -> Config {
    let Config { durable_name, name, filter_subject, filter_subjects, .. } = fresh(name, source, 0);
    Config { durable_name, name, filter_subject, filter_subjects, ..config }
}

/// The same configuration with our mark.
pub(super) fn marked(mut config: Config, mark: &str) -> Config {
    // The server adds keys of its own to what it reports; they are not the operator's.
    config.metadata.retain(|key, _| !key.starts_with("_nats."));
    config.metadata.insert(METADATA_KEY.to_owned(), mark.to_owned());
    config
}

/// The same configuration, starting at a sequence.
pub(super) fn starting(mut config: Config, start: u64, retention: Retention) -> Config {
    // A work queue takes nothing else; and where it does not matter, a start that can later be undercut by a reset.
    config.deliver_policy = if start <= 1 || retention == Retention::WorkQueue {
        DeliverPolicy::All
    } else {
        DeliverPolicy::ByStartSequence { start_sequence: start }
    };
    config
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected { flush_count: 500, flush_age: Duration::from_secs(10) };

    fn source() -> Source {
        Source::new("S").with_filters(["b.*", "a.>"])
    }

    fn config() -> Config {
        fresh("c", &source(), 1_000)
    }

    fn reason(config: &Config, source: &Source) -> String {
        check("c", config, source, EXPECTED).unwrap_err().to_string()
    }

    #[test]
    fn what_we_create_needs_no_warning() {
        for source in [Source::new("S"), Source::new("S").with_filters(["a"]), source()] {
            let config = fresh("c", &source, 1_000);
            assert_eq!(check("c", &config, &source, EXPECTED).unwrap(), []);
        }
        assert_eq!((config().ack_policy, config().ack_wait), (AckPolicy::Explicit, ACK_WAIT));
        assert_eq!(config().max_ack_pending, 1_000);
        let unlimited = Config { max_ack_pending: -1, ..config() };
        assert_eq!(check("c", &unlimited, &source(), EXPECTED).unwrap(), []);
    }

    #[test]
    fn what_loses_messages_is_refused_with_the_reason() {
        let none = Config { ack_policy: AckPolicy::None, ..config() };
        assert!(reason(&none, &source()).contains("ack policy is none"));
        let push = Config { deliver_subject: Some("inbox".into()), ..config() };
        assert!(reason(&push, &source()).contains("push"));
        let headers = Config { headers_only: true, ..config() };
        assert!(reason(&headers, &source()).contains("headers only"));
        let group = Config { priority_groups: vec!["g".into()], ..config() };
        assert!(reason(&group, &source()).contains("priority group g"));
        let flow = Config { ack_policy: AckPolicy::FlowControl, ..config() };
        assert!(reason(&flow, &source()).contains("FlowControl"));
        let error = check("c", &none, &source(), EXPECTED).unwrap_err();
        assert!(!error.is_retriable());
    }

    #[test]
    fn ack_policy_all_is_fine() {
        let all = Config { ack_policy: AckPolicy::All, ..config() };
        assert_eq!(check("c", &all, &source(), EXPECTED).unwrap(), []);
    }

    #[test]
    fn filters_are_compared_as_sets() {
        let turned = Config { filter_subjects: vec!["b.*".into(), "a.>".into(), "b.*".into()], ..config() };
        assert!(check("c", &turned, &source(), EXPECTED).is_ok());
        let everything = Config { filter_subjects: Vec::new(), filter_subject: ">".into(), ..config() };
        assert!(check("c", &everything, &Source::new("S"), EXPECTED).is_ok());
        let text = reason(&everything, &source());
        assert!(text.contains("the whole stream") && text.contains("a.>, b.*"), "{text}");
        let one = Config { filter_subjects: vec!["a.>".into()], ..config() };
        assert!(check("c", &one, &source(), EXPECTED).is_err());
        assert!(check("c", &one, &Source::new("S").with_filters(["a.>"]), EXPECTED).is_ok());
    }

    #[test]
    fn warnings_carry_their_numbers() {
        let config = Config {
            max_ack_pending: 999,
            max_deliver: 5,
            inactive_threshold: Duration::from_secs(60),
            backoff: vec![Duration::from_secs(1), Duration::from_secs(60)],
            ..config()
        };
        let warnings = check("c", &config, &source(), EXPECTED).unwrap();
        assert_eq!(
            warnings,
            [
                Warning::AckWindow { max_ack_pending: 999, flush_count: 500 },
                Warning::MaxDeliver { deliveries: 5 },
                Warning::InactiveThreshold { threshold: Duration::from_secs(60) },
                Warning::AckDeadline { deadline: Duration::from_secs(1), flush_age: Duration::from_secs(10) },
            ]
        );
        for (warning, number) in warnings.iter().zip(["set it to 1000", "set it to -1", "set it to 0", "more than 10s"])
        {
            assert!(warning.to_string().contains(number), "{warning}");
        }
    }

    #[test]
    fn a_deadline_as_long_as_the_flush_age_is_enough() {
        let config = Config { ack_wait: EXPECTED.flush_age, ..config() };
        assert_eq!(check("c", &config, &source(), EXPECTED).unwrap(), []);
    }

    #[test]
    fn an_operators_configuration_gets_name_and_filters() {
        let operators = Config { ack_wait: Duration::from_secs(7), filter_subject: "x".into(), ..Config::default() };
        let named = named(operators, "c", &source());
        assert_eq!((named.durable_name.as_deref(), named.name.as_deref()), (Some("c"), Some("c")));
        assert_eq!((named.ack_wait, filters(&named)), (Duration::from_secs(7), vec!["a.>".into(), "b.*".into()]));
        assert!(check("c", &named, &source(), EXPECTED).is_ok());
    }

    #[test]
    fn unset_means_what_the_server_takes() {
        let config = Config { max_ack_pending: 0, ack_wait: Duration::ZERO, ..config() };
        assert_eq!(ack_deadline(&config), ACK_WAIT);
        assert_eq!(check("c", &config, &source(), EXPECTED).unwrap(), []);
        let more = Expected { flush_count: 501, ..EXPECTED };
        assert!(matches!(*check("c", &config, &source(), more).unwrap(), [Warning::AckWindow { .. }]));
    }

    #[test]
    fn only_the_mark_and_the_start_are_ours() {
        let mut operators = Config { description: Some("d".into()), max_waiting: 7, ..config() };
        operators.metadata = [("team", "x"), ("_nats.ver", "2.15.1")].map(|(k, v)| (k.into(), v.into())).into();
        let made = marked(starting(operators.clone(), 5, Retention::Limits), "42");
        assert_eq!(made.deliver_policy, DeliverPolicy::ByStartSequence { start_sequence: 5 });
        assert_eq!(made.metadata, [("team", "x"), (METADATA_KEY, "42")].map(|(k, v)| (k.into(), v.into())).into());
        let back = Config { deliver_policy: operators.deliver_policy, metadata: operators.metadata.clone(), ..made };
        assert_eq!(back, operators);
        assert_eq!(starting(operators.clone(), 5, Retention::WorkQueue).deliver_policy, DeliverPolicy::All);
        assert_eq!(starting(operators, 1, Retention::Limits).deliver_policy, DeliverPolicy::All);
    }
}
