//! A store that forgets with the process.

/// To be written.
#[derive(Debug)]
pub struct MemoryStore;
