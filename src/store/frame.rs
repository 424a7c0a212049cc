//! The frame around the bytes of one slot. Pure: nothing here touches a disk.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 2 | version of the body |
//! | 10 | 2 | slot size, as the power of two |
//! | 12 | 8 | save counter |
//! | 20 | 4 | body length |
//! | 24 | n | body |
//! | 24 + n | 4 | crc32 of all bytes before it |
//!
//! Numbers are little endian.

use bytes::Bytes;

/// As in PNG: a byte above 127, the name, CR LF, the control byte that ends a text, LF. A transfer that means to
/// carry text changes at least one of them.
pub(super) const MAGIC: [u8; 8] = *b"\x89RGC\r\n\x1a\n";
/// Bytes before the body.
pub(super) const HEADER: usize = 24;
/// Bytes around the body.
pub(super) const OVERHEAD: usize = HEADER + 4;
/// What is written at once is a multiple of this.
pub(super) const BLOCK: usize = 1 << MIN_LOG2;
/// The smallest slot.
pub(super) const MIN_LOG2: u16 = 12;
/// The largest slot.
pub(super) const MAX_LOG2: u16 = 26;
/// The largest body.
pub(super) const MAX_BODY: usize = (1 << MAX_LOG2) - OVERHEAD;
/// The highest save counter.
pub(super) const MAX_COUNTER: u64 = u64::MAX >> 1;

/// What stands before a body; every field is within its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u16,
    pub(super) log2: u16,
    pub(super) counter: u64,
    /// Length of the body.
    pub(super) length: usize,
}

impl Header {
    /// Reads a header; `None` for one that is all zero. The error says what was expected and what was found.
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Result<Option<Self>, String> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut rest = bytes.as_slice();
        let magic: [u8; 8] = take(&mut rest);
        if magic != MAGIC {
            return Err(format!("expected magic {}, found {}", MAGIC.escape_ascii(), magic.escape_ascii()));
        }
        let version = u16::from_le_bytes(take(&mut rest));
        let log2 = u16::from_le_bytes(take(&mut rest));
        let counter = u64::from_le_bytes(take(&mut rest));
        let length = u32::from_le_bytes(take(&mut rest));
        if !(MIN_LOG2..=MAX_LOG2).contains(&log2) {
            return Err(format!("expected a slot size of 2^{MIN_LOG2} to 2^{MAX_LOG2}, found 2^{log2}"));
        }
        if !(1..=MAX_COUNTER).contains(&counter) {
            return Err(format!("expected a save counter of 1 to {MAX_COUNTER}, found {counter}"));
        }
        let most = (1_usize << log2) - OVERHEAD;
        match usize::try_from(length) {
            Ok(length @ 1..) if length <= most => Ok(Some(Self { version, log2, counter, length })),
            _ => Err(format!("expected a body of 1 to {most} bytes in a slot of 2^{log2}, found {length}")),
        }
    }

    /// Length of the whole frame.
    pub(super) const fn frame(&self) -> usize {
        self.length + OVERHEAD
    }
}

/// The body of a frame whose header was parsed. The error says what was expected and what was found.
pub(super) fn body(header: &Header, mut frame: Vec<u8>) -> Result<Bytes, String> {
    let Some((before, sum)) = frame.split_last_chunk::<4>().filter(|_| frame.len() == header.frame()) else {
        return Err(format!("expected a frame of {} bytes, found {}", header.frame(), frame.len()));
    };
    let (expected, found) = (crc32fast::hash(before), u32::from_le_bytes(*sum));
    if expected != found {
        return Err(format!("expected checksum {expected:08x}, found {found:08x}"));
    }
    frame.truncate(HEADER + header.length);
    Ok(Bytes::from(frame).slice(HEADER..))
}

