//! Files that are torn, cut, flipped, or not whole at all.

use super::*;

#[tokio::test]
async fn every_flipped_bit_leaves_the_other_slot_and_is_reported() {
    let dir = TempDir::new().unwrap();
    saved(&dir, &["one", "older", "newer"]).await;
    let path = path(&dir);
    let good = fs::read(&path).unwrap();
    for (slot, left) in [(0, b"newer"), (4096, b"older")] {
        for bit in 0..33 * 8 {
            let mut bad = good.clone();
            bad[slot + bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bad).unwrap();
            let stored = open(&dir).await;
            assert_eq!(bodies(&stored), [left], "bit {bit} of slot {slot}: {stored:?}");
            assert_eq!(stored.damaged.len(), 1, "bit {bit} of slot {slot}: {stored:?}");
            assert!(stored.damaged[0].contains("expected") && stored.damaged[0].contains("found"), "{stored:?}");
        }
    }
}

#[tokio::test]
async fn a_file_cut_at_every_length_gives_back_whole_states_only() {
    let dir = TempDir::new().unwrap();
    saved(&dir, &["one", "older", "newer"]).await;
    let path = path(&dir);
    let good = fs::read(&path).unwrap();
    let frame = 33;
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).unwrap();
        let stored = open(&dir).await;
        let expected: &[&[u8]] = match length {
            _ if length < frame => &[],
            _ if length < 4096 + frame => &[b"older"],
            _ => &[b"newer", b"older"],
        };
        assert_eq!(bodies(&stored), expected, "cut at {length}");
        assert_eq!(stored.damaged.is_empty(), length >= 4096 + frame, "cut at {length}: {stored:?}");
    }
}

/// Case C1.
#[tokio::test]
async fn the_newest_slot_cut_short_leaves_the_older_and_the_next_save_is_newer_than_both() {
    for newest_in_b in [true, false] {
        for keep in [0, 1, 16, 32] {
            let dir = TempDir::new().unwrap();
            let all: &[_] = if newest_in_b { &["one", "older", "newer"] } else { &["older", "newer"] };
            saved(&dir, all).await;
            let mut file = fs::read(path(&dir)).unwrap();
            if newest_in_b {
                file.truncate(4096 + keep);
            } else {
                file[keep..4096].fill(0);
            }
            fs::write(path(&dir), file).unwrap();
            let mut store = store(&dir);
            let stored = store.open().await.unwrap();
            assert_eq!(bodies(&stored), [b"older"], "kept {keep}");
            assert_eq!(stored.damaged.len(), 1, "kept {keep}: {stored:?}");
            let seen = stored.states[0].counter;

            store.save(1, "older".into()).await.unwrap();
            let stored = store.open().await.unwrap();
            assert!(stored.damaged.is_empty(), "{stored:?}");
            // The header of the torn slot, where it is left, counts as seen.
            assert_eq!(stored.states[0].counter, seen + if keep == 32 { 2 } else { 1 });
            store.save(1, "next".into()).await.unwrap();
            assert_eq!(bodies(&store.open().await.unwrap())[0], b"next");
        }
    }
}

