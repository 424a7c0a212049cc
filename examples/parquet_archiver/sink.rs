//! The sink: buffers records and writes a Parquet file per flush, or per partition.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archiver_parquet::MAX_CLAIMS;
use archiver_support::{FlushSettings, Job, Progress, Target};
use replay_guard::{Coverage, Durable, Flush, Reason, Record, RecordId, Recovered, Sink, Source, Written};

use crate::disk::{self, SinkError};
use crate::file::{self, Row};
use crate::parts::{Partition, Parts};
use crate::recover;
use crate::turn::Turn;
use crate::{crash, names};

/// A directory of Parquet files, in directories by source.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    directory: PathBuf,
    rewrite_missing_from: Option<u64>,
    partition: Partition,
}

impl Archive {
    pub(crate) const fn new(directory: PathBuf) -> Self {
        Self { directory, rewrite_missing_from: None, partition: Partition::None }
    }

    pub(crate) const fn partitioned_by(mut self, partition: Partition) -> Self {
        self.partition = partition;
        self
    }

    /// As [`ParquetSink::rewrite_missing_from`].
    pub(crate) const fn rewrite_missing_from(mut self, sequence: Option<u64>) -> Self {
        self.rewrite_missing_from = sequence;
        self
    }
}

impl Target for Archive {
    type Sink = ParquetSink;

    async fn open(&self, job: &Job, progress: &Arc<Progress>) -> Result<ParquetSink, SinkError> {
        let sink = ParquetSink::open(&self.directory, job.source(), job.flush.bytes, Arc::clone(progress)).await?;
        let sink = sink.partitioned_by(self.partition, job.flush);
        Ok(sink.rewrite_missing_from(self.rewrite_missing_from))
    }

    fn is_setting(error: &SinkError) -> bool {
        error.is_setting()
    }
}

/// Writes one Parquet file per flush into a directory of its source, or one per partition when that is large or old enough.
#[derive(Debug)]
pub(crate) struct ParquetSink {
    directory: PathBuf,
    source: Source,
    parts: Parts,
    max_bytes: usize,
    roll: FlushSettings,
    rewrite_from: Option<u64>,
    progress: Arc<Progress>,
    /// The directory was there, or was made.
    begun: bool,
    turn: Turn,
}

impl ParquetSink {
    /// A sink below `out`. Asks for a flush by itself once it holds `max_bytes`.
    ///
    /// It only proves that its directory can be written: whether another process works there, and whether the directory
    /// must be there already, is known after the guard holds its lock, when [`Sink::recover`] is called and makes it.
    pub(crate) async fn open(
        out: &Path,
        source: Source,
        max_bytes: usize,
        progress: Arc<Progress>,
    ) -> Result<Self, SinkError> {
        let directory = out.join(names::directory(&source));
        let turn = Turn::of(&directory);
        let roll = FlushSettings { records: usize::MAX, after: Duration::MAX, bytes: max_bytes };
        let parts = Parts::default();
        let sink = Self { directory, source, parts, max_bytes, roll, rewrite_from: None, progress, begun: false, turn };
        sink.work(disk::try_directory).await?;
        Ok(sink)
    }

    /// A partition's file is written once the partition itself reaches one of these.
    pub(crate) fn partitioned_by(mut self, partition: Partition, roll: FlushSettings) -> Self {
        (self.parts, self.roll) = (Parts::new(partition), roll);
        self
    }

    /// From this sequence on, what no file holds shall be written again, also what the checkpoint has.
    ///
    /// Not by default: files may be pruned or merged, and a disk may not be mounted.
    pub(crate) const fn rewrite_missing_from(mut self, sequence: Option<u64>) -> Self {
        self.rewrite_from = sequence;
        self
    }

    /// Makes the directory for a sink that no guard asked what it holds. Later it is not made again: below the mount point of a
    /// disk that went away, what is written would be hidden.
    async fn begin(&mut self) -> Result<(), SinkError> {
        if !self.begun {
            self.work(disk::create_directory).await?;
            self.begun = true;
        }
        Ok(())
    }

    /// Does work in the directory where it may block, once all earlier work there has ended: it goes on when its future is
    /// dropped, and whoever asks what the archive holds must see what it wrote.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, SinkError> + Send + 'static,
    ) -> Result<T, SinkError> {
        let (directory, turn) = (self.directory.clone(), self.turn.come().await);
        let done = tokio::task::spawn_blocking(move || {
            let _held = turn;
            work(&directory)
        });
        done.await.map_err(|source| SinkError::Task { path: self.directory.clone(), source })?
    }
}