/// A frame, filled with zeros to whole blocks. `None` where the body is empty or does not fit the slot.
pub(super) fn encode(log2: u16, counter: u64, version: u16, body: &[u8]) -> Option<Vec<u8>> {
    let room = (1_usize << log2).checked_sub(OVERHEAD)?;
    if body.is_empty() || body.len() > room {
        return None;
    }
    let length = u32::try_from(body.len()).ok()?;
    let mut frame = Vec::with_capacity((body.len() + OVERHEAD).next_multiple_of(BLOCK));
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&version.to_le_bytes());
    frame.extend_from_slice(&log2.to_le_bytes());
    frame.extend_from_slice(&counter.to_le_bytes());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(body);
    let sum = crc32fast::hash(&frame);
    frame.extend_from_slice(&sum.to_le_bytes());
    frame.resize(frame.len().next_multiple_of(BLOCK), 0);
    Some(frame)
}

/// The smallest slot that holds a body of this length. `None` where none does.
pub(super) fn slot_for(body: usize) -> Option<u16> {
    (MIN_LOG2..=MAX_LOG2).find(|log2| body <= (1_usize << log2) - OVERHEAD)
}

/// Takes a field off the front. The callers read a header of fixed size, whose fields add up to it.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk::<N>() {
        Some((field, tail)) => {
            *rest = tail;
            *field
        }
        None => [0; N],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(frame: &[u8]) -> Result<Option<(Header, Bytes)>, String> {
        let Some(header) = Header::parse(frame[..HEADER].try_into().unwrap())? else {
            return Ok(None);
        };
        Ok(Some((header, body(&header, frame[..header.frame().min(frame.len())].to_vec())?)))
    }

    #[test]
    fn a_frame_comes_back() {
        for length in [1, 2, 4067, 4068] {
            let bytes = vec![7; length];
            let frame = encode(MIN_LOG2, 9, 3, &bytes).unwrap();
            assert_eq!(frame.len(), 4096);
            let (header, body) = read(&frame).unwrap().unwrap();
            assert_eq!((header.version, header.counter, header.log2), (3, 9, MIN_LOG2));
            assert_eq!(body, bytes);
        }
        assert_eq!(read(&[0; 4096]), Ok(None));
    }

    #[test]
    fn the_limits_are_those_of_the_format() {
        assert_eq!((HEADER, OVERHEAD, BLOCK), (24, 28, 4_096));
        assert_eq!((MAX_BODY, MAX_COUNTER), (67_108_836, 9_223_372_036_854_775_807));
    }

    #[test]
    fn a_body_that_does_not_fit_is_not_encoded() {
        assert_eq!(encode(MIN_LOG2, 1, 1, &[0; 4069]), None);
        assert_eq!(encode(MIN_LOG2, 1, 1, &[]), None);
        assert_eq!(slot_for(4068), Some(12));
        assert_eq!(slot_for(4069), Some(13));
        assert_eq!(slot_for(MAX_BODY), Some(MAX_LOG2));
        assert_eq!(slot_for(MAX_BODY + 1), None);
    }

    #[test]
    fn each_bound_is_checked_and_named() {
        let good = encode(MIN_LOG2, 1, 1, b"x").unwrap();
        let with = |at: usize, field: &[u8]| {
            let mut frame = good.clone();
            frame[at..at + field.len()].copy_from_slice(field);
            read(&frame).unwrap_err()
        };
        assert!(with(0, b"\x89RGC\n\x1a\n").starts_with("expected magic"));
        for log2 in [0_u16, 11, 27, 64, u16::MAX] {
            assert!(with(10, &log2.to_le_bytes()).ends_with(&format!("found 2^{log2}")));
        }
        for counter in [0, MAX_COUNTER + 1, u64::MAX] {
            assert!(with(12, &counter.to_le_bytes()).ends_with(&format!("found {counter}")));
        }
        for length in [0_u32, 4069, u32::MAX] {
            assert!(with(20, &length.to_le_bytes()).ends_with(&format!("found {length}")));
        }
        assert!(with(24, b"y").starts_with("expected checksum"));
    }
}
