//! What a user of the crate implements.

use std::future::Future;
use std::ops::RangeInclusive;

use futures_util::future::BoxFuture;

use crate::claim::Claim;
use crate::coverage::Coverage;
use crate::record::{Record, RecordId};
use crate::source::Source;

/// A writer that a [`Guard`](crate::Guard) stands in front of.
///
/// [`write`](Self::write) and [`flush`](Self::flush) are what most people implement. The guard calls one method at a
/// time. After an error, or a future dropped half way, the sink is dropped and never called again: a sync that is tried
/// again after a failure may report a success that is none. Going on means a new sink, made by the factory that the
/// driver was given.
///
/// "Durable through sequence N" cannot be said, on purpose: redelivery breaks order, so a high-water mark loses messages.
///
/// The feature `testing` has a conformance kit that an author runs on a sink.
pub trait Sink: Send {
    /// What goes wrong.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Takes one record. It need not be durable yet.
    ///
    /// # Errors
    ///
    /// Anything that makes the sink unusable. A record that can never be stored is no error but
    /// [`Written::Rejected`].
    ///
    /// # Cancel safety
    ///
    /// Need not be cancel safe: a sink whose call was dropped half way is dropped too.
    fn write(&mut self, record: Record) -> impl Future<Output = Result<Written, Self::Error>> + Send;

    /// Makes records durable and says which. What is reported here may be acked, and is then gone from a work-queue
    /// stream for good: the data, and the directory entry of a new file, must survive a power cut.
    ///
    /// # Errors
    ///
    /// Anything that leaves it unknown whether the records are durable.
    ///
    /// # Cancel safety
    ///
    /// Need not be cancel safe: a sink whose call was dropped half way is dropped too.
    fn flush(&mut self, flush: Flush<'_>) -> impl Future<Output = Result<Durable, Self::Error>> + Send;

    /// What the sink itself already holds of this source, asked when a guard opens. Only what is durable may be reported:
    /// sync first what is reported.
    ///
    /// # Errors
    ///
    /// Anything that leaves it unknown what the sink holds.
    fn recover(&mut self, source: &Source) -> impl Future<Output = Result<Recovered, Self::Error>> + Send {
        let _ = source;
        std::future::ready(Ok(Recovered::Unknown))
    }

    /// What the guard really asks when it opens: as [`recover`](Self::recover), which it calls if it is not implemented,
    /// with what the checkpoint has. It is asked a second time if the stream contradicts that, with what is left.
    ///
    /// For a sink with many claims: where the checkpoint [holds](Coverage::holds) all that a claim names, the claim adds
    /// nothing to [`Recovered::AtLeast`], and need be neither read nor synced. [`Recovered::Exactly`] must name it all the
    /// same.
    ///
    /// # Errors
    ///
    /// Anything that leaves it unknown what the sink holds.
    fn recover_beyond(
        &mut self,
        source: &Source,
        checkpoint: &Coverage,
    ) -> impl Future<Output = Result<Recovered, Self::Error>> + Send {
        let _ = checkpoint;
        self.recover(source)
    }

    /// Which records with a sequence in this range the sink holds durably: asked after a fork, about a stretch that was
    /// archived, to find out how much of it is still in the stream and need not be written again. Records of any life
    /// of the stream count, in any order.
    ///
    /// A part of them will do, but all of each sequence that is named. Of many it is best to name few, far apart, for the question comes again about what lies
    /// between those that stand and those that do not. A sink that names none, as this does if it is not implemented, gets
    /// up to a flush of records a second time after a fork.
    ///
    /// # Errors
    ///
    /// Anything that makes the sink unusable. Where it only cannot tell, none is the answer.
    fn records_in(
        &mut self,
        source: &Source,
        sequences: RangeInclusive<u64>,
    ) -> impl Future<Output = Result<Vec<RecordId>, Self::Error>> + Send {
        let _ = (source, sequences);
        std::future::ready(Ok(Vec::new()))
    }
}

/// What became of a record that was handed to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Taken.
    Accepted,
    /// Taken, and the sink wants to be flushed before the next write.
    Full,
    /// The sink can never store this record, for this reason. Once it is reported ([`DeadLetters`](crate::DeadLetters)) it is
    /// terminated without being archived, and counts as done.
    Rejected(String),
}

/// What a flush made durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Everything accepted since the last `All`.
    All,
    /// These records; `Only(vec![])` is nothing yet. Ids that the guard does not wait for are ignored and counted.
    Only(Vec<RecordId>),
}

/// What a sink says it holds when a guard opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// The sink does not know. The checkpoint alone decides.
    Unknown,
    /// At least what these claims name, perhaps more. They add to the checkpoint.
    AtLeast(Vec<Claim>),
    /// From the sequence `from` on, what these claims name and nothing else: what the checkpoint has there and no claim
    /// names will be written again. Below `from` the checkpoint stands, so that housekeeping may remove old data.
    Exactly {
        /// The first sequence the claims speak for.
        from: u64,
        /// What the sink holds.
        claims: Vec<Claim>,
    },
}

/// Why a flush was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A count, size or age was reached, or the sink was full. The sink may answer [`Durable::Only`].
    Due,
    /// The ack window is full or the process stops: anything but [`Durable::All`] is an error.
    Everything,
}

/// One flush, as a sink sees it.
#[derive(Clone, Copy)]
pub struct Flush<'a> {
    reason: Reason,
    claims: Option<&'a (dyn ClaimFor + Sync)>,
}

