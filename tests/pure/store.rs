//! Stores through their public face, on a real directory.

mod damage;

use std::fs;
use std::path::{Path, PathBuf};

use replay_guard::{CheckpointStore, FileStore, MemoryStore, Source, StoreError, Stored};
use tempfile::TempDir;

/// A whole frame: version 1, slots of 2^12, the second save, five bytes. Any reader must agree to every byte.
const FRAME: &str = "895247430d0a1a0a01000c0002000000000000000500000068656c6c6ff6f8920b";

fn source() -> Source {
    Source::new("ORDERS").with_filters(["orders.eu"])
}

fn store(dir: &TempDir) -> FileStore {
    FileStore::new(dir.path(), &source())
}

fn path(dir: &TempDir) -> PathBuf {
    store(dir).location().into()
}

async fn open(dir: &TempDir) -> Stored {
    store(dir).open().await.unwrap()
}

/// Saves states in one opening.
async fn saved(dir: &TempDir, bodies: &[&'static str]) {
    let mut store = store(dir);
    store.open().await.unwrap();
    for body in bodies {
        store.save(1, (*body).into()).await.unwrap();
    }
}

fn bodies(stored: &Stored) -> Vec<&[u8]> {
    stored.states.iter().map(|saved| &saved.body[..]).collect()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn every_store_keeps_the_contract() {
    let dir = TempDir::new().unwrap();
    contract(|| store(&dir)).await;
    let memory = MemoryStore::new();
    contract(|| memory.clone()).await;
    contract(|| Box::new(memory.clone()) as Box<dyn CheckpointStore>).await;
}

/// What a guard relies on, whatever the store. It must be empty.
async fn contract<S: CheckpointStore>(reopen: impl Fn() -> S) {
    let mut store = reopen();
    assert!(matches!(store.save(1, "x".into()).await, Err(StoreError::Closed)));
    assert!(matches!(store.set_aside().await, Err(StoreError::Closed)));
    assert_eq!(store.open().await.unwrap(), Stored::default());
    assert_eq!(store.set_aside().await.unwrap(), None);

    for (i, body) in ["one", "two", "three", "four"].into_iter().enumerate() {
        store.save(7, body.into()).await.unwrap();
        assert!(matches!(reopen().open().await, Err(StoreError::Locked { .. })));
        drop(store);
        store = reopen();
        let stored = store.open().await.unwrap();
        assert!(stored.damaged.is_empty());
        let newest = &stored.states[0];
        assert_eq!((newest.counter, newest.version, &newest.body[..]), (i as u64 + 1, 7, body.as_bytes()));
    }
    // Opened again without being dropped, it keeps its own lock.
    store.save(8, "five".into()).await.unwrap();
    store.save(9, "six".into()).await.unwrap();
    let stored = store.open().await.unwrap();
    assert_eq!(bodies(&stored), [b"six".as_slice(), b"five"]);
    assert_eq!(stored.states[0].version, 9);
    assert!(matches!(reopen().open().await, Err(StoreError::Locked { .. })));

    assert!(matches!(store.save(1, "".into()).await, Err(StoreError::Empty)));
    assert!(matches!(store.save(1, "x".into()).await, Err(StoreError::Closed)), "a failure closes");
    assert_eq!(bodies(&store.open().await.unwrap()), [b"six".as_slice(), b"five"]);

    let first = store.set_aside().await.unwrap().unwrap();
    assert_eq!(store.set_aside().await.unwrap(), None);
    store.save(1, "anew".into()).await.unwrap();
    let stored = store.open().await.unwrap();
    assert_eq!((stored.states.len(), stored.states[0].counter), (1, 1));
    assert_ne!(store.set_aside().await.unwrap().unwrap(), first);
    // What was put aside may be reported: without a new state beside it the checkpoint is lost, not missing.
    assert_eq!(store.open().await.unwrap().states, []);
}

#[tokio::test]
async fn c5_the_file_is_byte_for_byte_as_documented() {
    let dir = TempDir::new().unwrap();
    saved(&dir, &["first", "hello"]).await;
    let file = fs::read(path(&dir)).unwrap();
    assert_eq!(file.len(), 8192);
    let golden = unhex(FRAME);
    assert_eq!(file[..golden.len()], golden);
    assert!(file[golden.len()..4096].iter().all(|byte| *byte == 0));
    // And the other way round: nothing but the documented bytes is needed.
    let mut file = golden;
    file.resize(8192, 0);
    file[12] = 1;
    let sum = crc32fast::hash(&file[..29]);
    file[29..33].copy_from_slice(&sum.to_le_bytes());
    fs::write(path(&dir), file).unwrap();
    let stored = open(&dir).await;
    assert_eq!(bodies(&stored), [b"hello"]);
    assert!(stored.damaged.is_empty(), "a second slot never written is no damage: {stored:?}");
}

#[tokio::test]
async fn it_grows_with_its_state_and_comes_back_at_every_size() {
    let dir = TempDir::new().unwrap();
    for reopened in [false, true] {
        let mut store = store(&dir);
        store.open().await.unwrap();
        let mut last = Vec::new();
        for length in [1, 4068, 4069, 100, 8164, 8165, 70_000, 5, 300_000] {
            for fill in [1, 2, 3_u8] {
                let body = vec![fill; length];
                store.save(2, body.clone().into()).await.unwrap();
                if reopened {
                    drop(store);
                    store = self::store(&dir);
                    let stored = store.open().await.unwrap();
                    assert_eq!(stored.states[0].body, body);
                    assert!(stored.damaged.is_empty(), "{:?}", stored.damaged);
                }
                last = body;
            }
        }
        drop(store);
        assert_eq!(bodies(&open(&dir).await)[0], last);
    }
    assert_eq!(fs::metadata(path(&dir)).unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn what_is_too_large_is_refused_and_what_was_there_stays() {
    let dir = TempDir::new().unwrap();
    let mut store = store(&dir);
    store.open().await.unwrap();
    store.save(1, "one".into()).await.unwrap();
    let error = store.save(1, vec![0; FileStore::MAX_BODY + 1].into()).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { bytes, limit } if bytes == limit + 1), "{error:?}");
    assert!(matches!(store.save(1, "two".into()).await, Err(StoreError::Closed)));
    assert_eq!(bodies(&store.open().await.unwrap()), [b"one"]);
    assert_eq!(files(path(&dir).parent().unwrap()).len(), 2);
}

#[tokio::test]
async fn opening_changes_no_state() {
    let dir = TempDir::new().unwrap();
    saved(&dir, &["one", "two"]).await;
    let before = fs::read(path(&dir)).unwrap();
    let changed = fs::metadata(path(&dir)).unwrap().modified().unwrap();
    open(&dir).await;
    assert_eq!(fs::read(path(&dir)).unwrap(), before);
    assert_eq!(fs::metadata(path(&dir)).unwrap().modified().unwrap(), changed);
}

#[tokio::test]
async fn only_its_own_leftover_is_removed() {
    let dir = TempDir::new().unwrap();
    saved(&dir, &["one"]).await;
    let own = format!("{}.tmp", path(&dir).display());
    let others = path(&dir).with_file_name("orders_us-12345678.ckpt.tmp");
    fs::write(&own, "half of").unwrap();
    fs::write(&others, "not ours").unwrap();
    assert_eq!(bodies(&open(&dir).await), [b"one"]);
    assert!(!Path::new(&own).exists());
    assert!(others.exists());
}

/// Case C6.
#[tokio::test]
async fn sources_that_look_alike_do_not_share_and_one_source_has_one_guard() {
    let dir = TempDir::new().unwrap();
    let sources = [
        Source::new("A"),
        Source::new("a"),
        Source::new("A").with_domain("hub"),
        Source::new("A").with_filters(["a.b"]),
        Source::new("A").with_filters(["a_b"]),
        Source::new("A").with_filters(["A.b"]),
    ];
    let mut held = Vec::new();
    for (i, source) in (1_u8..).zip(&sources) {
        let mut store = FileStore::new(dir.path(), source);
        assert_eq!(store.open().await.unwrap(), Stored::default(), "{source}");
        store.save(1, vec![i].into()).await.unwrap();
        held.push(store);
    }
    for (i, source) in (1_u8..).zip(&sources) {
        let mut second = FileStore::new(dir.path(), source);
        let lock = match second.open().await.unwrap_err() {
            StoreError::Locked { path } => path,
            error => panic!("{error:?}"),
        };
        assert_eq!(lock, Path::new(&second.location()).with_extension("lock"));
        assert!(lock.exists());
        assert!(matches!(second.save(1, "x".into()).await, Err(StoreError::Closed)));
        drop(held.remove(0));
        assert_eq!(bodies(&second.open().await.unwrap()), [[i]]);
        assert!(lock.exists(), "a lock file stays");
    }
}

#[tokio::test]
async fn a_file_that_goes_while_in_use_closes_the_store() {
    let dir = TempDir::new().unwrap();
    let mut store = store(&dir);
    store.open().await.unwrap();
    store.save(1, "one".into()).await.unwrap();
    fs::rename(path(&dir), dir.path().join("moved")).unwrap();
    let error = store.save(1, "two".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error:?}");
    assert!(matches!(store.save(1, "two".into()).await, Err(StoreError::Closed)));
    assert_eq!(store.open().await.unwrap(), Stored::default());
    store.save(1, "two".into()).await.unwrap();

    // With the directory the lock goes as well: it is taken anew.
    fs::remove_dir_all(path(&dir).parent().unwrap()).unwrap();
    store.save(1, "three".into()).await.unwrap_err();
    store.open().await.unwrap();
    store.save(1, "three".into()).await.unwrap();
    assert!(matches!(self::store(&dir).open().await, Err(StoreError::Locked { .. })));
}

#[tokio::test]
async fn a_save_dropped_at_any_moment_leaves_the_state_before_or_this_one() {
    let dir = TempDir::new().unwrap();
    let mut store = store(&dir);
    store.open().await.unwrap();
    store.save(1, vec![0].into()).await.unwrap();
    let mut last = 0;
    for i in 1..100_u8 {
        let length = if i % 10 == 0 { 20_000 } else { 10 };
        let dropped = tokio::select! {
            biased;
            () = async { for _ in 0..i % 4 { tokio::task::yield_now().await } } => true,
            done = store.save(1, vec![i; length].into()) => { done.unwrap(); false }
        };
        if dropped && i % 4 > 0 {
            assert!(matches!(store.save(1, "x".into()).await, Err(StoreError::Closed)), "{i}");
        }
        if i % 3 == 0 {
            store = FileStore::new(dir.path(), &source());
        }
        let stored = loop {
            // What a dropped store was doing goes on, and holds the lock for as long.
            match store.open().await {
                Err(StoreError::Locked { .. }) => tokio::task::yield_now().await,
                done => break done.unwrap(),
            }
        };
        let found = stored.states[0].body[0];
        assert!(found == i || found == last && dropped, "{i}: {found}, {last}");
        assert!(stored.damaged.is_empty(), "{:?}", stored.damaged);
        store.save(1, stored.states[0].body.clone()).await.unwrap();
        last = found;
    }
}

#[cfg(unix)]
mod unix {
    use std::error::Error;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn files_and_new_directories_are_for_their_owner_only() {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let deep = dir.path().join("a/b");
        let mut store = FileStore::new(&deep, &source());
        store.open().await.unwrap();
        store.save(1, "one".into()).await.unwrap();
        let file = PathBuf::from(store.location());
        assert_eq!(mode(&file), 0o600);
        assert_eq!(mode(&file.with_extension("lock")), 0o600);
        for made in [file.parent().unwrap(), &deep, &dir.path().join("a")] {
            assert_eq!(mode(made), 0o700, "{}", made.display());
        }
        assert_eq!(mode(dir.path()), 0o755, "what was there before stays as it is");
    }

    #[tokio::test]
    async fn what_is_no_file_is_refused_and_left_alone() {
        type Make = fn(&Path, &Path);
        let link: Make = |at, target| symlink(target, at).unwrap();
        let dir: Make = |at, _| fs::create_dir(at).unwrap();
        for suffix in ["ckpt", "ckpt.tmp", "lock"] {
            for (make, what) in [(link, "a symbolic link"), (dir, "a directory")] {
                let dir = TempDir::new().unwrap();
                saved(&dir, &["one"]).await;
                let target = dir.path().join("target");
                fs::write(&target, "of someone else").unwrap();
                let at = path(&dir).with_extension(suffix);
                let _ = fs::remove_file(&at);
                make(&at, &target);
                match store(&dir).open().await.unwrap_err() {
                    error @ StoreError::Io { .. } => {
                        let advice = "move what stands in its way, or choose another directory";
                        assert_eq!(error.to_string(), format!("cannot open {}; {advice}", at.display()));
                        let source = error.source().unwrap().to_string();
                        assert_eq!(source, format!("expected a file, found {what}"));
                    }
                    error => panic!("{error:?}"),
                }
                assert_eq!(fs::read(&target).unwrap(), b"of someone else");
            }
        }
    }

    #[tokio::test]
    async fn a_file_where_a_directory_should_be_is_named() {
        let dir = TempDir::new().unwrap();
        let taken = dir.path().join("taken");
        fs::write(&taken, "x").unwrap();
        for below in [taken.clone(), taken.join("deeper")] {
            let error = FileStore::new(below, &source()).open().await.unwrap_err();
            assert!(matches!(&error, StoreError::Io { .. }) && error.to_string().contains("taken"), "{error}");
        }
    }
}
