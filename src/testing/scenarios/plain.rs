//! Nothing goes wrong with the process: what is written, how it is delivered, and what the sink says of it.

use std::collections::BTreeSet;

use async_nats::HeaderMap;
use bytes::Bytes;

use crate::coverage::Coverage;
use crate::error::chain;
use crate::record::RecordId;
use crate::sink::{Flush, Reason, Recovered, Sink, Written};
use crate::testing::Storage;
use crate::testing::books::list;
use crate::testing::life::{Crash, Life, Stop, broken};
use crate::testing::report::Promise;
use crate::testing::watched::Watched;

const SIZES: [u64; 6] = [1, 2, 3, 10, 50, 200];

/// A sink without a guard.
pub(super) async fn alone<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    let mut reason = Reason::Due;
    for sizes in [&[0, 1, 2, 40, 0][..], &[7, 0, 1], &[]] {
        life.watch.step("a new sink, alone");
        let mut sink = Watched::new(life.new_sink().await?, life.watch.clone());
        life.see(Promise::Kept).await?;
        for size in sizes {
            let from = life.messages().len();
            life.publish(*size);
            let mut records = life.messages().get(from..).unwrap_or_default().to_vec();
            if size % 2 == 0 {
                records.reverse();
            }
            for record in records {
                let written = called("write", sink.write(record).await)?;
                if written == Written::Full {
                    called("flush", sink.flush(Flush::without_guard(Reason::Due)).await)?;
                }
            }
            // What is only with the sink is not to be listed.
            called("records_in", sink.records_in(&life.source, 0..=u64::MAX).await)?;
            life.listen()?;
            life.see_lists().await?;
            called("flush", sink.flush(Flush::without_guard(reason)).await)?;
            life.watch.step(format!("flushed {size} records, {reason:?}"));
            life.listen()?;
            life.see(Promise::Kept).await?;
            reason = if reason == Reason::Due { Reason::Everything } else { Reason::Due };
        }
        called("flush", sink.flush(Flush::without_guard(Reason::Everything)).await)?;
        life.listen()?;
        drop(sink);
        life.crash(Crash::POWER).await?;
        life.books.complete(life.messages())?;
    }
    Ok(())
}

fn called<T, E: std::error::Error + 'static>(what: &str, outcome: Result<T, E>) -> Result<T, Stop> {
    outcome.or_else(|error| broken(Promise::Works, format!("{what}, with nothing to fail: {}", chain(&error))))
}

pub(super) async fn sizes<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    life.open().await?;
    for size in SIZES {
        life.publish(size);
        life.archive(usize::MAX).await?;
        life.see(Promise::Kept).await?;
    }
    life.publish(30);
    life.archive(4).await?;
    life.flush(Reason::Everything).await?;
    life.finish().await
}

const SUBJECTS: [&str; 12] = [
    "a",
    "a.b.c.d.e.f.g.h",
    "orders/1",
    "orders:1",
    "orders_1",
    "ORDERS_1",
    "..%2e%2F",
    "$weird.'quotes\".\\n,;=&",
    "\u{e9}\u{fc}.\u{65e5}\u{672c}",
    "-",
    "NULL",
    "{\"json\":true}",
];

/// Odd payloads, subjects and headers.
pub(super) async fn odd<S: Storage>(
    life: &mut Life<'_, S>,
    largest: usize,
    rejected: &mut BTreeSet<String>,
) -> Result<(), Stop> {
    life.open().await?;
    let mut what: Vec<(RecordId, String)> = Vec::new();
    let long = "long.".repeat(40) + "subject";
    let binary: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..=250).cycle().take(largest).collect();
    let payloads: [(&str, Vec<u8>); 7] = [
        ("an empty payload", Vec::new()),
        ("a zero byte", vec![0]),
        ("bytes that are no text", binary),
        ("line ends", b"\r\n\n\r\ttext\n".to_vec()),
        ("a quote and a backslash", b"\"'\\,;".to_vec()),
        ("the largest payload less one", large.get(..largest.saturating_sub(1)).unwrap_or_default().to_vec()),
        ("the largest payload", large),
    ];
    for subject in SUBJECTS.into_iter().chain([long.as_str()]) {
        what.push((life.publish_message(subject, HeaderMap::new(), "x"), format!("subject {subject:?}")));
    }
    for (name, payload) in payloads {
        let payload = Bytes::from(payload);
        for pair in 0..2 {
            let id = life.publish_message(&format!("odd.{pair}"), HeaderMap::new(), payload.clone());
            what.push((id, name.to_owned()));
        }
    }
    for (name, headers) in odd_headers() {
        what.push((life.publish_message("headers", headers.clone(), ""), format!("{name}, no payload")));
        what.push((life.publish_message("headers", headers, "x"), name.to_owned()));
    }
    life.watch.step(format!("published {} odd messages", what.len()));
    life.archive(5).await?;
    life.flush(Reason::Everything).await?;
    life.see(Promise::Kept).await?;
    rejected.extend(what.into_iter().filter(|(id, _)| life.books.is_rejected(*id)).map(|(_, what)| what));
    life.finish().await
}

fn odd_headers() -> Vec<(&'static str, HeaderMap)> {
    let of = |pairs: &[(&str, &str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, *value);
        }
        headers
    };
    vec![
        ("a header", of(&[("Name", "value")])),
        ("a header with two values", of(&[("Twice", "one"), ("Twice", "two")])),
        ("a header with the same value twice", of(&[("Twice", "one"), ("Twice", "one")])),
        ("headers that differ in case", of(&[("name", "a"), ("NAME", "b"), ("Name", "c")])),
        ("a header without a value", of(&[("Empty", "")])),
        ("a header with odd characters", of(&[("Nats-Msg-Id", "a:b=c,\"d\" \u{e9}")])),
    ]
}

