//! What a guard saves, and its bytes. Pure: bytes in, bytes out.
//!
//! The outer shape (magic, lengths, checksum) is the store's; this is the body. Spans are kept as differences, so that a
//! long archive stays small.

use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::claim::{Claim, ClaimError};
use crate::coverage::{Coverage, Span};
use crate::record::RecordId;
use crate::source::Source;
use crate::witness::{Witness, Witnesses};

/// The version of the body that this crate writes.
pub(crate) const VERSION: u16 = 1;

/// A random number made when a source is opened for the first time: in the checkpoint, in every claim and in the
/// consumer's metadata, so that what belongs together is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StateId(u128);

impl StateId {
    pub(crate) const fn new(number: u128) -> Self {
        Self(number)
    }
}

impl std::fmt::Display for StateId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What happened to this source since its first opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Totals {
    /// Records that became durable and were verified.
    pub archived: u64,
    /// Deliveries that were not written because they are archived.
    pub skipped: u64,
    /// Records that the sink rejected.
    pub rejected: u64,
    /// Records that lost their place in the stream to another message.
    pub orphaned: u64,
    /// Forks.
    pub forks: u64,
}

/// Counts on. What was read from a file may stand at its limit already.
pub(crate) const fn count(total: &mut u64, more: u64) {
    *total = total.saturating_add(more);
}

/// Sequences that the sink rejected; they count as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RejectedRun {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// A wish of the operator that changed the coverage, kept so that a later reader can tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Override {
    /// From this sequence on, coverage was forgotten.
    pub(crate) from: u64,
    /// Last covered sequence at that time.
    pub(crate) last: u64,
}

/// All that a guard knows of its source between two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) state_id: StateId,
    pub(crate) source: Source,
    pub(crate) created: i64,
    pub(crate) origin: u64,
    pub(crate) coverage: Coverage,
    pub(crate) witnesses: Witnesses,
    pub(crate) rejected: Vec<RejectedRun>,
    pub(crate) consumer: Option<String>,
    pub(crate) move_pending: Option<u64>,
    pub(crate) totals: Totals,
    pub(crate) overrides: Vec<Override>,
}

/// Why a body is not a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Written by another version of this crate.
    #[error("the checkpoint has format version {found}; this program reads version {expected}")]
    Version {
        /// The version this crate reads.
        expected: u16,
        /// The version found.
        found: u16,
    },
    /// Bytes are left over after the last field.
    #[error("the checkpoint ends after {read} bytes, but {found} are there")]
    Trailing {
        /// How many were read.
        read: usize,
        /// How many there are.
        found: usize,
    },
    /// The bytes do not follow the format.
    #[error("the checkpoint cannot be read: {0}")]
    Malformed(String),
    /// The fields contradict each other.
    #[error("the checkpoint contradicts itself: {0}")]
    Contradiction(&'static str),
}

/// Why a checkpoint could not be turned into bytes. No state is known in which this happens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the checkpoint cannot be encoded: {0}")]
pub struct EncodeError(String);

/// A span as differences: to the end of the span before, to its own first sequence, between its times.
#[derive(Serialize, Deserialize)]
struct WireSpan {
    gap: u64,
    length: u64,
    earliest: i64,
    width: u64,
    from_latest: u64,
    digest: u32,
}

#[derive(Serialize, Deserialize)]
struct WireWitness {
    step: u64,
    published: i64,
    digest: u32,
}

#[derive(Serialize, Deserialize)]
struct WireSource<'a> {
    domain: Option<&'a str>,
    stream: &'a str,
    #[serde(borrow)]
    filters: List<&'a str>,
}

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    state_id: StateId,
    #[serde(borrow)]
    source: WireSource<'a>,
    created: i64,
    origin: u64,
    spans: List<WireSpan>,
    witnesses: List<WireWitness>,
    rejected: List<RejectedRun>,
    consumer: Option<&'a str>,
    move_pending: Option<u64>,
    totals: Totals,
    overrides: List<Override>,
}

