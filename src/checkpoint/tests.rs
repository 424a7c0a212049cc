//! The bytes, as released. A change of a constant here is a change of the format.

use super::*;

fn witness(sequence: u64, published: i64, digest: u32) -> Witness {
    Witness { id: RecordId::new(sequence, published), digest }
}

fn coverage() -> Coverage {
    let span = |first, last, earliest, latest, published, digest| Span {
        first,
        last,
        earliest,
        latest,
        witness: witness(last, published, digest),
    };
    Coverage::from_spans(vec![
        span(3, 10, 1_700_000_000_000_000_000, 1_700_000_000_000_000_900, 1_700_000_000_000_000_800, 0xdead_beef),
        span(11, 11, -5, -5, -5, 1),
        span(70_000, u64::MAX, i64::MIN, i64::MAX, 0, u32::MAX),
    ])
    .expect("these spans are sane")
}

/// One in which every field is filled.
fn filled() -> Checkpoint {
    Checkpoint {
        state_id: StateId::new(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        source: Source::new("ORDERS").with_filters(["orders.b", "orders.a"]).with_domain("hub"),
        created: 1_600_000_000_000_000_001,
        origin: 3,
        coverage: coverage(),
        witnesses: Witnesses::from_sorted(vec![witness(4, 7, 8), witness(10, i64::MAX, 9), witness(u64::MAX, -1, 10)])
            .expect("these witnesses are sorted"),
        rejected: vec![RejectedRun { first: 5, last: 6 }],
        consumer: Some("NAME-rg".into()),
        move_pending: Some(12),
        totals: Totals { archived: 1, skipped: 2, rejected: 3, orphaned: 4, forks: 5 },
        overrides: vec![Override { from: 9, last: 300 }],
    }
}

fn claim() -> ClaimBody {
    ClaimBody { state_id: StateId::new(7), source: Source::new("S"), origin: 1, created: -3, coverage: coverage() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

const CHECKPOINT: &str = "\
    fe7766554433221100efcdab89674523010103687562064f524445525302086f72646572732e61086f72646572732e62fd02\
    0040b10baf682c03030307fd0000546cfc392f2ffb840364fcefbeadde0100fd1107546cfc392f2f000001fc65110100fd8f\
    eefefffffffffffdf5fffffffffffffffdfffffffffffffffffdffffffffffffff7ffcffffffff03040e0806fdf0ffffffff\
    ffffff09fdf5fffffffffffffffdffffffffffffffff0a01050601074e414d452d7267010c01020304050109fb2c01";
const CLAIM: &str = "\
    0107000153000105030307fd0000546cfc392f2ffb840364fcefbeadde0100fd1107546cfc392f2f000001fc65110100fd8f\
    eefefffffffffffdf5fffffffffffffffdfffffffffffffffffdffffffffffffff7ffcffffffff3f3a6e6a";

#[test]
fn c5_a_checkpoint_has_the_bytes_it_always_had() {
    let body = filled().encode().expect("it can be encoded");
    assert_eq!(hex(&body), CHECKPOINT);
    assert_eq!(Checkpoint::decode(VERSION, &body), Ok(filled()));
}

#[test]
fn c5_a_claim_has_the_bytes_it_always_had() {
    let bytes = claim().encode().expect("it can be encoded");
    assert_eq!(hex(bytes.as_bytes()), CLAIM);
    assert_eq!(ClaimBody::decode(bytes.as_bytes()), Ok(Some(claim())));
    assert_eq!(ClaimBody::decode(&[]), Ok(None));
}

#[test]
fn another_version_is_named_with_what_was_expected() {
    let error = Checkpoint::decode(2, &[]).expect_err("version 2 is unknown");
    assert_eq!(error, DecodeError::Version { expected: 1, found: 2 });
}

/// What decodes must keep the invariants that the rest relies on, and come out the same.
fn sane(checkpoint: &Checkpoint) {
    let spans: Vec<Span> = checkpoint.coverage.spans().copied().collect();
    assert!(Coverage::from_spans(spans).is_some());
    assert!(Witnesses::from_sorted(checkpoint.witnesses.iter().copied().collect()).is_some());
    let again = checkpoint.encode().expect("what was decoded can be encoded");
    assert_eq!(Checkpoint::decode(VERSION, &again).as_ref(), Ok(checkpoint));
}

#[test]
fn a_flipped_bit_anywhere_gives_an_error_or_a_sane_checkpoint() {
    let body = filled().encode().expect("it can be encoded");
    let mut decoded = 0;
    for bit in 0..body.len() * 8 {
        let mut broken = body.clone();
        if let Some(byte) = broken.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        if let Ok(checkpoint) = Checkpoint::decode(VERSION, &broken) {
            assert_ne!(checkpoint, filled(), "bit {bit} says nothing");
            sane(&checkpoint);
            decoded += 1;
        }
    }
    assert!(decoded > 0, "some bits only change a value; the store's checksum covers those");
}

#[test]
fn every_shorter_or_longer_body_is_an_error() {
    let body = filled().encode().expect("it can be encoded");
    for length in 0..body.len() {
        let cut = body.get(..length).unwrap_or_default();
        assert!(Checkpoint::decode(VERSION, cut).is_err(), "{length} of {}", body.len());
    }
    let mut longer = body.clone();
    longer.push(0);
    let expected = DecodeError::Trailing { read: body.len(), found: longer.len() };
    assert_eq!(Checkpoint::decode(VERSION, &longer), Err(expected));
}

#[test]
fn every_changed_or_cut_claim_is_an_error() {
    let bytes = claim().encode().expect("it can be encoded");
    let bytes = bytes.as_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut broken = bytes.to_vec();
        if let Some(byte) = broken.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        assert!(Claim::from_bytes(broken).is_err(), "bit {bit}");
    }
    for length in 1..bytes.len() {
        assert!(Claim::from_bytes(bytes.get(..length).unwrap_or_default().to_vec()).is_err(), "{length}");
    }
}

/// A claim of one span, encoded to this many bytes.
fn claim_of(length: usize) -> Claim {
    let coverage = Coverage::from_spans(vec![Span::of(1, witness(9, 5, 1))]).expect("a sane span");
    let with = |name: usize| ClaimBody { source: Source::new("s".repeat(name)), coverage: coverage.clone(), ..claim() };
    let encode = |name| with(name).encode().expect("it can be encoded");
    // The length of a long name takes more bytes than that of a short one.
    let around = encode(60_000).as_bytes().len() - 60_000;
    encode(length - around)
}

#[test]
fn a_claim_may_be_as_long_as_its_limit() {
    let longest = claim_of(Claim::MAX_LEN);
    assert_eq!((Claim::MAX_LEN, longest.as_bytes().len()), (65_536, 65_536));
    let decoded = ClaimBody::decode(longest.as_bytes()).expect("it is whole").expect("it is not empty");
    assert_eq!(decoded.coverage.len(), 1);
    assert_eq!(Claim::from_bytes(longest.as_bytes().to_vec()), Ok(longest));
    let longer = claim_of(Claim::MAX_LEN + 100);
    let error = Claim::from_bytes(longer.as_bytes().to_vec()).expect_err("no span is left, and it is too long");
    assert!(error.to_string().contains("at most 65536"), "{error}");
}

#[test]
fn a_checkpoint_as_large_as_a_file_can_hold_is_read() {
    let empty = Checkpoint { consumer: Some(String::new()), ..filled() }.encode().expect("it is sane").len();
    let name = "x".repeat(crate::FileStore::MAX_BODY - empty - 4);
    let largest = Checkpoint { consumer: Some(name), ..filled() };
    let body = largest.encode().expect("it is sane");
    assert_eq!((body.len(), crate::FileStore::MAX_BODY), (67_108_836, 67_108_836));
    assert!(Checkpoint::decode(VERSION, &body) == Ok(largest));
}

#[test]
fn a_length_field_that_lies_takes_no_memory() {
    // State id 0, no domain, a stream name of 2^62 bytes.
    let mut body = vec![0, 0, 253];
    body.extend((1_u64 << 62).to_le_bytes());
    assert!(matches!(Checkpoint::decode(VERSION, &body), Err(DecodeError::Malformed(_))));
}

#[test]
fn a_claim_of_many_spans_says_less_and_stays_within_its_limit() {
    let mut coverage = Coverage::default();
    for sequence in 1..=20_000_u64 {
        let length = if sequence % 100 == 0 { 5 } else { 1 };
        let last = sequence * 10 + length;
        let time = i64::try_from(last).unwrap_or(0) * 1_000_000_000;
        coverage.insert(Span::of(sequence * 10, witness(last, time, 0x8000_0000)), 1);
    }
    let encoded = ClaimBody { coverage: coverage.clone(), ..claim() }.encode().expect("it can be encoded");
    assert!(encoded.as_bytes().len() <= Claim::MAX_LEN);
    let decoded = ClaimBody::decode(encoded.as_bytes()).expect("it is whole").expect("it is not empty");
    assert!(decoded.coverage.len() > 100, "{}", decoded.coverage.len());
    for span in decoded.coverage.spans() {
        assert_eq!(coverage.find(span.last), Some(span));
    }
    assert!(decoded.coverage.spans().filter(|span| span.last - span.first == 5).count() == 200, "the largest are kept");
}

/// What is left of a claim of spans of these lengths, and how many bytes it takes.
fn shortened(lengths: impl Iterator<Item = u64>) -> (Vec<Span>, Vec<Span>, usize) {
    let (mut coverage, mut at) = (Coverage::default(), 1_u64);
    for length in lengths {
        let last = at + length;
        let time = i64::try_from(last).unwrap_or(0) * 1_000_000_000;
        coverage.insert(Span::of(at, witness(last, time, 0x8000_0000)), 1);
        at = last + 2;
    }
    let all = coverage.spans().copied().collect();
    let encoded = ClaimBody { coverage, ..claim() }.encode().expect("it can be encoded");
    let decoded = ClaimBody::decode(encoded.as_bytes()).expect("it is whole").expect("it is not empty");
    (all, decoded.coverage.spans().copied().collect(), encoded.as_bytes().len())
}

#[test]
fn a_shortened_claim_keeps_the_largest_spans_and_at_least_a_third_of_its_room() {
    let (all, kept, length) = shortened((0..6_000).map(|n| n * 7_919 % 6_007));
    assert!((Claim::MAX_LEN / 3..=Claim::MAX_LEN).contains(&length), "{length}");
    let size = |span: &Span| span.last - span.first;
    let least = kept.iter().map(size).min();
    let most = all.iter().filter(|span| !kept.contains(span)).map(size).max();
    assert!(most.is_some() && most < least, "{most:?} {least:?}");
}

#[test]
fn a_shortened_claim_of_equal_spans_keeps_the_newest() {
    for length in [0, 3] {
        let (all, kept, bytes) = shortened((0..6_000).map(|_| length));
        assert!((Claim::MAX_LEN / 3..=Claim::MAX_LEN).contains(&bytes), "{bytes}");
        assert!(all.ends_with(&kept));
    }
}
