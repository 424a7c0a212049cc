//! Evidence of what one message was.

use crate::record::RecordId;

/// A record id with a digest of the message: enough to tell, when the stream is read back, whether the message that
/// stands at a sequence today is the one that was archived.
///
/// The digest is the crc32 of the subject, a zero byte and the payload. Headers are left out: what is delivered and
/// what is read back differ in them (repeated names, `Nats-Pin-Id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Witness {
    /// Sequence and publish time.
    pub id: RecordId,
    /// crc32 over subject, a zero byte, payload.
    pub digest: u32,
}

impl Witness {
    /// The witness of a message with this id, subject and payload.
    pub fn new(id: RecordId, subject: &str, payload: &[u8]) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(subject.as_bytes());
        hasher.update(&[0]);
        hasher.update(payload);
        Self { id, digest: hasher.finalize() }
    }

    /// The sequence of its record.
    pub const fn sequence(&self) -> u64 {
        self.id.sequence
    }
}

/// Witnesses below the newest one, kept so that a fork can be found: near the newest one densely, below at exponentially
/// growing distance. What a fork makes us write again is then bounded by its own length, whatever the archive's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Witnesses {
    /// Sorted by sequence, one per sequence.
    kept: Vec<Witness>,
}

impl Witnesses {
    /// From what a checkpoint held; `None` if they are not sorted.
    pub(crate) fn from_sorted(kept: Vec<Witness>) -> Option<Self> {
        kept.windows(2).all(|pair| matches!(pair, [a, b] if a.sequence() < b.sequence())).then_some(Self { kept })
    }

    /// All of them, lowest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Witness> + ExactSizeIterator {
        self.kept.iter()
    }

    /// The highest one.
    pub(crate) fn newest(&self) -> Option<Witness> {
        self.kept.last().copied()
    }

    /// The highest one with a sequence in `low..below`.
    pub(crate) fn newest_in(&self, low: u64, below: u64) -> Option<Witness> {
        let end = self.kept.partition_point(|witness| witness.sequence() < below);
        end.checked_sub(1).and_then(|index| self.kept.get(index)).copied().filter(|witness| witness.sequence() >= low)
    }

    /// Adds witnesses that were verified and thins out the older ones. A newer one of the same sequence replaces.
    pub(crate) fn extend(&mut self, more: impl IntoIterator<Item = Witness>) {
        let mut sorted = true;
        for witness in more {
            sorted &= self.kept.last().is_none_or(|last| last.sequence() < witness.sequence());
            self.kept.push(witness);
        }
        if !sorted {
            // Stable: of one sequence the one that came last stays last, and is kept.
            self.kept.sort_by_key(Witness::sequence);
            self.kept.reverse();
            self.kept.dedup_by_key(|witness| witness.sequence());
            self.kept.reverse();
        }
        self.thin();
    }

    /// Removes all whose sequence is above this one.
    pub(crate) fn cut_above(&mut self, sequence: u64) {
        self.kept.retain(|witness| witness.sequence() <= sequence);
    }

    /// Removes those for which this does not hold.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Witness) -> bool) {
        self.kept.retain(keep);
    }

    /// Keeps one in each quarter of each power of two of the distance from the newest: at most four per doubling.
    fn thin(&mut self) {
        let Some(newest) = self.newest() else { return };
        let mut slot_before = None;
        // The furthest of each: it is the next to grow old. Keeping the nearest would leave nothing to grow old at all.
        self.kept.retain(|witness| {
            let distance = newest.sequence() - witness.sequence();
            let power = distance.checked_ilog2().unwrap_or(0);
            let slot = (power, distance >> power.saturating_sub(2));
            let keep = slot_before != Some(slot);
            slot_before = Some(slot);
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn witness(sequence: u64) -> Witness {
        Witness { id: RecordId::new(sequence, 0), digest: 0 }
    }

    #[test]
    fn the_digest_tells_subject_and_payload_apart() {
        let id = RecordId::new(1, 1);
        assert_ne!(Witness::new(id, "a", b"bc"), Witness::new(id, "ab", b"c"));
        // crc32 (ISO-HDLC) of "a", NUL, "b".
        assert_eq!(Witness::new(id, "a", b"b").digest, 0x15e8_7871);
    }

    #[test]
    fn a_million_records_leave_few_witnesses_and_one_near_every_distance() {
        let mut witnesses = Witnesses::default();
        for flush in 0..1_000_u64 {
            witnesses.extend((1..=1_000).map(|n| witness(flush * 1_000 + n)));
        }
        assert!(witnesses.iter().len() < 90, "{}", witnesses.iter().len());
        let newest = 1_000_000;
        for distance in (0..newest).step_by(997) {
            let found = witnesses.newest_in(0, newest - distance + 1).map_or(0, |w| w.sequence());
            let further = newest - found;
            assert!(further <= distance * 2 + 8, "fork at distance {distance} goes back to {further}");
        }
    }

    #[test]
    fn the_newer_witness_of_a_sequence_replaces() {
        let mut witnesses = Witnesses::default();
        witnesses.extend([witness(1), witness(5)]);
        witnesses.extend([Witness { digest: 9, ..witness(5) }]);
        assert_eq!(witnesses.newest().map(|w| w.digest), Some(9));
        assert_eq!(witnesses.iter().len(), 2);
    }
}