#[derive(Serialize, Deserialize)]
struct WireClaim<'a> {
    version: u16,
    state_id: StateId,
    #[serde(borrow)]
    source: WireSource<'a>,
    origin: u64,
    created: i64,
    spans: List<WireSpan>,
}

/// A list that grows as its elements are read: no room is made for what a length field only announces.
#[derive(Serialize)]
struct List<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<List<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = elements.next_element()? {
                    list.push(element);
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

fn wire_source(source: &Source) -> WireSource<'_> {
    let filters = List(source.filters().iter().map(String::as_str).collect());
    WireSource { domain: source.domain(), stream: source.stream(), filters }
}

fn source_from(wire: WireSource<'_>) -> Source {
    let source = Source::new(wire.stream).with_filters(wire.filters.0);
    match wire.domain {
        Some(domain) => source.with_domain(domain),
        None => source,
    }
}

fn to_bytes<T: Serialize>(value: &T) -> Result<Vec<u8>, EncodeError> {
    bincode::serde::encode_to_vec(value, bincode::config::standard()).map_err(|error| EncodeError(error.to_string()))
}

/// Text is borrowed from the bytes, which are there.
fn from_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let read = bincode::serde::borrow_decode_from_slice(bytes, bincode::config::standard());
    let (value, read) = read.map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if read == bytes.len() { Ok(value) } else { Err(DecodeError::Trailing { read, found: bytes.len() }) }
}

fn wire_spans<'a>(spans: impl Iterator<Item = &'a Span>) -> List<WireSpan> {
    let (mut end, mut time) = (0, 0_i64);
    let spans = spans
        .map(|span| {
            let wire = WireSpan {
                gap: span.first - end,
                length: span.last - span.first,
                earliest: span.earliest.wrapping_sub(time),
                width: span.latest.wrapping_sub(span.earliest).cast_unsigned(),
                from_latest: span.latest.wrapping_sub(span.witness.id.published).cast_unsigned(),
                digest: span.witness.digest,
            };
            (end, time) = (span.last, span.latest);
            wire
        })
        .collect();
    List(spans)
}

fn spans_from(List(wire): &List<WireSpan>) -> Result<Coverage, DecodeError> {
    const OVERFLOW: DecodeError = DecodeError::Contradiction("a span ends beyond the last possible sequence");
    let (mut end, mut time) = (0_u64, 0_i64);
    let mut spans = Vec::with_capacity(wire.len());
    for span in wire {
        let first = end.checked_add(span.gap).ok_or(OVERFLOW)?;
        let last = first.checked_add(span.length).ok_or(OVERFLOW)?;
        let earliest = time.wrapping_add(span.earliest);
        let latest = earliest.wrapping_add(span.width.cast_signed());
        let published = latest.wrapping_sub(span.from_latest.cast_signed());
        let witness = Witness { id: RecordId::new(last, published), digest: span.digest };
        spans.push(Span { first, last, earliest, latest, witness });
        (end, time) = (last, latest);
    }
    Coverage::from_spans(spans).ok_or(DecodeError::Contradiction("its spans overlap or a span's times do not fit"))
}

