//! A store in one file with two slots.

/// To be written.
#[derive(Debug)]
pub struct FileStore;
