//! Where records go that a sink can never store.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::error::SinkFailure;
use crate::record::Record;
use crate::source::Source;

/// A record that the sink rejected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Where it came from.
    pub source: Source,
    /// The record, with headers and payload.
    pub record: Record,
    /// Why, in the sink's words.
    pub reason: String,
}

impl DeadLetter {
    /// A letter; guards make their own, so this is for tests of a hook.
    pub const fn new(source: Source, record: Record, reason: String) -> Self {
        Self { source, record, reason }
    }
}

/// The dead-letter hook: takes the records that the sink rejects.
///
/// A rejected record is terminated, and its payload forgotten, only after the hook said that it took it. Until then it is
/// neither acked nor covered by a checkpoint, and the hook is asked again; if the process ends before that, the record is
/// delivered, rejected and handed to the hook again. So a hook sees each rejected record **at least once**.
///
/// A closure that takes a [`DeadLetter`] is a hook; one that does nothing says that rejected records are not wanted:
///
/// ```
/// use replay_guard::{DeadLetter, DeadLetters};
///
/// fn hook() -> impl DeadLetters {
///     |letter: DeadLetter| async move {
///         eprintln!("{}: {}", letter.record.subject, letter.reason);
///         Ok::<(), std::io::Error>(())
///     }
/// }
/// # let _ = hook();
/// ```
///
/// [`DeadLetterSubject`](crate::DeadLetterSubject) publishes them to a stream.
pub trait DeadLetters: Send + Sync {
    /// What goes wrong.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Takes one record. It must be durable, wherever that is, when this returns: it may never come again.
    ///
    /// # Errors
    ///
    /// Anything that leaves it unknown whether the record is kept. It is handed over again after a while.
    ///
    /// # Cancel safety
    ///
    /// May be dropped half way, for instance when it takes too long, and is then called again with the same record.
    fn take(&self, letter: DeadLetter) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

impl<F, Fut, E> DeadLetters for F
where
    F: Fn(DeadLetter) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), E>> + Send,
    E: std::error::Error + Send + Sync + 'static,
{
    type Error = E;

    fn take(&self, letter: DeadLetter) -> impl Future<Output = Result<(), E>> + Send {
        self(letter)
    }
}

/// A hook chosen at run time. Costs one allocation a call, and calls are rare.
pub(crate) trait DynDeadLetters: Send + Sync {
    fn take(&self, letter: DeadLetter) -> BoxFuture<'_, Result<(), SinkFailure>>;
}

/// One hook serves all guards that a driver opens.
pub(crate) type Hook = Arc<dyn DynDeadLetters>;

struct Erased<H>(H);

impl<H: DeadLetters> DynDeadLetters for Erased<H> {
    fn take(&self, letter: DeadLetter) -> BoxFuture<'_, Result<(), SinkFailure>> {
        let taken = self.0.take(letter);
        Box::pin(async move { taken.await.map_err(|error| Box::new(error) as SinkFailure) })
    }
}

/// Hides which hook it is.
pub(crate) fn shared(hook: impl DeadLetters + 'static) -> Hook {
    Arc::new(Erased(hook))
}