impl Sink for ParquetSink {
    type Error = SinkError;

    async fn write(&mut self, record: Record) -> Result<Written, SinkError> {
        self.parts.push(Row::from(record));
        crash::point("record-taken");
        Ok(if self.parts.bytes() >= self.max_bytes { Written::Full } else { Written::Accepted })
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, SinkError> {
        self.begin().await?;
        let due = self.parts.due(flush.reason() == Reason::Everything, self.roll, self.max_bytes);
        let mut durable = Vec::new();
        for (partition, part) in due {
            let ids: Vec<RecordId> = part.rows.iter().map(|row| row.id).collect();
            let claim = flush.claim_for(&ids);
            let source = self.source.clone();
            let saved = self.work(move |directory| {
                if partition.is_empty() {
                    return file::save(directory, &source, part.rows, &claim);
                }
                let directory = disk::create_within(directory, &partition)?;
                file::save(&directory, &source, part.rows, &claim)
            });
            if let Some((name, bytes)) = saved.await? {
                tracing::debug!(records = ids.len(), bytes, file = %name, "archived");
                self.progress.archived(ids.len(), bytes);
            }
            durable.extend(ids);
        }
        Ok(if self.parts.is_empty() { Durable::All } else { Durable::Only(durable) })
    }

    async fn recover(&mut self, source: &Source) -> Result<Recovered, SinkError> {
        self.recover_beyond(source, &Coverage::default()).await
    }

    /// What the checkpoint has needs no footer: the names say which records a file holds.
    async fn recover_beyond(&mut self, _source: &Source, checkpoint: &Coverage) -> Result<Recovered, SinkError> {
        let (from, checkpoint) = (self.rewrite_from, checkpoint.clone());
        let found = self.work(move |directory| {
            // What is written below the mount point of a disk that is not mounted would be hidden by it, and look lost.
            if checkpoint.last().is_some() && matches!(directory.try_exists(), Ok(false)) {
                return Err(SinkError::Gone { path: directory.to_owned() });
            }
            disk::create_directory(directory)?;
            let wanted = |first, last: RecordId| match from {
                Some(from) => last.sequence >= from || !checkpoint.holds(first, last),
                None => !checkpoint.holds(first, last),
            };
            recover::recover(directory, wanted, MAX_CLAIMS)
        });
        let found = found.await?;
        self.begun = true;
        let (claims, damaged) = (found.claims.kept.len(), found.damaged.len());
        tracing::info!(
            files = found.files,
            read = found.read,
            claims,
            damaged,
            removed = found.removed,
            "looked at the archive"
        );
        Ok(found.claims.recovered(from))
    }

    async fn records_in(
        &mut self,
        _source: &Source,
        sequences: RangeInclusive<u64>,
    ) -> Result<Vec<RecordId>, SinkError> {
        self.begin().await?;
        self.work(move |directory| recover::records_in(directory, &sequences)).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use anyhow::{Context, Result};
    use replay_guard::{Guard, MemoryStore, MemoryStream};

    use super::*;

    fn source() -> Source {
        Source::new("S").with_filters(["s.>"])
    }

    /// One that a guard is to ask what it holds.
    async fn opened(out: &Path, max_bytes: usize) -> Result<ParquetSink> {
        Ok(ParquetSink::open(out, source(), max_bytes, Arc::default()).await?)
    }

    async fn sink(out: &Path, max_bytes: usize) -> Result<ParquetSink> {
        let mut sink = opened(out, max_bytes).await?;
        sink.recover(&source()).await?;
        Ok(sink)
    }

    async fn flush(sink: &mut ParquetSink, records: impl IntoIterator<Item = u64>) -> Result<()> {
        for sequence in records {
            sink.write(Record::new(sequence, 1_000, "s.a", "x")).await?;
        }
        assert_eq!(sink.flush(Flush::without_guard(Reason::Due)).await?, Durable::All);
        Ok(())
    }

    fn files(directory: &Path) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    #[tokio::test]
    async fn each_flush_makes_one_file_and_an_empty_one_makes_none() -> Result<()> {
        let out = tempfile::tempdir()?;
        let mut sink = sink(out.path(), usize::MAX).await?;
        flush(&mut sink, [2, 1]).await?;
        flush(&mut sink, []).await?;
        flush(&mut sink, [3, 4]).await?;
        assert_eq!(files(&sink.directory)?.len(), 2);
        assert_eq!(sink.progress.records(), 4);
        Ok(())
    }

    #[tokio::test]
    async fn the_same_records_at_another_time_go_to_the_same_file() -> Result<()> {
        let out = tempfile::tempdir()?;
        flush(&mut sink(out.path(), usize::MAX).await?, 1..=10).await?;
        let mut again = sink(out.path(), usize::MAX).await?;
        let before = files(&again.directory)?;
        flush(&mut again, (1..=10).rev()).await?;
        assert_eq!(files(&again.directory)?, before);
        let name = before.first().context("one file")?;
        assert_eq!(file::read(&again.directory.join(name))?.len(), 10);
        Ok(())
    }

    #[tokio::test]
    async fn a_partition_becomes_a_file_by_itself_and_is_found_again() -> Result<()> {
        let out = tempfile::tempdir()?;
        let roll = FlushSettings { records: 2, after: Duration::from_secs(3_600), bytes: usize::MAX };
        let stream = MemoryStream::new();
        let records: Vec<Record> = [0, 0, 1, 0, 1]
            .map(|hour| {
                stream.pass(Duration::from_secs(hour * 3_600));
                stream.publish("s.a", "x")
            })
            .into();
        let new = async || -> Result<ParquetSink> {
            Ok(sink(out.path(), usize::MAX).await?.partitioned_by(Partition::Hour, roll))
        };
        let source = Source::new("S").with_filters(["s.>"]);
        let mut guard = Guard::open(source.clone(), new().await?, MemoryStore::new(), stream.clone()).await?;
        let _ = guard.begin_session().await?;
        for record in &records {
            guard.offer(record.clone(), None).await?;
        }
        let due: Vec<u64> = guard.flush(Reason::Due).await?.acks().iter().map(|id| id.sequence).collect();
        assert_eq!((due, guard.pending()), (vec![1, 2, 3, 4], 1), "the third hour has one record only");
        let rest = guard.flush(Reason::Everything).await?;
        assert_eq!((rest.acks().len(), guard.pending()), (1, 0));
        drop(guard);
        let mut again = new().await?;
        assert_eq!(files(&again.directory)?.len(), 3, "a directory for each hour");
        let Recovered::AtLeast(claims) = again.recover(&source).await? else { anyhow::bail!("claims") };
        assert_eq!(claims.len(), 3);
        assert_eq!(again.records_in(&source, 1..=5).await?.len(), 5);
        let mut guard = Guard::open(source, new().await?, MemoryStore::new(), stream).await?;
        let _ = guard.begin_session().await?;
        assert_eq!(guard.offer(records[4].clone(), None).await?, replay_guard::Offer::Skipped, "without a checkpoint");
        Ok(())
    }

    #[tokio::test]
    async fn an_archive_that_is_not_there_is_not_begun_anew_while_a_checkpoint_knows_it() -> Result<()> {
        let out = tempfile::tempdir()?;
        let source = Source::new("S").with_filters(["s.>"]);
        let (stream, store) = (MemoryStream::new(), MemoryStore::new());
        let directory = out.path().join(names::directory(&source));
        let mut guard = None;
        let open = async |rewrite: Option<u64>| -> Result<_> {
            let sink = opened(out.path(), usize::MAX).await?.rewrite_missing_from(rewrite);
            Ok(Guard::open(source.clone(), sink, store.clone(), stream.clone()).await)
        };
        // New; gone, whoever asks and however often; back.
        for (gone, rewrite) in [(false, None), (true, None), (true, None), (true, Some(1)), (false, None)] {
            drop(guard.take());
            if gone {
                fs::remove_dir_all(&directory).or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
                let error = open(rewrite).await?.err().context("it was begun anew")?;
                assert!(format!("{:#}", anyhow::Error::new(error)).contains("mount its disk"));
                assert!(!directory.exists(), "or the next one would not know");
                continue;
            }
            if stream.publish("s.a", "x").sequence > 1 {
                fs::create_dir(&directory)?;
            }
            let opened = guard.insert(open(rewrite).await??);
            let _ = opened.begin_session().await?;
            opened.offer(stream.publish("s.a", "x"), None).await?;
            assert_eq!(opened.flush(Reason::Everything).await?.acks().len(), 1);
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_directory_that_goes_while_a_sink_is_at_work_is_not_made_again() -> Result<()> {
        for partition in [Partition::None, Partition::Hour] {
            let out = tempfile::tempdir()?;
            let roll = FlushSettings { records: 1, after: Duration::from_secs(3_600), bytes: usize::MAX };
            let mut sink = sink(out.path(), usize::MAX).await?.partitioned_by(partition, roll);
            flush(&mut sink, [1]).await?;
            fs::remove_dir_all(&sink.directory)?;
            sink.write(Record::new(2, 1_000, "s.a", "x")).await?;
            assert!(sink.flush(Flush::without_guard(Reason::Due)).await.is_err());
            assert!(!sink.directory.exists(), "it would be hidden below a disk");
        }
        Ok(())
    }

    #[tokio::test]
    async fn asks_for_a_flush_at_its_own_bound() -> Result<()> {
        let out = tempfile::tempdir()?;
        let mut sink = sink(out.path(), 2_000).await?;
        let record = |sequence| Record::new(sequence, 1, "s.a", vec![0; 1_000]);
        assert_eq!(sink.write(record(1)).await?, Written::Accepted);
        assert_eq!(sink.write(record(2)).await?, Written::Full);
        flush(&mut sink, []).await?;
        assert_eq!(sink.write(record(3)).await?, Written::Accepted);
        Ok(())
    }

    #[tokio::test]
    async fn leftovers_of_a_crash_go_and_all_else_stays() -> Result<()> {
        let out = tempfile::tempdir()?;
        let mut sink = sink(out.path(), usize::MAX).await?;
        flush(&mut sink, [1, 2]).await?;
        let mut expected = files(&sink.directory)?;
        let ours = expected.first().map(|name| format!("{name}.x7Yz{}", names::TEMPORARY)).context("one file")?;
        let foreign = ["notes.tmp", "a.parquet.tmp", "readme.txt"];
        for name in foreign.iter().copied().chain([ours.as_str()]) {
            fs::write(sink.directory.join(name), "half")?;
        }
        // Another source may be at work beside this one.
        let neighbour = out.path().join(&ours);
        fs::write(&neighbour, "half")?;
        assert!(matches!(sink.recover(&Source::new("S")).await?, Recovered::AtLeast(_)));
        expected.extend(foreign.map(String::from));
        expected.sort_unstable();
        assert_eq!(files(&sink.directory)?, expected);
        assert!(neighbour.exists());
        Ok(())
    }

    #[tokio::test]
    async fn what_a_dropped_flush_still_writes_is_seen_by_the_next_sink() -> Result<()> {
        let out = tempfile::tempdir()?;
        let old = sink(out.path(), usize::MAX).await?;
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let flush = old.work(move |directory| {
            // A test that waits no longer has failed already.
            let _ = (begun.send(()), may_go.recv());
            let row = Row::from(Record::new(1, 1_000, "s.a", "x"));
            file::save(directory, &Source::new("S"), [row], &Flush::without_guard(Reason::Due).claim())
        });
        tokio::select! {
            _ = flush => anyhow::bail!("it was to wait"),
            begun = has_begun => begun?,
        }
        drop(old);
        let again = async {
            let mut again = sink(out.path(), usize::MAX).await?;
            anyhow::Ok(again.records_in(&Source::new("S"), 1..=1).await?)
        };
        tokio::pin!(again);
        tokio::select! {
            found = &mut again => anyhow::bail!("it did not wait for the flush before it: {found:?}"),
            () = tokio::time::sleep(std::time::Duration::from_millis(200)) => {}
        }
        go.send(())?;
        assert_eq!(again.await?, [RecordId::new(1, 1_000)]);
        Ok(())
    }

    #[tokio::test]
    async fn a_directory_that_went_away_is_named() -> Result<()> {
        let out = tempfile::tempdir()?;
        let mut sink = sink(out.path(), usize::MAX).await?;
        sink.write(Record::new(1, 1, "s.a", "x")).await?;
        fs::remove_dir_all(&sink.directory)?;
        let error = sink.flush(Flush::without_guard(Reason::Due)).await.err().context("must fail")?;
        assert!(error.to_string().contains(&sink.directory.display().to_string()), "{error}");
        Ok(())
    }
}
