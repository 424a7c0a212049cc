//! The claims of an archive, the newest first, in bounded memory.

use std::ops::ControlFlow;

use replay_guard::{Claim, RecordId, Recovered};

/// How many bytes of claims are kept in memory, the newest first: some hundred thousand files that were written in order.
pub const MAX_CLAIMS: usize = 16 << 20;

/// What an archive says it holds.
#[derive(Debug, Default)]
pub struct Claims {
    /// Newest first.
    pub kept: Vec<Claim>,
    /// The newest record of a file that was left out since there are too many claims.
    pub left_out: Option<RecordId>,
    bytes: usize,
}

impl Claims {
    /// Keeps the claim of the next older file, which ends with `last`; breaks where there are too many.
    pub fn push(&mut self, last: RecordId, claim: Claim, max_bytes: usize) -> ControlFlow<()> {
        self.bytes += claim.as_bytes().len();
        if self.bytes > max_bytes {
            tracing::warn!(through = %last, max_bytes, "the archive has too many claims, the older ones are left out");
            self.left_out = Some(last);
            return ControlFlow::Break(());
        }
        self.kept.push(claim);
        ControlFlow::Continue(())
    }

    /// What the guard is told; `from`: where the claims speak for everything.
    pub fn recovered(self, from: Option<u64>) -> Recovered {
        let Self { kept: claims, left_out, .. } = self;
        match from {
            None => Recovered::AtLeast(claims),
            // Of what was left out nothing is said.
            Some(from) => {
                let spoken_for = left_out.map_or(0, |last| last.sequence.saturating_add(1));
                Recovered::Exactly { from: from.max(spoken_for), claims }
            }
        }
    }
}
