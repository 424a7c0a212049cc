//! Exactly once: deaths, lost answers, lost connections, forks and backups.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use archiver_support::Process;
use archiver_support::killing::{self, Published};
use archiver_support::nats::{APART, Server, versions};
use archiver_support::wheel::Result;

use crate::postgres::Postgres;
use crate::rig::{AGAIN, CONSUMER, EACH, PATIENCE, Rig, STREAM, program, until};

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_with_its_database_it_archives_each_message_once() -> Result<()> {
    for version in versions(&APART) {
        let server = Server::start(version).await?;
        let postgres = tokio::task::spawn_blocking(Postgres::start).await??;
        let url = postgres.url();
        let postgres = Arc::new(Mutex::new(postgres));
        let archiver = || {
            let mut command = program();
            command.args([
                "--server",
                &server.url(),
                "--log",
                "warn",
                "--flush-after",
                "0.05",
                "--flush-records",
                "300",
            ]);
            command.args(["--stream", killing::STREAM, "--consumer", killing::CONSUMER]);
            command.env("DATABASE_URL", &url).stderr(std::process::Stdio::null());
            command
        };
        // The database dies too, at some moment of every second life of the archiver.
        let (live, mut lives) = tokio::sync::mpsc::channel(1);
        let victim = Arc::clone(&postgres);
        let deaths = tokio::spawn(async move {
            let mut kills = 0_u64;
            while let Some(life) = lives.recv().await {
                tokio::time::sleep(Duration::from_millis(life * 7_919 % 400)).await;
                let victim = Arc::clone(&victim);
                tokio::task::spawn_blocking(move || -> Result<()> {
                    let mut postgres = victim.lock().unwrap_or_else(PoisonError::into_inner);
                    // The death of a backend makes the server recover, which takes it away for a moment.
                    if kills.is_multiple_of(3) {
                        postgres.kill_backends();
                        return Ok(());
                    }
                    postgres.restart()
                })
                .await??;
                kills += 1;
            }
            Ok::<u64, archiver_support::wheel::BoxError>(kills)
        });
        let between = async |kills: usize| {
            // One that comes while the database is being started is left out.
            if kills.is_multiple_of(2) {
                let _ = live.try_send(kills as u64);
            }
            Ok(())
        };
        let killed = killing::kill_again_and_again(&server, archiver, between).await;
        drop(live);
        let kills = deaths.await??;
        let killed = killed?;
        if kills < 3 {
            return Err(format!("{version}: the database was killed only {kills} times").into());
        }
        println!("{version}: the database was killed {kills} times");
        let postgres = postgres.lock().unwrap_or_else(PoisonError::into_inner);
        until_answers(&postgres)?;
        killing::check(&killed.published, published(&postgres)?)?;
    }
    Ok(())
}

/// It may be recovering.
fn until_answers(postgres: &Postgres) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if postgres.ask("SELECT 1").is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("the database does not come back".into())
}

