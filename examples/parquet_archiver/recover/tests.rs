use std::collections::BTreeSet;

use anyhow::{Context, Result};
use archiver_parquet::MAX_CLAIMS;
use replay_guard::{Coverage, Guard, MemoryStore, MemoryStream, Offer, Reason, Record, Recovered, Source};

use super::*;
use crate::disk::tests::synced;
use crate::sink::ParquetSink;

const NOTHING: [u64; 0] = [];

fn source() -> Source {
    Source::new("S")
}

/// An archive, the stream it is fed from, and where its checkpoint is.
struct Place {
    out: tempfile::TempDir,
    stream: MemoryStream,
    checkpoint: MemoryStore,
}

impl Place {
    fn new() -> Result<Self> {
        Ok(Self { out: tempfile::tempdir()?, stream: MemoryStream::new(), checkpoint: MemoryStore::new() })
    }

    fn directory(&self) -> PathBuf {
        self.out.path().join(names::directory(&source()))
    }

    async fn open(&self, rewrite_missing_from: Option<u64>) -> Result<Guard<ParquetSink>> {
        let sink = ParquetSink::open(self.out.path(), source(), usize::MAX, std::sync::Arc::default()).await?;
        let sink = sink.rewrite_missing_from(rewrite_missing_from);
        let mut guard = Guard::open(source(), sink, self.checkpoint.clone(), self.stream.clone()).await?;
        if guard.move_pending().is_some() {
            guard.moved();
        }
        let _ = guard.begin_session().await?;
        Ok(guard)
    }

    /// Delivers these to a new guard.
    async fn deliver(&self, records: &[Record]) -> Result<Vec<u64>> {
        deliver(&mut self.open(None).await?, records).await
    }

    /// One file for each of these runs of records.
    async fn archive(&self, runs: &[&[Record]]) -> Result<()> {
        let mut guard = self.open(None).await?;
        for run in runs {
            assert_eq!(deliver(&mut guard, run).await?.len(), run.len());
        }
        Ok(())
    }

    fn publish(&self, count: usize) -> Vec<Record> {
        (0..count).map(|n| self.stream.publish("s", format!("{n}"))).collect()
    }

    /// The archived files, in order.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.directory())? {
            files.push(entry?.path());
        }
        files.retain(|path| path.extension().is_some_and(|kind| kind == "parquet"));
        files.sort_unstable();
        Ok(files)
    }

    /// How often each record is in the archive, by sequence and time.
    fn held(&self) -> Result<Vec<RecordId>> {
        let mut held = Vec::new();
        for file in self.files()? {
            held.extend(file::read(&file)?.into_iter().map(|row| row.id));
        }
        held.sort_unstable();
        Ok(held)
    }
}

/// Delivers these, in one flush, and gives the sequences of those that were written. The others were skipped.
async fn deliver(guard: &mut Guard<ParquetSink>, records: &[Record]) -> Result<Vec<u64>> {
    let mut written = Vec::new();
    for record in records {
        let before = record.sequence.checked_sub(1).filter(|before| *before > 0);
        match guard.offer(record.clone(), before).await? {
            Offer::Written => written.push(record.sequence),
            other => assert_eq!(other, Offer::Skipped),
        }
    }
    let permits = guard.flush(Reason::Due).await?;
    assert_eq!(permits.acks().len(), records.len());
    Ok(written)
}

fn ids(records: &[Record]) -> Vec<RecordId> {
    records.iter().map(Record::id).collect()
}

fn all(_: RecordId, _: RecordId) -> bool {
    true
}

#[tokio::test]
async fn a_lost_checkpoint_is_made_again_from_the_files() -> Result<()> {
    let mut place = Place::new()?;
    let records = place.publish(9);
    place.archive(&[&records[..4], &records[4..6], &records[6..]]).await?;
    let state_id = place.open(None).await?.state_id();
    place.checkpoint = MemoryStore::new();
    let guard = place.open(None).await?;
    assert_eq!((guard.state_id(), guard.floor(), guard.spans()), (state_id, 9, 1));
    drop(guard);
    assert_eq!(place.deliver(&records).await?, NOTHING);
    assert_eq!(place.held()?, ids(&records));
    Ok(())
}