/// Case C2.
#[tokio::test]
async fn what_holds_no_whole_state_is_kept_aside_and_never_overwritten() {
    let dir = TempDir::new().unwrap();
    fs::create_dir_all(path(&dir).parent().unwrap()).unwrap();
    assert_eq!(open(&dir).await, Stored::default(), "an empty directory is no damage");

    saved(&dir, &["one", "two"]).await;
    let mut both = fs::read(path(&dir)).unwrap();
    both[26] ^= 1;
    both[4096 + 26] ^= 1;
    let mut forged = both.clone();
    forged[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    let wrecks: [&[u8]; 7] = [&both, &forged, b"", b"x", &[0; 8192], &[0xff; 9_000], b"{\"sequence\": 17}\n"];
    let mut kept = Vec::new();
    for (i, wreck) in wrecks.into_iter().enumerate() {
        fs::write(path(&dir), wreck).unwrap();
        let mut store = store(&dir);
        let stored = store.open().await.unwrap();
        assert!(stored.states.is_empty() && stored.damaged.len() == 2, "{i}: {stored:?}");
        let error = store.save(1, "over it".into()).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
        assert_eq!(fs::read(path(&dir)).unwrap(), wreck, "{i}");

        store.open().await.unwrap();
        let aside = store.set_aside().await.unwrap().unwrap();
        assert_eq!(aside, format!("{}.corrupt-{}", path(&dir).display(), i + 1));
        store.save(1, "anew".into()).await.unwrap();
        let stored = store.open().await.unwrap();
        assert_eq!((bodies(&stored), stored.damaged.len()), (vec![b"anew".as_slice()], 0));
        kept.push((aside, wreck));
    }
    for (aside, wreck) in kept {
        assert_eq!(fs::read(aside).unwrap(), wreck);
    }
}

#[tokio::test]
async fn a_gap_among_the_names_set_aside_is_used_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    saved(&dir, &["one"]).await;
    let taken = format!("{}.corrupt-1", path(&dir).display());
    fs::create_dir(&taken).unwrap();
    let mut store = store(&dir);
    store.open().await.unwrap();
    assert!(store.set_aside().await.unwrap().unwrap().ends_with(".corrupt-2"));
    assert!(fs::metadata(taken).unwrap().is_dir());
}

#[tokio::test]
async fn slot_b_is_found_at_every_power_of_two() {
    for log2 in 12..18_u16 {
        let dir = TempDir::new().unwrap();
        let length = (1_usize << log2) - 28;
        let mut store = store(&dir);
        store.open().await.unwrap();
        for fill in [1, 2, 3_u8] {
            store.save(1, vec![fill; length].into()).await.unwrap();
        }
        let mut file = fs::read(path(&dir)).unwrap();
        assert_eq!(file.len(), 2 << log2);
        // A larger and a smaller size in slot A, each well formed, must not lead the reader astray.
        for size in [11, log2 - 1, log2 + 1] {
            file[10..12].copy_from_slice(&size.to_le_bytes());
            fs::write(path(&dir), &file).unwrap();
            let stored = store.open().await.unwrap();
            assert_eq!(bodies(&stored), [vec![3; length]]);
            assert_eq!(stored.damaged.len(), 1, "{:?}", stored.damaged);
        }
    }
}

#[tokio::test]
async fn a_frame_inside_the_body_of_slot_a_is_not_taken_for_slot_b() {
    let dir = TempDir::new().unwrap();
    let mut store = store(&dir);
    store.open().await.unwrap();
    store.save(1, "a trap".into()).await.unwrap();
    let trap = fs::read(path(&dir)).unwrap();
    let mut body = vec![0; 4096 - 24];
    body.extend_from_slice(&trap[..4096]);
    for _ in 0..3 {
        store.save(1, body.clone().into()).await.unwrap();
    }
    let mut file = fs::read(path(&dir)).unwrap();
    assert_eq!(file[4096..8192], trap[..4096]);
    file[0] ^= 1;
    fs::write(path(&dir), file).unwrap();
    assert_eq!(bodies(&store.open().await.unwrap()), [body]);
}

#[tokio::test]
async fn a_longer_file_is_reported_and_mended() {
    let dir = TempDir::new().unwrap();
    saved(&dir, &["one", "two"]).await;
    let mut file = fs::read(path(&dir)).unwrap();
    file.push(1);
    fs::write(path(&dir), file).unwrap();
    let mut store = store(&dir);
    let stored = store.open().await.unwrap();
    assert_eq!(bodies(&stored), [b"two", b"one"]);
    assert_eq!(stored.damaged, ["the file: expected 8192 bytes, found 8193"]);
    store.save(1, "two".into()).await.unwrap();
    assert!(store.open().await.unwrap().damaged.is_empty());
}