fn published(postgres: &Postgres) -> Result<Vec<Published>> {
    let rows = postgres.ask(
        "SELECT sequence, published_ns, subject, convert_from(payload, 'UTF8') FROM archive.records ORDER BY random()",
    )?;
    rows.lines()
        .map(|line| {
            let mut parts = line.split('|');
            let mut next = || parts.next().ok_or_else(|| format!("a row of another form: {line}"));
            Ok(Published {
                sequence: next()?.parse()?,
                published: next()?.parse()?,
                subject: next()?.to_owned(),
                payload: next()?.to_owned().into(),
            })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_between_commit_and_checkpoint_writes_nothing_twice() -> Result<()> {
    let rig = Rig::new().await?;
    rig.publish("s.a", EACH).await?;
    let mut archiver = rig.start(&mut rig.command(STREAM))?;
    rig.caught_up(STREAM, &mut archiver).await?;
    // From here on no checkpoint can be saved.
    let held = rig.postgres.hold("BEGIN; LOCK TABLE archive.checkpoints; SELECT pg_sleep(1000)")?;
    until("the table is locked", async || {
        Ok(rig.postgres.count("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted")? > 0)
    })
    .await?;
    rig.publish("s.a", EACH).await?;
    // How much of it is in that flush is a matter of time: none follows it.
    until("a second flush is committed", async || Ok(rig.rows()? > EACH as u64)).await?;
    archiver.process.kill()?;
    drop(held);
    rig.publish("s.a", 5).await?;
    // As at another hour: other messages go into one transaction.
    let log = rig.archive_with(STREAM, &mut rig.command_with(STREAM, CONSUMER, EACH - 7, "0.1")).await?;
    Rig::never_again(&log)?;
    rig.check(2 * EACH + 5)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_their_claim_are_never_there() -> Result<()> {
    let rig = Rig::new().await?;
    rig.publish("s.a", EACH).await?;
    let mut archiver = rig.start(&mut rig.command(STREAM))?;
    rig.caught_up(STREAM, &mut archiver).await?;
    // From here on no claim can be stored, but they can be read.
    let held = rig.postgres.hold("BEGIN; LOCK TABLE archive.claims IN EXCLUSIVE MODE; SELECT pg_sleep(1000)")?;
    until("the table is locked", async || {
        Ok(rig
            .postgres
            .count("SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock' AND granted AND relation IS NOT NULL")?
            > 0)
    })
    .await?;
    rig.publish("s.a", EACH).await?;
    until("the claim of the second flush waits", async || {
        Ok(rig.postgres.count("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL")? == 1)
    })
    .await?;
    rig.check(EACH)?;
    // Who dies there lets the next one in at once, and leaves nothing.
    archiver.process.kill()?;
    let mut next = rig.start(&mut rig.command(STREAM))?;
    until("the next one has the source", async || {
        Ok(next.log()?.contains("archiving") || next.process.ended()?.is_some())
    })
    .await?;
    rig.check(EACH)?;
    drop(held);
    rig.caught_up(STREAM, &mut next).await?;
    Rig::never_again(&next.stop().await?)?;
    rig.check(2 * EACH)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_an_answer_only_when_it_is_durable_and_a_lost_answer_is_found_out() -> Result<()> {
    let mut rig = Rig::new().await?;
    // A commit would say less than it should.
    rig.postgres.ask("ALTER ROLE app SET synchronous_commit = off")?;
    rig.publish("s.a", EACH).await?;
    let mut archiver = rig.start(&mut rig.command(STREAM))?;
    rig.caught_up(STREAM, &mut archiver).await?;
    rig.postgres.ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")?;
    rig.postgres.ask("SELECT pg_reload_conf()")?;
    // That takes its time, and what commits before is not waited for: it is in force once a commit of ours waits.
    let mut probe: Option<Process> = None;
    until("the standby is missed", async || {
        if probe.as_mut().map(Process::ended).transpose()?.is_none_or(|ended| ended.is_some()) {
            let commit = "SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'probe', '')";
            probe = Some(rig.postgres.hold(commit)?);
        }
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'psql'";
        Ok(rig.postgres.count(waits)? == 1)
    })
    .await?;
    rig.publish("s.a", EACH).await?;
    // A standby is to have it, and there is none: no answer may come.
    until("a commit waits for its standby", async || {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'
                     AND application_name = 'postgres_archiver' AND now() - query_start > '1 s'";
        Ok(rig.postgres.count(waits)? == 1)
    })
    .await?;
    let stream = rig.jetstream.get_stream(STREAM).await?;
    let floor = stream.consumer_info(CONSUMER).await?.ack_floor.stream_sequence;
    if floor != EACH as u64 {
        return Err(format!("{floor} messages are acked, though the second half is not said to be durable").into());
    }
    // The server dies with the answer unsaid; on its disk the transaction is committed.
    rig.postgres.kill()?;
    rig.postgres.configure("synchronous_standby_names = ''\n")?;
    rig.postgres.forget_alter_system()?;
    rig.postgres.launch()?;
    rig.publish("s.a", 5).await?;
    rig.caught_up(STREAM, &mut archiver).await?;
    let log = archiver.stop().await?;
    Rig::never_again(&log)?;
    if !log.contains("commit records") {
        return Err(format!("the commit was to be cut off:\n{log}").into());
    }
    rig.check(2 * EACH + 5)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_is_waited_for() -> Result<()> {
    let mut rig = Rig::new().await?;
    rig.postgres.kill()?;
    rig.publish("s.a", EACH).await?;
    let mut archiver = rig.start(&mut rig.command(STREAM))?;
    until("it was tried in vain", async || Ok(archiver.log()?.contains("cannot begin yet"))).await?;
    rig.postgres.launch()?;
    rig.caught_up(STREAM, &mut archiver).await?;
    // It said so at its start.
    let before = archiver.log()?.matches("trying again").count();
    rig.postgres.kill()?;
    rig.publish("s.a", EACH).await?;
    until("a flush has failed", async || Ok(archiver.log()?.matches("trying again").count() > before)).await?;
    rig.postgres.launch()?;
    rig.caught_up(STREAM, &mut archiver).await?;
    Rig::never_again(&archiver.stop().await?)?;
    rig.check(2 * EACH)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_source_has_one_archiver() -> Result<()> {
    let rig = Rig::new().await?;
    rig.publish("s.a", EACH).await?;
    let mut first = rig.start(&mut rig.command(STREAM))?;
    rig.caught_up(STREAM, &mut first).await?;
    let mut second = rig.start(&mut rig.command(STREAM))?;
    let status = second.end().await?;
    let said = second.log()?;
    if status.code() != Some(2) || !said.contains("the checkpoint is in use: S in schema archive") {
        return Err(format!("{status}: {said}").into());
    }
    // One that lost its lock, which a pooler between may do, finds that out before it writes.
    rig.postgres.ask("UPDATE archive.sources SET epoch = epoch + 1")?;
    rig.publish("s.a", EACH).await?;
    rig.caught_up(STREAM, &mut first).await?;
    let log = first.stop().await?;
    if !log.contains("another archiver took over") {
        return Err(format!("it wrote without looking:\n{log}").into());
    }
    Rig::never_again(&log)?;
    rig.check(2 * EACH)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_life_of_the_stream_finds_a_place_beside_the_old_one() -> Result<()> {
    let rig = Rig::new().await?;
    rig.publish("s.a", EACH + 7).await?;
    rig.archive(STREAM).await?;
    rig.jetstream.delete_stream(STREAM).await?;
    rig.make(STREAM, "s.>").await?;
    rig.publish("s.b", EACH).await?;
    Rig::never_again(&rig.archive(STREAM).await?)?;
    let lives =
        rig.postgres.ask("SELECT subject, count(*), min(sequence) FROM archive.records GROUP BY 1 ORDER BY 1")?;
    assert_eq!(lives.trim(), format!("s.a|{}|1\ns.b|{EACH}|1", EACH + 7));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_within_a_transaction_writes_nothing_again() -> Result<()> {
    // Far enough from the end of the transaction that the checkpoint remembers no record near.
    const WHOLE: usize = 2_000;
    const LOST: usize = 777;
    let mut rig = Rig::new().await?;
    rig.publish("s.a", WHOLE - LOST).await?;
    let kept = rig.nats.snapshot_messages(STREAM)?;
    rig.publish("s.a", LOST).await?;
    // One transaction holds what the stream keeps and what it loses.
    let mut whole = rig.start(&mut rig.command_with(STREAM, CONSUMER, WHOLE, "5"))?;
    rig.caught_up(STREAM, &mut whole).await?;
    whole.stop().await?;
    rig.nats.kill()?;
    rig.nats.restore_messages(STREAM, &kept)?;
    rig.nats.restart().await?;
    rig.jetstream = archiver_support::streams::producer(rig.nats.client().await?);
    rig.publish("s.b", 2 * LOST).await?;
    let log = rig.archive(STREAM).await?;
    // The table says what the stream kept of it.
    Rig::never_again(&log)?;
    let lives =
        rig.postgres.ask("SELECT subject, count(*), min(sequence) FROM archive.records GROUP BY 1 ORDER BY 1")?;
    assert_eq!(lives.trim(), format!("s.a|{WHOLE}|1\ns.b|{}|{}", 2 * LOST, WHOLE - LOST + 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_restored_from_a_backup_gets_what_it_lacks() -> Result<()> {
    let mut rig = Rig::new().await?;
    rig.publish("s.a", EACH).await?;
    rig.archive(STREAM).await?;
    rig.postgres.kill()?;
    let backup = rig.postgres.backup()?;
    rig.postgres.launch()?;
    rig.publish("s.a", EACH + 3).await?;
    rig.archive(STREAM).await?;
    rig.check(2 * EACH + 3)?;
    rig.postgres.kill()?;
    rig.postgres.restore(&backup)?;
    rig.postgres.launch()?;
    rig.check(EACH)?;
    let mut archiver = rig.start(&mut rig.command(STREAM))?;
    until("what was acked is there again", async || Ok(rig.rows_if_any() == 2 * EACH as u64 + 3)).await?;
    rig.caught_up(STREAM, &mut archiver).await?;
    Rig::never_again(&archiver.stop().await?)?;
    rig.check(2 * EACH + 3)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_were_deleted_stay_deleted_unless_somebody_wants_them_back() -> Result<()> {
    let mut rig = Rig::new().await?;
    rig.publish("s.a", 3 * EACH).await?;
    rig.archive(STREAM).await?;
    rig.postgres.ask("DELETE FROM archive.records WHERE sequence <= 20")?;
    // And the server forgets what was acked.
    rig.nats.kill()?;
    rig.nats.empty_consumer_state(STREAM, CONSUMER)?;
    rig.nats.restart().await?;
    rig.jetstream = archiver_support::streams::producer(rig.nats.client().await?);
    rig.publish("s.a", 1).await?;
    Rig::never_again(&rig.archive(STREAM).await?)?;
    assert_eq!(rig.rows()?, 3 * EACH as u64 + 1 - 20);

    // Without checkpoint and claims all is offered again, and what is there is left as it is.
    rig.postgres.ask("DELETE FROM archive.checkpoints; DELETE FROM archive.claims")?;
    let again = rig.archive_with(STREAM, rig.command(STREAM).args(["--start", "beginning"])).await?;
    rig.check(3 * EACH + 1)?;
    if !again.contains(AGAIN) {
        return Err(format!("it must say so:\n{again}").into());
    }

    // But not if another message has the place.
    rig.postgres.ask("UPDATE archive.records SET payload = 'another' WHERE sequence = 70")?;
    rig.postgres.ask("DELETE FROM archive.checkpoints; DELETE FROM archive.claims")?;
    let archiver = rig.start(rig.command(STREAM).args(["--start", "beginning"]))?;
    until("the archiver refuses", async || {
        let log = archiver.log()?;
        Ok(log.contains("sequence 70, published") && log.contains("with another subject or payload"))
    })
    .await?;
    assert_eq!(
        rig.postgres.ask("SELECT payload FROM archive.records WHERE sequence = 70")?.trim(),
        r"\x616e6f74686572"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_long_ago_are_removed() -> Result<()> {
    let rig = Rig::new().await?;
    rig.publish("s.a", EACH).await?;
    rig.archive(STREAM).await?;
    rig.postgres.ask("INSERT INTO archive.claims SELECT 1, n, 1, 1, 1, 1, 'x' FROM generate_series(-3000, 0) AS n")?;
    rig.publish("s.a", 2 * EACH).await?;
    let log = rig.archive(STREAM).await?;
    assert!(log.contains("a claim cannot be read and is left out"), "{log}");
    assert_eq!(rig.postgres.count("SELECT count(*) FROM archive.claims")?, 1_024);
    rig.check(3 * EACH)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_cannot_be_read_is_kept_aside_and_nothing_is_there_twice() -> Result<()> {
    let rig = Rig::new().await?;
    rig.publish("s.a", 3 * EACH).await?;
    rig.archive(STREAM).await?;
    rig.postgres.ask(r"UPDATE archive.checkpoints SET body = '\x00'")?;
    rig.publish("s.a", 1).await?;
    let log = rig.archive(STREAM).await?;
    if !log.contains("table checkpoints, column aside") {
        return Err(format!("it must say where the checkpoint is kept:\n{log}").into());
    }
    // The claims know what the checkpoint knew.
    Rig::never_again(&log)?;
    rig.check(3 * EACH + 1)?;
    let kept = rig.postgres.ask("SELECT aside, body FROM archive.checkpoints ORDER BY aside DESC")?;
    assert!(kept.starts_with("t|\\x00\nf|"), "{kept}");
    Rig::never_again(&rig.archive(STREAM).await?)?;
    Ok(())
}
