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
    #[inline]
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

/// How many flush boundaries are kept before they are thinned out.
const BOUNDARIES: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    witness: Witness,
    /// The newest record of a flush.
    boundary: bool,
}

/// Witnesses below the newest one, kept so that a fork can be found: the newest record of each recent flush, and below, and
/// inside the newest flush, at exponentially growing distance. What a fork makes us write again is then bounded: by one
/// flush if it took away no more than the recent ones, else by its own length, whatever the archive's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Witnesses {
    /// Sorted by sequence, one per sequence.
    kept: Vec<Kept>,
}

impl Witnesses {
    /// From what a checkpoint held; `None` if they are not sorted.
    pub(crate) fn from_sorted(kept: Vec<Witness>) -> Option<Self> {
        let sorted = kept.windows(2).all(|pair| matches!(pair, [a, b] if a.sequence() < b.sequence()));
        sorted.then(|| Self { kept: kept.into_iter().map(|witness| Kept { witness, boundary: true }).collect() })
    }

    /// All of them, lowest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Witness> + ExactSizeIterator {
        self.kept.iter().map(|kept| &kept.witness)
    }

    /// The highest one.
    pub(crate) fn newest(&self) -> Option<Witness> {
        self.kept.last().map(|kept| kept.witness)
    }

    /// The highest one with a sequence in `low..below`.
    pub(crate) fn newest_in(&self, low: u64, below: u64) -> Option<Witness> {
        let end = self.kept.partition_point(|kept| kept.witness.sequence() < below);
        let newest = end.checked_sub(1).and_then(|index| self.kept.get(index)).map(|kept| kept.witness);
        newest.filter(|witness| witness.sequence() >= low)
    }

    /// Whether a record may be of the life that these are of, with one stream's times: published no earlier than the one at or
    /// below it, no later than the one at or above it, and the very one where there is one of its sequence.
    pub(crate) fn agree(&self, id: RecordId) -> bool {
        let at = self.kept.partition_point(|kept| kept.witness.sequence() < id.sequence);
        let above = self.kept.get(at).map(|kept| kept.witness.id);
        let below = at.checked_sub(1).and_then(|below| self.kept.get(below)).map(|kept| kept.witness.id);
        below.is_none_or(|below| below.published <= id.published)
            && match above {
                Some(above) if above.sequence == id.sequence => above == id,
                Some(above) => id.published <= above.published,
                None => true,
            }
    }

    /// Whether this very one is among them.
    pub(crate) fn holds(&self, witness: &Witness) -> bool {
        self.newest_in(witness.sequence(), witness.sequence().saturating_add(1)).as_ref() == Some(witness)
    }

    /// Adds the records of one flush, lowest first, which were verified, and thins out. A newer witness of a sequence
    /// replaces the older.
    pub(crate) fn extend(&mut self, more: impl IntoIterator<Item = Witness>) {
        let mut sorted = true;
        let before = self.kept.len();
        for witness in more {
            sorted &= self.kept.last().is_none_or(|last| last.witness.sequence() < witness.sequence());
            self.kept.push(Kept { witness, boundary: false });
        }
        if self.kept.len() > before
            && let Some(last) = self.kept.last_mut()
        {
            last.boundary = true;
        }
        if !sorted {
            // Stable: of one sequence the one that came last stays last, and is kept.
            self.kept.sort_by_key(|kept| kept.witness.sequence());
            self.kept.reverse();
            self.kept.dedup_by_key(|kept| kept.witness.sequence());
            self.kept.reverse();
        }
        self.thin();
    }

    /// Adds one, wherever it belongs, that is kept as long as a flush boundary is.
    pub(crate) fn insert(&mut self, witness: Witness) {
        let at = self.kept.partition_point(|kept| kept.witness.sequence() < witness.sequence());
        if self.kept.get(at).is_some_and(|kept| kept.witness.sequence() == witness.sequence()) {
            self.kept.remove(at);
        }
        self.kept.insert(at, Kept { witness, boundary: true });
    }

    /// Removes those for which this does not hold.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Witness) -> bool) {
        self.kept.retain(|kept| keep(&kept.witness));
    }

    /// Keeps the recent boundaries, and one in each eighth of each power of two of the distance from the newest.
    fn thin(&mut self) {
        let Some(newest) = self.newest() else { return };
        let recent = self.kept.iter().rev().filter(|kept| kept.boundary).nth(BOUNDARIES - 1);
        let recent = recent.map_or(0, |kept| kept.witness.sequence());
        let mut slot_before = None;
        self.kept.retain(|kept| {
            let sequence = kept.witness.sequence();
            let distance = newest.sequence() - sequence;
            let power = distance.checked_ilog2().unwrap_or(0);
            let slot = (power, distance >> power.saturating_sub(3));
            // The furthest of each: it is the next to grow old. Keeping the nearest would leave nothing to grow old at all.
            let first = slot_before != Some(slot);
            slot_before = Some(slot);
            first || (kept.boundary && sequence >= recent)
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
    fn two_million_records_leave_few_witnesses_and_one_near_every_distance() {
        let mut witnesses = Witnesses::default();
        for flush in 0..2_000_u64 {
            witnesses.extend((1..=1_000).map(|n| witness(flush * 1_000 + n)));
        }
        assert!(witnesses.iter().len() < BOUNDARIES + 8 * 20, "{}", witnesses.iter().len());
        for flush in 2_000 - BOUNDARIES as u64..2_000 {
            let boundary = (flush + 1) * 1_000;
            assert_eq!(
                witnesses.newest_in(0, boundary + 1),
                Some(witness(boundary)),
                "a fork exactly there costs nothing"
            );
        }
        let newest = 2_000_000;
        for distance in (0..newest).step_by(997) {
            let found = witnesses.newest_in(0, newest - distance + 1).map_or(0, |w| w.sequence());
            let further = newest - found;
            let bound = (distance + distance / 2).max(distance + 1_000);
            assert!(further <= bound, "fork at distance {distance} goes back to {further}");
        }
        for distance in 0..1_000 {
            let found = witnesses.newest_in(0, newest - distance + 1).map_or(0, |w| w.sequence());
            let further = newest - found;
            assert!(further <= distance + distance / 8, "inside a flush, {distance} goes back to {further}");
        }
    }

    #[test]
    fn as_many_boundaries_are_kept_as_are_promised_and_no_more() {
        let mut witnesses = Witnesses::default();
        (1..=5_000).for_each(|sequence| witnesses.extend([witness(sequence)]));
        let oldest = 5_000 - BOUNDARIES as u64 + 1;
        assert!((oldest..=5_000).all(|sequence| witnesses.holds(&witness(sequence))));
        assert!(!witnesses.holds(&witness(oldest - 1)));
    }

    #[test]
    fn the_newer_witness_of_a_sequence_replaces() {
        let mut witnesses = Witnesses::default();
        witnesses.extend([witness(1), witness(5)]);
        witnesses.extend([Witness { digest: 9, ..witness(5) }]);
        assert_eq!(witnesses.newest().map(|w| w.digest), Some(9));
        assert_eq!(witnesses.iter().len(), 2);
    }

    #[test]
    fn what_a_checkpoint_held_must_be_sorted() {
        let kept = |sequences: &[u64]| Witnesses::from_sorted(sequences.iter().map(|n| witness(*n)).collect());
        let whole = kept(&[1, 2, 9]).expect("sorted");
        assert!(whole.iter().copied().eq([witness(1), witness(2), witness(9)]));
        assert_eq!((kept(&[1, 9, 2]), kept(&[1, 1]), kept(&[])), (None, None, Some(Witnesses::default())));
    }

    #[test]
    fn each_is_found_by_the_bounds_that_hold_it() {
        let mut witnesses = Witnesses::default();
        witnesses.extend([3, 5, 8].map(witness));
        let found = |low, below| witnesses.newest_in(low, below).map(|w| w.sequence());
        for (low, below, expected) in
            [(0, 3, None), (0, 4, Some(3)), (3, 5, Some(3)), (4, 5, None), (5, 8, Some(5)), (0, u64::MAX, Some(8))]
        {
            assert_eq!(found(low, below), expected, "{low}..{below}");
        }
        assert!([3, 5, 8].iter().all(|n| witnesses.holds(&witness(*n))) && !witnesses.holds(&witness(4)));
        assert!(!witnesses.holds(&Witness { digest: 1, ..witness(5) }));
        witnesses.retain(|witness| witness.sequence() != 5);
        assert!(witnesses.iter().copied().eq([witness(3), witness(8)]));
    }

    #[test]
    fn what_lies_out_of_their_times_is_of_another_life() {
        let mut witnesses = Witnesses::default();
        assert!(witnesses.agree(RecordId::new(3, 3)), "nothing is known");
        witnesses.extend([(10, 100), (20, 200)].map(|(n, at)| Witness { id: RecordId::new(n, at), digest: 0 }));
        let agrees = [(9, 100), (10, 100), (11, 100), (19, 200), (20, 200), (21, 200), (21, 900)];
        let differs = [(9, 101), (10, 99), (10, 101), (11, 99), (19, 201), (20, 199), (21, 199)];
        assert!(agrees.iter().all(|(n, at)| witnesses.agree(RecordId::new(*n, *at))));
        assert!(!differs.iter().any(|(n, at)| witnesses.agree(RecordId::new(*n, *at))));
    }

    #[test]
    fn records_in_any_order_are_sorted() {
        let mut witnesses = Witnesses::default();
        witnesses.extend([9, 7, 2].map(witness));
        witnesses.extend([8, 1].map(witness));
        assert!(witnesses.iter().map(Witness::sequence).eq([1, 2, 7, 8, 9]));
    }

    #[test]
    fn a_flush_boundary_is_the_newest_record_of_a_flush_that_had_some() {
        let boundaries = |witnesses: &Witnesses| -> Vec<u64> {
            witnesses.kept.iter().filter(|kept| kept.boundary).map(|kept| kept.witness.sequence()).collect()
        };
        let mut witnesses = Witnesses::default();
        witnesses.extend([1, 2].map(witness));
        witnesses.extend([3, 4, 5].map(witness));
        assert_eq!(boundaries(&witnesses), [2, 5]);
        witnesses.retain(|witness| witness.sequence() < 5);
        witnesses.extend([]);
        assert_eq!(boundaries(&witnesses), [2]);
    }
}