impl Checkpoint {
    /// The body, in version [`VERSION`].
    pub(crate) fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let (mut sequence, mut time) = (0, 0_i64);
        let witnesses = self
            .witnesses
            .iter()
            .map(|witness| {
                let RecordId { sequence: at, published } = witness.id;
                let wire = WireWitness {
                    step: at - sequence,
                    published: published.wrapping_sub(time),
                    digest: witness.digest,
                };
                (sequence, time) = (at, published);
                wire
            })
            .collect();
        to_bytes(&Wire {
            state_id: self.state_id,
            source: wire_source(&self.source),
            created: self.created,
            origin: self.origin,
            spans: wire_spans(self.coverage.spans()),
            witnesses: List(witnesses),
            rejected: List(self.rejected.clone()),
            consumer: self.consumer.as_deref(),
            move_pending: self.move_pending,
            totals: self.totals,
            overrides: List(self.overrides.clone()),
        })
    }

    /// Reads a body.
    pub(crate) fn decode(version: u16, body: &[u8]) -> Result<Self, DecodeError> {
        if version != VERSION {
            return Err(DecodeError::Version { expected: VERSION, found: version });
        }
        let wire: Wire<'_> = from_bytes(body)?;
        let (mut sequence, mut time) = (0_u64, 0_i64);
        let mut witnesses = Vec::with_capacity(wire.witnesses.0.len());
        for witness in &wire.witnesses.0 {
            sequence = sequence
                .checked_add(witness.step)
                .ok_or(DecodeError::Contradiction("a witness lies beyond the last possible sequence"))?;
            time = time.wrapping_add(witness.published);
            witnesses.push(Witness { id: RecordId::new(sequence, time), digest: witness.digest });
        }
        let coverage = spans_from(&wire.spans)?;
        let witnesses = Witnesses::from_sorted(witnesses)
            .ok_or(DecodeError::Contradiction("two witnesses stand at one sequence"))?;
        Ok(Self {
            state_id: wire.state_id,
            source: source_from(wire.source),
            created: wire.created,
            origin: wire.origin,
            coverage,
            witnesses,
            rejected: wire.rejected.0,
            consumer: wire.consumer.map(str::to_owned),
            move_pending: wire.move_pending,
            totals: wire.totals,
            overrides: wire.overrides.0,
        })
    }
}

/// What a claim says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimBody {
    pub(crate) state_id: StateId,
    pub(crate) source: Source,
    pub(crate) origin: u64,
    pub(crate) created: i64,
    pub(crate) coverage: Coverage,
}

impl ClaimBody {
    /// The claim. Where it would be too large, the smallest spans are left out: a claim may say less than is true.
    pub(crate) fn encode(mut self) -> Result<Claim, EncodeError> {
        loop {
            let wire = WireClaim {
                version: VERSION,
                state_id: self.state_id,
                source: wire_source(&self.source),
                origin: self.origin,
                created: self.created,
                spans: wire_spans(self.coverage.spans()),
            };
            let mut bytes = to_bytes(&wire)?;
            bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
            if bytes.len() <= Claim::MAX_LEN || self.coverage.is_empty() {
                return Ok(Claim(bytes.into()));
            }
            let mut sizes: Vec<_> = self.coverage.spans().map(|span| span.last - span.first).collect();
            sizes.sort_unstable();
            let enough = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
            let mut kept: Vec<_> = self.coverage.spans().copied().collect();
            kept.retain(|span| span.last - span.first > enough);
            if kept.is_empty() {
                kept = self.coverage.spans().rev().take(self.coverage.len() / 2).copied().collect();
                kept.reverse();
            }
            self.coverage = Coverage::from_spans(kept).unwrap_or_default();
        }
    }

    /// Reads a claim; `None` for an empty one.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, ClaimError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() > Claim::MAX_LEN {
            return Err(ClaimError(format!("{} bytes; at most {} are allowed", bytes.len(), Claim::MAX_LEN)));
        }
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(|| ClaimError("too short".into()))?;
        let (expected, found) = (u32::from_le_bytes(*crc), crc32fast::hash(body));
        if expected != found {
            return Err(ClaimError(format!("its checksum is {found:08x}, written was {expected:08x}")));
        }
        let wire: WireClaim<'_> = from_bytes(body).map_err(|error| ClaimError(error.to_string()))?;
        if wire.version != VERSION {
            return Err(ClaimError(format!("version {}; this program reads {VERSION}", wire.version)));
        }
        let coverage = spans_from(&wire.spans).map_err(|error| ClaimError(error.to_string()))?;
        let WireClaim { state_id, source, origin, created, .. } = wire;
        Ok(Some(Self { state_id, source: source_from(source), origin, created, coverage }))
    }
}

#[cfg(test)]
mod tests;