#[tokio::test]
async fn only_footers_of_what_the_checkpoint_lacks_are_read() -> Result<()> {
    let place = Place::new()?;
    let records = place.publish(6);
    place.archive(&[&records[..2], &records[2..4]]).await?;
    let guard = place.open(None).await?;
    let checkpoint: Coverage = guard.coverage().clone();
    drop(guard);
    // The process died after the file and before the checkpoint.
    let mut later = Place { checkpoint: MemoryStore::new(), ..place };
    later.archive(&[&records[4..]]).await?;

    let wanted = |first, last| !checkpoint.holds(first, last);
    let found = recover(&later.directory(), wanted, MAX_CLAIMS)?;
    assert_eq!((found.files, found.read, found.claims.kept.len()), (3, 1, 1));
    let found = recover(&later.directory(), all, MAX_CLAIMS)?;
    assert_eq!((found.files, found.read, found.claims.kept.len()), (3, 3, 3));
    later.checkpoint = MemoryStore::new();
    assert_eq!(later.deliver(&records).await?, NOTHING);
    Ok(())
}

#[tokio::test]
async fn what_is_reported_is_durable() -> Result<()> {
    let place = Place::new()?;
    let records = place.publish(4);
    place.archive(&[&records[..2], &records[2..]]).await?;
    let files = place.files()?;
    let [old, new] = files.as_slice() else { anyhow::bail!("{files:?}") };
    // As after a death between the rename and the sync of the directory: the name may be in memory only.
    synced();
    let found = recover(&place.directory(), all, MAX_CLAIMS)?;
    assert_eq!(found.claims.kept.len(), 2);
    let expected = [new, old, &place.directory()].map(|path| (path.clone(), true));
    assert_eq!(synced(), expected, "newest first, and the directory after all that was renamed or removed");
    Ok(())
}

