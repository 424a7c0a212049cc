//! The properties.

use std::cell::RefCell;
use std::path::{Component, Path};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, ready};
use replay_guard::{
    CheckpointStore, Claim, Durable, FileStore, Flush, Guard, MemoryStore, MemoryStream, OnDamage, Opening, Origin,
    Reason, Record, Recovered, Saved, Sink, Source, StoreError, Stored, Written,
};

/// The body of a checkpoint, after two bytes that say which version. What is read and saved again reads the same, and can be
/// worked with.
pub fn checkpoint(bytes: &[u8]) {
    let Some((version, body)) = bytes.split_first_chunk::<2>() else { return };
    let state = Saved::new(7, u16::from_le_bytes(*version), Bytes::copy_from_slice(body));
    Shelf::worked_with(vec![state.clone()], Vec::new());
    let once = Shelf::opened_with(vec![state], Vec::new());
    let Some(saved) = once else { return };
    // A fork found at the first opening leaves what stands; the second finds nothing new.
    let twice = Shelf::opened_with(vec![saved.clone()], Vec::new());
    assert_eq!(twice.map(|again| again.body), Some(saved.body));
}

/// A claim without its checksum, which is put behind it. Opening a guard with it ends.
pub fn claim(bytes: &[u8]) {
    // As it stands, it is hardly ever a claim.
    let _ = Claim::from_bytes(Bytes::copy_from_slice(bytes));
    let mut whole = bytes.to_vec();
    whole.extend(crc32fast::hash(bytes).to_le_bytes());
    let Ok(claim) = Claim::from_bytes(whole.clone()) else { return };
    assert_eq!(claim.as_bytes(), whole);
    Shelf::worked_with(Vec::new(), vec![claim]);
}

/// A checkpoint file. If the first byte is odd, the checksum behind each sound header is put right first.
pub fn slots(bytes: &[u8]) {
    let Some((repair, file)) = bytes.split_first() else { return };
    let mut file = file.to_vec();
    if repair % 2 == 1 {
        repair_frames(&mut file);
    }
    let source = Source::new("S");
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut store = FileStore::new(place.path(), &source);
    let path = store.location();
    std::fs::create_dir_all(Path::new(&path).parent().expect("a directory")).expect("it can be made");
    std::fs::write(&path, &file).expect("it can be written");
    let stored = now(store.open()).expect("damage is no error");
    let bytes: usize = stored.states.iter().map(|state| state.body.len()).sum();
    assert!(bytes <= file.len(), "{bytes} bytes came out of {}", file.len());
    assert!(stored.states.is_sorted_by(|newer, older| newer.counter >= older.counter));
    assert!(!stored.states.is_empty() || !stored.damaged.is_empty() || file.iter().all(|byte| *byte == 0));
    if let Some(newest) = stored.states.first() {
        // It can be gone on from.
        let next = Bytes::from_static(b"next");
        now(store.save(newest.version, next.clone())).expect("a store with a state can be saved to");
        let again = now(store.open()).expect("it can be opened");
        assert_eq!(again.states.first().map(|state| &state.body), Some(&next));
    }
}

/// Parts of a source's name, a line each: the stream, a domain, filters. Its checkpoint lies two names below the root.
pub fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let mut source = Source::new(lines.next().unwrap_or_default());
    if let Some(domain) = lines.next().filter(|domain| !domain.is_empty()) {
        source = source.with_domain(domain);
    }
    source = source.with_filters(lines);
    let root = Path::new("/root");
    let location = FileStore::new(root, &source).location();
    let below = Path::new(&location).strip_prefix(root).expect("below the root");
    let parts: Vec<Component<'_>> = below.components().collect();
    assert_eq!(parts.len(), 2, "{location:?}");
    for part in parts {
        let Component::Normal(name) = part else { panic!("{location:?}") };
        let name = name.to_str().expect("text");
        assert!(name.len() <= 200 && !name.starts_with('.') && name.is_ascii(), "{name:?}");
        assert!(!name.contains(['/', '\\', ':', '*', '?', '"', '<', '>', '|', '\0', ' ']), "{name:?}");
    }
}

