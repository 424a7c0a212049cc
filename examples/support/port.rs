//! Ports for servers that go down and come back.

use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::wheel::Result;

/// A port that stays ours: below the range the system hands out by itself, so that no connection takes it while the
/// server is down, and with a lock file, so that no other process that uses this file does.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub number: u16,
    _lock: File,
}

impl Port {
    /// One that nobody has.
    pub fn reserve() -> Result<Self> {
        const FIRST: u16 = 20_000;
        const COUNT: u16 = 12_000;
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let directory = std::env::temp_dir().join("replay-guard-ports");
        fs::create_dir_all(&directory)?;
        // Spread by process, so that test binaries rarely meet.
        let spread = u16::try_from(std::process::id() * 37 % u32::from(COUNT))?;
        for _ in 0..COUNT {
            let offset = (u32::from(spread) + u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % u32::from(COUNT);
            let number = FIRST + u16::try_from(offset)?;
            let lock = OpenOptions::new().create(true).append(true).open(directory.join(number.to_string()))?;
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        Err("no free port".into())
    }
}
