//! A storage in memory with a page cache, and sinks over it: right ones, and ones with one mistake.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use replay_guard::testing::{Held, Hook, Storage};
use replay_guard::{
    Claim, Coverage, Durable, Flush, Reason, Record, RecordId, Recovered, Sink, SinkFailure, Source, Written,
};

/// What is wrong with a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Answers before it has synced.
    NoSync,
    /// Syncs what it writes, and not the directory that names it.
    NoDirectorySync,
    /// Tries a failed sync again, and believes it.
    SyncsAgain,
    /// Begins with an empty storage.
    TruncatesOnOpen,
    /// Keeps the claim of all that is pending with a part of it.
    ClaimsAll,
    /// Keeps the claim before the data.
    ClaimFirst,
    /// Keeps the claim after the data.
    ClaimLast,
    /// Keeps the claim of every second flush only.
    DropsClaims,
    /// Reports the claim of the newest flush only, as if it were a mark that all is below.
    NewestClaim,
    /// Leaves out what lies below its highest sequence.
    SkipsBelow,
    /// Reports what it does not sync first.
    RecoversUnsynced,
    /// Says `Exactly`, and leaves out what the checkpoint has.
    ExactlyBeyond,
    /// Names what it writes by sequences alone.
    NamesBySequence,
    /// Names what it writes without the source.
    NamesWithoutSource,
    /// Names what it writes by the subject-like names of the source, which may look alike.
    NamesLossySource,
    /// After an error of the storage throws its buffer away and says `All`.
    SwallowsErrors,
    /// Lists records that are not durable yet.
    ListsBuffer,
    /// Lists one record of a sequence of which it holds two.
    ListsNewest,
    /// Names records that it was never given.
    NamesUnknown,
    /// Names records that it keeps in memory only.
    NamesUnwritten,
    /// Keeps something back when everything is due.
    KeepsBack,
    /// Refuses the record that fills it.
    LosesWhenFull,
    /// Writes what an earlier sink left in its journal, and then the redelivered copy too.
    ReplaysJournal,
    TruncatesPayload,
    DropsEmpty,
    LosesHeaders,
    MendsSubjects,
    /// Fails when there is nothing to flush.
    FailsWhenEmpty,
    /// Rejects nothing, and leaves out what it cannot store.
    RejectsInSilence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Keeps no claims.
    Plain,
    /// Keeps claims with the data, and says `AtLeast`.
    AtLeast,
    /// Keeps claims with the data, and says `Exactly`.
    Exactly,
}

/// How a sink is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build {
    pub(crate) kind: Kind,
    /// Makes durable only what is in an even place, unless everything is due.
    pub(crate) partial: bool,
    pub(crate) flaw: Flaw,
    /// Says which records of a range it holds.
    pub(crate) lists: bool,
    /// Rejects payloads that are no text.
    pub(crate) rejects_binary: bool,
}

impl Build {
    pub(crate) const fn right(kind: Kind, partial: bool) -> Self {
        Self { kind, partial, flaw: Flaw::None, lists: true, rejects_binary: false }
    }

    pub(crate) const fn wrong(kind: Kind, flaw: Flaw) -> Self {
        Self { flaw, ..Self::right(kind, false) }
    }
}

#[derive(Clone, Debug, Default)]
struct File {
    records: Vec<Record>,
    claim: Option<Claim>,
}

#[derive(Debug, Default)]
struct Disk {
    /// What processes see: names, and what they stand for.
    names: BTreeMap<String, usize>,
    files: Vec<File>,
    /// Names that are on the medium.
    synced_names: BTreeMap<String, usize>,
    /// Files whose contents are.
    synced_files: BTreeSet<usize>,
    /// Thrown away by a failed sync: the cache has it, and no sync writes it any more.
    clean: BTreeSet<usize>,
    fail_at: Option<u64>,
    journal: Vec<(Source, Record)>,
}