#[tokio::test]
async fn a_file_that_was_cut_short_is_kept_aside_and_its_records_are_written_again() -> Result<()> {
    let whole = Place::new()?;
    let records = whole.publish(4);
    whole.archive(&[&records]).await?;
    let bytes = fs::read(whole.files()?.first().context("a file")?)?;
    for length in [0, 3, 11, 12, bytes.len() / 2, bytes.len() - 1] {
        let mut place = Place::new()?;
        let records = place.publish(6);
        place.archive(&[&records[..2], &records[2..]]).await?;
        let path = place.files()?.pop().context("two files")?;
        fs::write(&path, &bytes[..length])?;
        let aside = path.with_extension("parquet.damaged-1");
        synced();
        let found = recover(&place.directory(), all, MAX_CLAIMS)?;
        assert_eq!((found.claims.kept.len(), &found.damaged), (1, &vec![aside.clone()]), "cut to {length}");
        assert_eq!(synced().pop(), Some((place.directory(), true)));
        assert_eq!(fs::read(aside)?, &bytes[..length]);
        place.checkpoint = MemoryStore::new();
        assert_eq!(place.deliver(&records).await?, [3, 4, 5, 6], "cut to {length}");
        assert_eq!(place.held()?, ids(&records));
        let found = recover(&place.directory(), all, MAX_CLAIMS)?;
        assert_eq!((found.claims.kept.len(), found.damaged.len()), (2, 0), "no second time");
    }
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_that_names_it() -> Result<()> {
    let place = Place::new()?;
    let records = place.publish(2);
    let path = place.directory().join(names::file(records[0].id(), records[1].id()));
    // Reading fails, and says nothing about what is there.
    fs::create_dir_all(&path)?;
    let error = recover(&place.directory(), all, MAX_CLAIMS).err().context("must fail")?;
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_file_with_holes_claims_what_it_holds_and_nothing_between() -> Result<()> {
    let mut place = Place::new()?;
    let records = place.publish(5);
    let some = [&records[1], &records[2], &records[4]].map(Clone::clone);
    let mut guard = place.open(None).await?;
    for record in some {
        let _ = guard.offer(record, None).await?;
    }
    let _ = guard.flush(Reason::Due).await?;
    drop(guard);
    place.checkpoint = MemoryStore::new();
    assert_eq!(place.deliver(&records).await?, [1, 4]);
    assert_eq!(place.held()?, ids(&records));
    Ok(())
}

#[tokio::test]
async fn two_lives_share_an_archive() -> Result<()> {
    let mut place = Place::new()?;
    let old = place.publish(6);
    place.archive(&[&old[..3], &old[3..]]).await?;
    place.stream.lose_above(3);
    let new = place.publish(4);
    place.checkpoint = MemoryStore::new();
    let now: Vec<Record> = old[..3].iter().chain(&new).cloned().collect();
    assert_eq!(place.deliver(&now).await?, [4, 5, 6, 7]);
    let mut both: Vec<_> = ids(&old).into_iter().chain(ids(&new)).collect();
    both.sort_unstable();
    assert_eq!((place.held()?, place.files()?.len()), (both, 3));
    // With the files of both lives and no checkpoint.
    place.checkpoint = MemoryStore::new();
    assert_eq!(place.deliver(&now).await?, NOTHING);
    Ok(())
}

#[tokio::test]
async fn a_tail_that_is_lost_within_a_file_makes_nothing_come_again() -> Result<()> {
    for (through, checkpoint_lost) in
        [(1, false), (14, true), (15, false), (15, true), (26, false), (38, true), (39, false)]
    {
        let mut place = Place::new()?;
        let old = place.publish(200);
        // More files than are read for one question.
        place.archive(&old.chunks(5).collect::<Vec<_>>()).await?;
        place.stream.lose_above(through);
        let new = place.publish(30);
        if checkpoint_lost {
            place.checkpoint = MemoryStore::new();
        }
        let stands = usize::try_from(through)?;
        let now: Vec<Record> = old[..stands].iter().chain(&new).cloned().collect();
        let written = place.deliver(&now).await?;
        assert_eq!(written.len(), new.len(), "cut at {through}: {written:?}");
    }
    Ok(())
}

#[tokio::test]
async fn of_many_lives_in_one_place_all_records_are_named() -> Result<()> {
    let place = Place::new()?;
    for life in 1..=FEW + 1 {
        place.stream.lose_above(0);
        let records = place.publish(6);
        assert_eq!(place.deliver(&records).await?.len(), 6);
        let named: BTreeSet<RecordId> = records_in(&place.directory(), &(2..=4))?.into_iter().collect();
        let held: BTreeSet<RecordId> = place.held()?.into_iter().filter(|id| (2..=4).contains(&id.sequence)).collect();
        if life > FEW {
            assert_eq!((named.len(), held.len()), (0, 3 * life), "too many to read, and no file begins or ends there");
        } else {
            assert_eq!((named.len(), named), (3 * life, held));
        }
    }
    Ok(())
}

#[tokio::test]
async fn where_a_file_cannot_be_read_nothing_is_named() -> Result<()> {
    let place = Place::new()?;
    let records = place.publish(6);
    place.archive(&[&records[..3], &records[3..]]).await?;
    let named = |range| Ok::<_, anyhow::Error>(records_in(&place.directory(), &range)?.len());
    assert_eq!((named(1..=6)?, named(2..=4)?, named(7..=9)?), (6, 3, 0));
    fs::write(place.files()?.first().context("a file")?, "half")?;
    assert_eq!((named(1..=6)?, named(4..=6)?), (0, 3));
    Ok(())
}

#[tokio::test]
async fn c7_a_pruned_file_is_not_written_again_unless_that_is_wanted() -> Result<()> {
    let place = Place::new()?;
    let records = place.publish(8);
    place.archive(&[&records[..2], &records[2..4], &records[4..6], &records[6..]]).await?;
    let files = place.files()?;
    for file in [0, 2] {
        fs::remove_file(files.get(file).context("a file")?)?;
    }
    assert_eq!(place.deliver(&records).await?, NOTHING);
    let mut guard = place.open(Some(3)).await?;
    assert_eq!(deliver(&mut guard, &records).await?, [5, 6], "1 and 2 lie below what is wanted");
    drop(guard);
    assert_eq!(place.held()?, ids(&records[2..]));
    Ok(())
}

#[tokio::test]
async fn the_newest_claims_are_kept_where_there_are_too_many() -> Result<()> {
    let place = Place::new()?;
    let records = place.publish(6);
    place.archive(&[&records[..2], &records[2..4], &records[4..]]).await?;
    let claims = recover(&place.directory(), all, MAX_CLAIMS)?.claims.kept;
    let room = claims.iter().take(2).map(|claim| claim.as_bytes().len()).sum();
    let found = recover(&place.directory(), all, room)?;
    assert_eq!(found.claims.kept, claims[..2]);
    assert_eq!(found.claims.left_out, Some(records[1].id()));
    let exactly = Recovered::Exactly { from: 3, claims: claims[..2].to_vec() };
    assert_eq!(found.claims.recovered(Some(1)), exactly, "of what is left out nothing is said");
    Ok(())
}

#[tokio::test]
async fn a_file_without_a_claim_claims_nothing_and_stays() -> Result<()> {
    let place = Place::new()?;
    let records = place.publish(2);
    fs::create_dir_all(place.directory())?;
    let path = place.directory().join(names::file(records[0].id(), records[1].id()));
    let column: arrow_array::ArrayRef = std::sync::Arc::new(arrow_array::UInt64Array::from(vec![1, 2]));
    let batch = arrow_array::RecordBatch::try_from_iter([("sequence", column)])?;
    let mut writer = parquet::arrow::ArrowWriter::try_new(fs::File::create(&path)?, batch.schema(), None)?;
    writer.write(&batch)?;
    let _ = writer.close()?;
    let found = recover(&place.directory(), all, MAX_CLAIMS)?;
    assert_eq!((found.read, found.claims.kept.len(), found.damaged.len()), (1, 0, 0));
    assert!(path.exists());
    Ok(())
}