/// Deliveries in any order, copies, and again.
pub(super) async fn redelivery<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    life.open().await?;
    life.publish(6);
    // One that was not acked in time comes back behind the others, when they are archived.
    life.queue.rotate_left(1);
    life.archive(5).await?;
    for _ in 0..4 {
        let count = 4 + life.rng.below(12);
        life.publish(count);
        shuffle(life);
        let each = 1 + life.rng.below(count);
        let mut delivered = 0;
        while life.deliver_next().await? {
            delivered += 1;
            if life.rng.one_in(2) {
                // A copy, with the sink by now, archived, or new.
                let sequence = 1 + life.rng.below(life.last());
                life.deliver(sequence).await?;
            }
            if delivered % each == 0 {
                life.flush_for_some_reason().await?;
            }
        }
        if life.rng.one_in(2) {
            life.session().await?;
        }
    }
    life.flush(Reason::Everything).await?;
    life.finish().await
}

/// What is to be delivered comes in another order.
pub(super) fn shuffle<S: Storage>(life: &mut Life<'_, S>) {
    let count = life.queue.len() as u64;
    for from in 0..life.queue.len() {
        let to = usize::try_from(life.rng.below(count)).unwrap_or(0);
        life.queue.swap(from, to);
    }
}

/// Records that the sink is to reject.
pub(super) async fn rejected<S: Storage>(life: &mut Life<'_, S>, rejects: &[(String, Bytes)]) -> Result<(), Stop> {
    life.open().await?;
    for (subject, payload) in rejects {
        // Among others, alone, and first and last of a flush.
        for around in [2, 0] {
            life.publish(around);
            let bad = life.publish_message(subject, HeaderMap::new(), payload.clone());
            life.publish(around);
            life.archive(if around == 0 { 1 } else { 3 }).await?;
            if !life.books.is_rejected(bad) {
                return broken(Promise::Answered, format!("{bad} on {subject:?} was to be rejected, and was taken"));
            }
        }
    }
    life.flush(Reason::Everything).await?;
    life.finish().await
}

/// What the sink says it holds, asked in each of its ways, and compared.
pub(super) async fn recover<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    ask(life, &Coverage::default()).await?;
    for round in 0..4 {
        life.open().await?;
        let count = 1 + life.rng.below(9);
        life.publish(count);
        if round % 2 == 1 {
            shuffle(life);
        }
        life.archive(3).await?;
        let covered = life.coverage();
        // What the process was about to make durable when it died may be there, and not be synced.
        life.publish(2);
        while life.deliver_next().await? {}
        let waits = life.rng.below(12);
        life.watch.cut_off_after(waits);
        match life.flush(Reason::Due).await {
            Ok(()) | Err(Stop::Died) => life.crash(Crash::KILL).await?,
            Err(broken) => return Err(broken),
        }
        ask(life, &covered).await?;
        if round == 2 {
            life.lose_above(life.last() / 2);
        }
    }
    life.finish().await
}

async fn ask<S: Storage>(life: &mut Life<'_, S>, covered: &Coverage) -> Result<(), Stop> {
    let mut sink = life.new_sink().await?;
    let source = life.source.clone();
    let plain = called("recover", sink.recover(&source).await)?;
    let beyond_nothing = called("recover_beyond", sink.recover_beyond(&source, &Coverage::default()).await)?;
    let beyond = called("recover_beyond", sink.recover_beyond(&source, covered).await)?;
    drop(sink);
    life.watch.step("the sink was asked what it holds");
    life.see(Promise::Kept).await?;
    let named = life.books.named(&source, &plain);
    for recovered in [&plain, &beyond_nothing, &beyond] {
        life.books.recovered(life.books.named(&source, recovered))?;
    }
    // What it does not name is written again, also if the checkpoint has it.
    if let Recovered::Exactly { from, .. } = &beyond {
        let beyond = life.books.named(&source, &beyond);
        let missing: Vec<RecordId> =
            named.iter().filter(|id| id.sequence >= *from && !beyond.contains(id)).copied().collect();
        if !missing.is_empty() {
            let what = format!("recover_beyond says Exactly and does not name what is held: {}", list(&missing));
            return broken(Promise::Once, what);
        }
    }
    life.power_cut().await?;
    lists(life).await
}

/// Which records the sink lists, asked of a new one, so that what it syncs then is not what was reported before.
async fn lists<S: Storage>(life: &mut Life<'_, S>) -> Result<(), Stop> {
    let mut sink = life.new_sink().await?;
    let source = life.source.clone();
    let last = life.last();
    let mut lists = Vec::new();
    for range in [0..=u64::MAX, last / 2..=last, last..=last, last + 1_000..=u64::MAX] {
        let listed = called("records_in", sink.records_in(&source, range.clone()).await)?;
        // What lies elsewhere is of no use, and no mistake.
        lists.push(listed.into_iter().filter(|id| range.contains(&id.sequence)).collect::<Vec<_>>());
    }
    drop(sink);
    life.watch.step("the sink was asked which records it holds");
    life.see(Promise::Kept).await?;
    for listed in lists {
        life.books.listed(&listed)?;
    }
    life.power_cut().await
}
