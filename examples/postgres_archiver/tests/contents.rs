//! What a message looks like in the table.

use std::process::Command;

use archiver_support::wheel::Result;
use async_nats::{HeaderMap, Subject};

use crate::rig::{EACH, Rig, STREAM};

#[tokio::test(flavor = "multi_thread")]
async fn every_message_comes_back_as_it_was() -> Result<()> {
    let rig = Rig::new().await?;
    let client = rig.nats.client().await?;
    let mut headers = HeaderMap::new();
    headers.append("X-Two", "first");
    headers.append("X-Two", "second \"quoted\" \\ \u{e9}");
    let mut with_nul = HeaderMap::new();
    with_nul.append("X-Nul", "a\0b");
    let large = vec![0_u8; 900_000];
    let messages: Vec<(&str, HeaderMap, Vec<u8>)> = vec![
        ("s.empty", HeaderMap::new(), Vec::new()),
        ("s.headers", headers, b"\0\xff\x80".to_vec()),
        ("s.large", HeaderMap::new(), large.clone()),
        ("s.\u{e9}\u{4e2d}\u{1f600}", HeaderMap::new(), b"1".to_vec()),
        ("s.'quote\"/\\x,{}$1|%2e", HeaderMap::new(), b"2".to_vec()),
        ("s.nul\0nul", HeaderMap::new(), b"3".to_vec()),
        ("s.header", with_nul, b"4".to_vec()),
    ];
    for (subject, headers, payload) in &messages {
        let reply = rig
            .jetstream
            .publish_with_headers(Subject::from(*subject), headers.clone(), payload.clone().into())
            .await?
            .await;
        assert!(reply.is_ok(), "{subject:?}: {reply:?}");
    }
    client.flush().await?;
    rig.archive(STREAM).await?;
    assert_eq!(rig.rows()?, messages.len() as u64);

    for (sequence, (subject, _, payload)) in (1..).zip(&messages) {
        let row = rig.postgres.ask(&format!(
            "SELECT length(payload), encode(sha256(payload), 'hex'), subject FROM archive.records WHERE sequence = {sequence}"
        ))?;
        let digest = sha256(&rig, payload)?;
        let shown = subject.replace('\0', "\u{fffd}");
        assert_eq!(row.trim_end_matches('\n'), format!("{}|{digest}|{shown}", payload.len()), "{subject:?}");
    }
    let pairs = rig.postgres.ask(
        "SELECT h->>'name', h->>'value' FROM archive.records, jsonb_array_elements(headers) WITH ORDINALITY t(h, n)
         WHERE sequence = 2 ORDER BY n",
    )?;
    assert_eq!(pairs, "X-Two|first\nX-Two|second \"quoted\" \\ \u{e9}\n");
    // A NUL is more than `text` and `jsonb` can hold.
    let exact = rig.postgres.ask("SELECT sequence, exact FROM archive.records WHERE exact IS NOT NULL ORDER BY 1")?;
    let expected = [
        r#"6|{"headers":[],"subject":"s.nul\u0000nul"}"#,
        r#"7|{"headers":[{"name":"X-Nul","value":"a\u0000b"}],"subject":"s.header"}"#,
    ];
    assert_eq!(exact.lines().collect::<Vec<_>>(), expected);
    // Both times say the same, and what the stream says.
    let stream = rig.jetstream.get_stream(STREAM).await?;
    let time = stream.get_raw_message(1).await?.time;
    let times = rig.postgres.ask(
        "SELECT published_ns, published = timestamptz '1970-01-01 00:00:00+00' + published_ns / 1000 * interval '1 microsecond'
         FROM archive.records WHERE sequence = 1",
    )?;
    assert_eq!(times.trim(), format!("{}|t", time.unix_timestamp_nanos()));
    Ok(())
}

/// Not by what the archiver could share.
fn sha256(rig: &Rig, bytes: &[u8]) -> Result<String> {
    let path = rig.file("payload");
    std::fs::write(&path, bytes)?;
    let said = archiver_support::wheel::run(Command::new("sha256sum").arg(path))?;
    Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_share_tables_and_nothing_else() -> Result<()> {
    let rig = Rig::new().await?;
    rig.make("T", "t.>").await?;
    rig.publish("s.a", EACH).await?;
    rig.publish("t.a", 2 * EACH).await?;
    rig.publish("t.b", 1).await?;
    // They begin together, and all find no tables: one after the other makes them, or finds them made.
    let held = rig.postgres.hold(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('replay-guard archive', 0)); SELECT pg_sleep(1000)",
    )?;
    crate::rig::until("the lock is held", async || {
        Ok(rig.postgres.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted")? == 1)
    })
    .await?;
    let mut one = rig.start(&mut rig.command(STREAM))?;
    let mut two = rig.start(&mut rig.command("T"))?;
    let mut filtered =
        rig.start(rig.command_with("T", "filtered", EACH, "0.1").args(["--filter", "t.b", "--filter", "t.\u{e9}'{}"]))?;
    crate::rig::until("all wait for the one who makes them", async || {
        Ok(rig.postgres.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")? == 3)
    })
    .await?;
    drop(held);
    rig.caught_up(STREAM, &mut one).await?;
    rig.caught_up("T", &mut two).await?;
    crate::rig::until("the third has its message", async || Ok(rig.rows_if_any() == 3 * EACH as u64 + 2)).await?;
    if let Some(status) = filtered.process.ended()? {
        return Err(format!("{status}: {}", filtered.log()?).into());
    }
    for archiver in [one, two, filtered] {
        Rig::never_again(&archiver.stop().await?)?;
    }
    let counts = rig.postgres.ask(
        "SELECT stream, cardinality(filters), count(*), count(DISTINCT sequence) FROM archive.records
         JOIN archive.sources ON id = source GROUP BY 1, 2, source ORDER BY 1, 2",
    )?;
    assert_eq!(counts.trim(), format!("S|0|{EACH}|{EACH}\nT|0|{0}|{0}\nT|2|1|1", 2 * EACH + 1));
    Ok(())
}
