//! What the archive itself says it holds: the claims in the footers of its objects.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use archiver_parquet::{Claims, Footer, ends_of, ids_of, names};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::ObjectMeta;
use replay_guard::RecordId;

use crate::error::SinkError;
use crate::place::Place;

/// How many footers are asked for at once.
const AT_ONCE: usize = 32;

/// How many objects are read whole for the records in a range, of whatever size.
const FEW: usize = 4;
/// How many are, if all together have no more than so many bytes: each life of a stream that went over the range has left
/// some.
const MORE: usize = 32;
const BYTES: u64 = 256 << 20;

/// First and last record of an object, and where it is.
type Listed = (RecordId, RecordId, ObjectMeta);

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
    let mut objects = list(place, |first, last| {
        found.objects += 1;
        wanted(first, last)
    })
    .await?;
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

/// Records with a sequence in this range: all of them if few objects hold them, else the first and last ones of some of
/// the objects. What the objects do not tell is left out, and said.
pub(crate) async fn records_in(place: &Place, range: &RangeInclusive<u64>) -> Result<Vec<RecordId>, SinkError> {
    let reaches = |first: RecordId, last: RecordId| first.sequence <= *range.end() && last.sequence >= *range.start();
    let objects = list(place, reaches).await?;
    let bytes: u64 = objects.iter().map(|(_, _, meta)| meta.size).sum();
    if objects.len() > if bytes <= BYTES { MORE } else { FEW } {
        return ends_in(place, objects, range).await;
    }
    let mut found = Vec::new();
    for (_, _, meta) in objects {
        let object = meta.location;
        let Some(content) = place.content(&object).await? else { continue };
        let read = tokio::task::spawn_blocking(move || ids_of(content)).await;
        match read.map_err(|source| SinkError::Task { object: object.clone(), source })? {
            Ok(ids) => found.extend(ids.into_iter().filter(|id| range.contains(&id.sequence))),
            Err(error) => {
                // Of its sequences all records would have to be named.
                tracing::warn!(%object, %error, "an archived object cannot be read: some of it may be written again");
                return Ok(Vec::new());
            }
        }
    }
    Ok(found)
}

/// The first and last records of some objects, which are far apart. Their names alone do not do: an object may be without
/// rows.
async fn ends_in(place: &Place, objects: Vec<Listed>, range: &RangeInclusive<u64>) -> Result<Vec<RecordId>, SinkError> {
    let names: Vec<_> = objects.iter().map(|(first, last, _)| (*first, *last)).collect();
    let apart = objects.len().div_ceil(AT_ONCE);
    let some = objects.into_iter().step_by(apart).map(|(first, last, meta)| async move {
        let footer = place.footer(meta).await?;
        Ok::<_, SinkError>(matches!(footer, Some(Footer::Claim(_) | Footer::NoClaim(_))).then_some([first, last]))
    });
    let held: Vec<_> = stream::iter(some).buffered(AT_ONCE).try_collect().await?;
    let held: BTreeSet<RecordId> = held.into_iter().flatten().flatten().collect();
    let mut ends = ends_of(&names, range);
    ends.retain(|id| held.contains(id));
    Ok(ends)
}

/// The archived objects that are `wanted`, by name. Objects with other names are not ours.
async fn list(
    place: &Place,
    mut wanted: impl FnMut(RecordId, RecordId) -> bool + Send,
) -> Result<Vec<Listed>, SinkError> {
    let mut objects = Vec::new();
    let mut listed = place.bucket.store.list(Some(&place.directory));
    while let Some(meta) =
        listed.try_next().await.map_err(|source| SinkError::request("list", &place.directory, source))?
    {
        let name = meta.location.filename().unwrap_or_default();
        let Some((first, last)) = names::ids(name) else { continue };
        // Below another directory it is another one's.
        if meta.location == place.object(name) && wanted(first, last) {
            objects.push((first, last, meta));
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests;