/// Where headers are sound, so are the checksums from now on.
fn repair_frames(file: &mut [u8]) {
    const HEADER: usize = 24;
    let mut offset = 0;
    while offset < file.len() {
        let slot = file.get_mut(offset..).unwrap_or_default();
        let length = slot.get(20..HEADER).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
        let end = HEADER.saturating_add(length as usize);
        if let Some((frame, rest)) = slot.split_at_mut_checked(end)
            && let Some(checksum) = rest.get_mut(..4)
        {
            checksum.copy_from_slice(&crc32fast::hash(frame).to_le_bytes());
        }
        offset = (offset * 2).max(4096);
    }
}

/// A store that gives these states, and keeps what is saved.
struct Shelf {
    states: Vec<Saved>,
    saved: MemoryStore,
}

impl Shelf {
    /// Opens a guard on it, over a stream of a few messages, with a sink that names these claims: what it saved.
    fn opened_with(states: Vec<Saved>, claims: Vec<Claim>) -> Option<Saved> {
        let (guard, mut saved, _) = Self::open_with(states, claims)?;
        drop(guard);
        now(saved.open()).expect("memory").states.into_iter().next()
    }

    /// The same, and all messages of the stream are offered and flushed.
    fn worked_with(states: Vec<Saved>, claims: Vec<Claim>) {
        let Some((mut guard, _, records)) = Self::open_with(states, claims) else { return };
        now(async {
            // It may refuse: there may be a move to be made first.
            let _ = guard.begin_session().await;
            for record in records {
                let _ = guard.offer(record, None).await;
            }
            let _ = guard.flush(Reason::Everything).await;
        });
    }

    fn open_with(states: Vec<Saved>, claims: Vec<Claim>) -> Option<(Guard<Names>, MemoryStore, Vec<Record>)> {
        let saved = MemoryStore::new();
        let shelf = Self { states, saved: saved.clone() };
        let stream = MemoryStream::new();
        let records = (0..8_u8).map(|n| stream.publish("s", vec![n])).collect();
        let guard = now(async {
            let source = Source::new("S");
            let mut opening = Opening::load(source, shelf, OnDamage::WriteAgain).await.ok()?;
            let mut sink = Names(claims);
            opening.recover(&mut sink).await.ok()?;
            let guard: Guard<Names> = opening.open(sink, stream, Origin::Beginning).await.ok()?;
            Some(guard)
        })?;
        // Whatever was believed, the floor is one the stream or the checkpoint can have.
        let _ = guard.floor();
        Some((guard, saved, records))
    }
}

impl CheckpointStore for Shelf {
    fn open(&mut self) -> BoxFuture<'_, Result<Stored, StoreError>> {
        let states = self.states.clone();
        async move {
            let _ = self.saved.open().await?;
            let mut stored = Stored::default();
            stored.states = states;
            Ok(stored)
        }
        .boxed()
    }

    fn save(&mut self, version: u16, body: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        self.saved.save(version, body)
    }

    fn set_aside(&mut self) -> BoxFuture<'_, Result<Option<String>, StoreError>> {
        ready(Ok(None)).boxed()
    }

    fn location(&self) -> String {
        "memory".into()
    }
}

/// A sink that holds what these claims say.
struct Names(Vec<Claim>);

impl Sink for Names {
    type Error = StoreError;

    async fn write(&mut self, _: Record) -> Result<Written, StoreError> {
        Ok(Written::Accepted)
    }

    async fn flush(&mut self, _: Flush<'_>) -> Result<Durable, StoreError> {
        Ok(Durable::All)
    }

    async fn recover(&mut self, _: &Source) -> Result<Recovered, StoreError> {
        Ok(Recovered::AtLeast(self.0.clone()))
    }
}

/// Runs it to its end.
fn now<T>(work: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: RefCell<tokio::runtime::Runtime> =
            RefCell::new(tokio::runtime::Builder::new_current_thread().build().expect("a runtime"));
    }
    RUNTIME.with_borrow(|runtime| runtime.block_on(work))
}
