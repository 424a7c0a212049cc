//! The events of all drivers in this process, kept by stream: every test has a stream name of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

static KEPT: Mutex<Option<HashMap<String, Vec<Event>>>> = Mutex::new(None);

/// One event, its fields as text.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) name: &'static str,
    pub(super) fields: BTreeMap<&'static str, String>,
}

impl Event {
    /// A field that is a number.
    pub(super) fn number(&self, field: &str) -> u64 {
        self.fields[field].parse().unwrap()
    }
}

struct Keep;

impl<S: tracing::Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let name = event.metadata().name();
        if !name.starts_with("replay_guard.") {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let source = fields.0.get("source").map_or("", String::as_str);
        // "STREAM" or "STREAM [filters]".
        let stream = source.split(' ').next().unwrap_or_default().to_owned();
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert_default().entry(stream).or_default().push(Event { name, fields: fields.0 });
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// Begins to keep events; once for all tests.
pub(super) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = tracing_subscriber::filter::LevelFilter::INFO;
        let subscriber = tracing_subscriber::registry().with(Keep.with_filter(filter));
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
}

/// Everything that was said about a stream.
pub(super) fn of(stream: &str) -> Vec<Event> {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.as_ref().and_then(|kept| kept.get(stream)).cloned().unwrap_or_default()
}