/// Makes claims for records that are pending.
pub(crate) trait ClaimFor {
    /// A claim for all pending records, or for these.
    fn claim_for(&self, ids: Option<&[RecordId]>) -> Claim;
}

impl<'a> Flush<'a> {
    pub(crate) const fn new(reason: Reason, claims: &'a (dyn ClaimFor + Sync)) -> Self {
        Self { reason, claims: Some(claims) }
    }

    /// A flush that no guard asked for, to test a sink alone. Its claims are empty.
    pub const fn without_guard(reason: Reason) -> Self {
        Self { reason, claims: None }
    }

    /// Why the flush was asked for.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The claim for every record that was accepted and is not durable yet.
    ///
    /// A sink that stores it in the same atomic step as the data (in a file's footer, inside the object, in a row of the
    /// same transaction) and gives it back from [`Sink::recover`] never gets a record twice, also after a crash between
    /// its flush and the guard's checkpoint.
    pub fn claim(&self) -> Claim {
        self.claims.map_or_else(Claim::empty, |claims| claims.claim_for(None))
    }

    /// The claim for these records, for a sink that makes them durable in parts. Ids that are not pending are left out.
    pub fn claim_for(&self, ids: &[RecordId]) -> Claim {
        self.claims.map_or_else(Claim::empty, |claims| claims.claim_for(Some(ids)))
    }
}

impl std::fmt::Debug for Flush<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flush").field("reason", &self.reason).finish_non_exhaustive()
    }
}

/// The error of a [`BoxSink`]: whatever the sink inside said.
#[derive(Debug)]
pub struct BoxSinkError(Box<dyn std::error::Error + Send + Sync>);

impl std::fmt::Display for BoxSinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for BoxSinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

trait DynSink: Send {
    fn write(&mut self, record: Record) -> BoxFuture<'_, Result<Written, BoxSinkError>>;
    fn flush<'a>(&'a mut self, flush: Flush<'a>) -> BoxFuture<'a, Result<Durable, BoxSinkError>>;
    fn recover<'a>(&'a mut self, source: &'a Source) -> BoxFuture<'a, Result<Recovered, BoxSinkError>>;
    fn recover_beyond<'a>(
        &'a mut self,
        source: &'a Source,
        checkpoint: &'a Coverage,
    ) -> BoxFuture<'a, Result<Recovered, BoxSinkError>>;
    fn records_in<'a>(
        &'a mut self,
        source: &'a Source,
        sequences: RangeInclusive<u64>,
    ) -> BoxFuture<'a, Result<Vec<RecordId>, BoxSinkError>>;
}

struct Erased<S>(S);

impl<S: Sink> DynSink for Erased<S> {
    fn write(&mut self, record: Record) -> BoxFuture<'_, Result<Written, BoxSinkError>> {
        Box::pin(async move { self.0.write(record).await.map_err(erase) })
    }
    fn flush<'a>(&'a mut self, flush: Flush<'a>) -> BoxFuture<'a, Result<Durable, BoxSinkError>> {
        Box::pin(async move { self.0.flush(flush).await.map_err(erase) })
    }
    fn recover<'a>(&'a mut self, source: &'a Source) -> BoxFuture<'a, Result<Recovered, BoxSinkError>> {
        Box::pin(async move { self.0.recover(source).await.map_err(erase) })
    }
    fn recover_beyond<'a>(
        &'a mut self,
        source: &'a Source,
        checkpoint: &'a Coverage,
    ) -> BoxFuture<'a, Result<Recovered, BoxSinkError>> {
        Box::pin(async move { self.0.recover_beyond(source, checkpoint).await.map_err(erase) })
    }
    fn records_in<'a>(
        &'a mut self,
        source: &'a Source,
        sequences: RangeInclusive<u64>,
    ) -> BoxFuture<'a, Result<Vec<RecordId>, BoxSinkError>> {
        Box::pin(async move { self.0.records_in(source, sequences).await.map_err(erase) })
    }
}

fn erase<E: std::error::Error + Send + Sync + 'static>(error: E) -> BoxSinkError {
    BoxSinkError(Box::new(error))
}

/// A sink chosen at run time. Costs one allocation a call.
pub struct BoxSink(Box<dyn DynSink>);

impl BoxSink {
    /// Hides which sink it is.
    pub fn new<S: Sink + 'static>(sink: S) -> Self {
        Self(Box::new(Erased(sink)))
    }
}

impl std::fmt::Debug for BoxSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoxSink").finish_non_exhaustive()
    }
}

impl Sink for BoxSink {
    type Error = BoxSinkError;

    async fn write(&mut self, record: Record) -> Result<Written, Self::Error> {
        self.0.write(record).await
    }
    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, Self::Error> {
        self.0.flush(flush).await
    }
    async fn recover(&mut self, source: &Source) -> Result<Recovered, Self::Error> {
        self.0.recover(source).await
    }
    async fn recover_beyond(&mut self, source: &Source, checkpoint: &Coverage) -> Result<Recovered, Self::Error> {
        self.0.recover_beyond(source, checkpoint).await
    }
    async fn records_in(
        &mut self,
        source: &Source,
        sequences: RangeInclusive<u64>,
    ) -> Result<Vec<RecordId>, Self::Error> {
        self.0.records_in(source, sequences).await
    }
}
