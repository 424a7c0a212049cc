//! What the archive itself says it holds: the claims in the footers of its objects.

use std::cmp::Reverse;

use archiver_parquet::{Claims, Footer, names};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use replay_guard::RecordId;

use crate::error::SinkError;
use crate::place::Place;

/// How many footers are asked for at once.
const AT_ONCE: usize = 32;

/// What was found in the directory of a source.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) claims: Claims,
    /// Archived objects.
    pub(crate) objects: usize,
    /// Objects whose footers were read.
    pub(crate) read: usize,
    /// Objects that are no whole Parquet files.
    pub(crate) damaged: usize,
}

/// Reads the claims of the objects that are `wanted`, by the ids of their first and last record, newest first, up to so many
/// bytes. Objects with other names are left alone.
///
/// Names come first: a footer costs a request. What an earlier process had under way is settled before they are listed.
pub(crate) async fn recover(
    place: &Place,
    wanted: impl Fn(RecordId, RecordId) -> bool + Send + Sync,
    max_bytes: usize,
) -> Result<Found, SinkError> {
    place.settle(&wanted).await?;
    let mut found = Found::default();
    let mut objects = Vec::new();
    let mut listed = place.bucket.store.list(Some(&place.directory));
    while let Some(meta) =
        listed.try_next().await.map_err(|source| SinkError::request("list", &place.directory, source))?
    {
        let name = meta.location.filename().unwrap_or_default();
        let Some((first, last)) = names::ids(name) else { continue };
        // Below another directory it is another one's.
        if meta.location != place.object(name) {
            continue;
        }
        found.objects += 1;
        if wanted(first, last) {
            objects.push((first, last, meta));
        }
    }
    objects.sort_unstable_by_key(|(first, last, _)| Reverse((*last, *first)));
    let footers = objects.into_iter().map(|(_, last, meta)| async move {
        let object = meta.location.clone();
        Ok::<_, SinkError>((last, object, place.footer(meta).await?))
    });
    // In order, however they are answered.
    let mut footers = stream::iter(footers).buffered(AT_ONCE);
    while let Some((last, object, footer)) = footers.try_next().await? {
        // The bucket's lifecycle was here just now.
        let Some(footer) = footer else { continue };
        found.read += 1;
        match footer {
            Footer::Claim(claim) => {
                if found.claims.push(last, claim, max_bytes).is_break() {
                    break;
                }
            }
            Footer::Empty => {}
            Footer::NoClaim(reason) => {
                tracing::warn!(%object, reason, "an archived object does not say what it holds");
            }
            Footer::Damaged(reason) => {
                tracing::error!(%object, reason, "an archived object is damaged: move it away, so that its records can be written again");
                found.damaged += 1;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