impl Disk {
    fn operate(&mut self) -> Result<(), Full> {
        match self.fail_at.as_mut() {
            None => Ok(()),
            Some(0) => {
                self.fail_at = None;
                Err(Full)
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the device is full")]
pub(crate) struct Full;

/// One storage.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    disk: Arc<Mutex<Disk>>,
    build: Build,
    /// Without, it has no hooks.
    hooks: bool,
}

impl Model {
    pub(crate) fn new(build: Build) -> Self {
        Self { disk: Arc::default(), build, hooks: true }
    }

    pub(crate) fn without_hooks(build: Build) -> Self {
        Self { hooks: false, ..Self::new(build) }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    fn directory(&self, source: &Source) -> String {
        match self.build.flaw {
            Flaw::NamesWithoutSource => String::new(),
            Flaw::NamesLossySource => format!("{}/{}/", source.stream(), source.filters().join("-").replace('.', "_")),
            // Not its text alone: a domain and a stream may look like a stream and what is in it.
            _ => format!("<{source}>/"),
        }
    }

    /// One operation of the disk, which may fail, and before and after which one may die.
    async fn operate<T>(&self, operation: impl FnOnce(&mut Disk) -> T) -> Result<T, Full> {
        tokio::task::yield_now().await;
        let done = {
            let mut disk = self.disk();
            disk.operate()?;
            operation(&mut disk)
        };
        tokio::task::yield_now().await;
        Ok(done)
    }

    async fn put(&self, name: &str, file: File) -> Result<(), Full> {
        self.operate(|disk| {
            disk.files.push(file);
            disk.names.insert(name.to_owned(), disk.files.len() - 1);
        })
        .await
    }

    async fn sync(&self, name: &str) -> Result<(), Full> {
        let synced = self.operate(|disk| {
            let file = disk.names[name];
            disk.synced_files.extend((!disk.clean.contains(&file)).then_some(file));
        });
        synced.await.inspect_err(|_| {
            let mut disk = self.disk();
            let file = disk.names[name];
            disk.clean.insert(file);
        })
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), Full> {
        self.operate(|disk| {
            let file = disk.names.remove(from).unwrap();
            disk.names.insert(to.to_owned(), file);
        })
        .await
    }

    async fn sync_directory(&self) -> Result<(), Full> {
        self.operate(|disk| disk.synced_names = disk.names.clone()).await
    }

    /// The files of a source that have their name.
    fn files(&self, source: &Source) -> Vec<File> {
        let (directory, disk) = (self.directory(source), self.disk());
        let named = disk.names.iter().filter(|(name, _)| name.starts_with(&directory) && !name.ends_with(TEMPORARY));
        named.map(|(_, file)| disk.files[*file].clone()).collect()
    }
}

impl Storage for Model {
    type Sink = ModelSink;

    async fn open(&self, source: &Source) -> Result<ModelSink, SinkFailure> {
        if self.build.flaw == Flaw::TruncatesOnOpen {
            self.disk().names.clear();
        }
        let journal = if self.build.flaw == Flaw::ReplaysJournal {
            self.disk().journal.extract_if(.., |(of, _)| of == source).map(|(_, record)| record).collect()
        } else {
            Vec::new()
        };
        Ok(ModelSink { model: self.clone(), source: source.clone(), buffer: journal, flushes: 0, highest: 0 })
    }

    async fn held(&self, source: &Source) -> Result<Vec<Held>, SinkFailure> {
        Ok(self.files(source).into_iter().flat_map(|file| file.records).map(Held::from).collect())
    }

    async fn power_cut(&self) -> Result<Hook, SinkFailure> {
        if Arc::strong_count(&self.disk) > 1 {
            return Err("the kit left a sink open".into());
        }
        if self.hooks {
            let mut disk = self.disk();
            disk.names = disk.synced_names.clone();
            let lost: Vec<usize> = (0..disk.files.len()).filter(|file| !disk.synced_files.contains(file)).collect();
            for file in lost {
                disk.files[file] = File::default();
            }
        }
        Ok(if self.hooks { Hook::Done } else { Hook::Missing })
    }

    async fn fail_at(&self, operation: Option<u64>) -> Result<Hook, SinkFailure> {
        self.disk().fail_at = operation;
        Ok(if self.hooks { Hook::Done } else { Hook::Missing })
    }
}

/// One sink over a storage.
#[derive(Debug)]
pub(crate) struct ModelSink {
    model: Model,
    source: Source,
    buffer: Vec<Record>,
    flushes: u64,
    highest: u64,
}

const BOUND: usize = 45;
const TEMPORARY: &str = " (half)";

impl ModelSink {
    /// What is stored of a record.
    fn stored(&self, mut record: Record) -> Option<Record> {
        match self.model.build.flaw {
            Flaw::TruncatesPayload => record.payload.truncate(64 * 1024),
            Flaw::DropsEmpty if record.payload.is_empty() => return None,
            Flaw::LosesHeaders => {
                // The last of several values, as in a map.
                let names: Vec<_> = record.headers.iter().map(|(name, _)| name.clone()).collect();
                for name in names {
                    let value = record.headers.get_last(name.clone()).unwrap().clone();
                    record.headers.insert(name, value);
                }
            }
            Flaw::MendsSubjects => record.subject = record.subject.replace('/', "_").into(),
            Flaw::RejectsInSilence if never(&record) => return None,
            _ => {}
        }
        Some(record)
    }

    fn name(&self, records: &[Record]) -> String {
        let first = records.iter().map(Record::id).min().unwrap();
        let last = records.iter().map(Record::id).max().unwrap();
        let directory = self.model.directory(&self.source);
        if self.model.build.flaw == Flaw::NamesBySequence {
            return format!("{directory}{}-{}", first.sequence, last.sequence);
        }
        // Records that come again in other portions must not replace what is there.
        let ids: Vec<String> = records.iter().map(|record| record.id().to_string()).collect();
        format!("{directory}{}", ids.join(","))
    }

    async fn save(&self, records: Vec<Record>, claim: Claim) -> Result<(), Full> {
        let (model, flaw) = (&self.model, self.model.build.flaw);
        let keeps = model.build.kind != Kind::Plain && !(flaw == Flaw::DropsClaims && self.flushes.is_multiple_of(2));
        let claim = keeps.then_some(claim);
        let name = self.name(&records);
        let records = records.into_iter().filter_map(|record| self.stored(record)).collect();
        let beside = File { records: Vec::new(), claim: claim.clone() };
        match flaw {
            Flaw::ClaimFirst => {
                self.file(&format!("{name}.claim"), beside).await?;
                self.file(&name, File { records, claim: None }).await
            }
            Flaw::ClaimLast => {
                self.file(&name, File { records, claim: None }).await?;
                self.file(&format!("{name}.claim"), beside).await
            }
            _ => self.file(&name, File { records, claim }).await,
        }
    }

    async fn file(&self, name: &str, file: File) -> Result<(), Full> {
        let (model, flaw) = (&self.model, self.model.build.flaw);
        let temporary = format!("{name}{TEMPORARY}");
        match model.put(&temporary, file).await {
            Err(_) if flaw == Flaw::SwallowsErrors => return Ok(()),
            put => put?,
        }
        if flaw != Flaw::NoSync {
            let mut synced = model.sync(&temporary).await;
            if flaw == Flaw::SyncsAgain && synced.is_err() {
                synced = model.sync(&temporary).await;
            }
            synced?;
        }
        model.rename(&temporary, name).await?;
        if flaw == Flaw::NoDirectorySync { Ok(()) } else { model.sync_directory().await }
    }
}

/// What no model can store.
pub(crate) fn never(record: &Record) -> bool {
    record.subject.as_str() == "never"
}

impl Sink for ModelSink {
    type Error = Full;

    async fn write(&mut self, record: Record) -> Result<Written, Full> {
        let flaw = self.model.build.flaw;
        if never(&record) && flaw != Flaw::RejectsInSilence {
            return Ok(Written::Rejected("never".into()));
        }
        if self.model.build.rejects_binary && std::str::from_utf8(&record.payload).is_err() {
            return Ok(Written::Rejected("no text".into()));
        }
        if flaw == Flaw::ReplaysJournal {
            self.model.disk().journal.push((self.source.clone(), record.clone()));
        }
        if flaw == Flaw::SkipsBelow && record.sequence < std::mem::replace(&mut self.highest, record.sequence) {
            return Ok(Written::Accepted);
        }
        let full = self.buffer.len() + 1 >= BOUND;
        if !(full && flaw == Flaw::LosesWhenFull) {
            self.buffer.push(record);
        }
        Ok(if full { Written::Full } else { Written::Accepted })
    }

    async fn flush(&mut self, flush: Flush<'_>) -> Result<Durable, Full> {
        let (build, flaw) = (self.model.build, self.model.build.flaw);
        self.flushes += 1;
        if self.buffer.is_empty() {
            return if flaw == Flaw::FailsWhenEmpty { Err(Full) } else { Ok(Durable::All) };
        }
        let everything = flush.reason() == Reason::Everything;
        let keeps = |place: usize| match flaw {
            Flaw::KeepsBack => place % 3 == 2,
            Flaw::ClaimsAll | Flaw::NamesUnwritten => !everything && place % 2 == 1,
            _ => build.partial && !everything && place % 2 == 1,
        };
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for (place, record) in std::mem::take(&mut self.buffer).into_iter().enumerate() {
            if keeps(place) { later.push(record) } else { now.push(record) }
        }
        let mut ids: Vec<RecordId> = now.iter().map(Record::id).collect();
        let claim = if later.is_empty() || flaw == Flaw::ClaimsAll { flush.claim() } else { flush.claim_for(&ids) };
        self.save(now, claim).await?;
        if flaw == Flaw::ReplaysJournal {
            self.model.disk().journal.retain(|(of, record)| *of != self.source || !ids.contains(&record.id()));
        }
        if flaw == Flaw::NamesUnwritten {
            ids.extend(later.iter().map(Record::id));
        }
        if flaw == Flaw::NamesUnknown {
            ids.push(RecordId::new(1_000_000, 1));
        }
        self.buffer = later;
        let all = self.buffer.is_empty() && flaw != Flaw::NamesUnknown;
        Ok(if all { Durable::All } else { Durable::Only(ids) })
    }

    async fn recover(&mut self, source: &Source) -> Result<Recovered, Full> {
        self.recover_beyond(source, &Coverage::default()).await
    }

    async fn recover_beyond(&mut self, source: &Source, checkpoint: &Coverage) -> Result<Recovered, Full> {
        let build = self.model.build;
        if build.kind == Kind::Plain {
            return Ok(Recovered::Unknown);
        }
        let files = self.model.files(source);
        // What an earlier process renamed may be in the cache only. That the contents are synced, the name says.
        if build.flaw != Flaw::RecoversUnsynced {
            self.model.sync_directory().await?;
        }
        let leaves_out = build.kind == Kind::AtLeast || build.flaw == Flaw::ExactlyBeyond;
        let mut claims = Vec::new();
        for file in files {
            let Some(claim) = file.claim else { continue };
            let ids = || file.records.iter().map(Record::id);
            let known = ids().min().zip(ids().max()).is_some_and(|(first, last)| checkpoint.holds(first, last));
            if known && leaves_out {
                continue;
            }
            claims.push(claim);
        }
        if build.flaw == Flaw::NewestClaim {
            claims = claims.pop().into_iter().collect();
        }
        Ok(match build.kind {
            Kind::Exactly => Recovered::Exactly { from: 1, claims },
            _ => Recovered::AtLeast(claims),
        })
    }

    async fn records_in(&mut self, source: &Source, sequences: RangeInclusive<u64>) -> Result<Vec<RecordId>, Full> {
        let flaw = self.model.build.flaw;
        if !self.model.build.lists {
            return Ok(Vec::new());
        }
        self.model.sync_directory().await?;
        let mut ids: Vec<RecordId> =
            self.model.files(source).iter().flat_map(|file| &file.records).map(Record::id).collect();
        if flaw == Flaw::ListsBuffer {
            ids.extend(self.buffer.iter().map(Record::id));
        }
        ids.retain(|id| sequences.contains(&id.sequence));
        if flaw == Flaw::ListsNewest {
            let newest: BTreeMap<u64, RecordId> = ids.iter().map(|id| (id.sequence, *id)).collect();
            ids = newest.into_values().collect();
        }
        Ok(ids)
    }
}
