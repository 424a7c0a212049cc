//! What any bytes must not do: panic, allocate beyond their own size, or come back as something else. Run by the fuzzer, and
//! over the corpus by an ordinary test.

mod hostile;

pub use hostile::{checkpoint, claim, names, slots};
