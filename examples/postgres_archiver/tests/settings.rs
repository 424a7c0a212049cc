//! What somebody has to change ends the archiver with 2 and a text that says what.

use std::process::Command;

use archiver_support::wheel::Result;

use crate::rig::{EACH, Rig, STREAM};

const SECRET: &str = "se-cr-et";

/// It must end with 2, say this, and never the password.
async fn refused(rig: &Rig, command: &mut Command, says: &str) -> Result<()> {
    let mut archiver = rig.start(command)?;
    let status = archiver.end().await?;
    let said = archiver.log()?;
    if status.code() == Some(2) && said.contains(says) && !said.contains(SECRET) {
        return Ok(());
    }
    Err(format!("{status}, where it was to be 2 with {says:?}:\n{said}").into())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_address_is_said() -> Result<()> {
    let mut rig = Rig::new().await?;
    rig.publish("s.a", EACH).await?;
    rig.postgres.ask(&format!("CREATE ROLE guest LOGIN PASSWORD '{SECRET}'"))?;
    rig.postgres.ask("GRANT CREATE ON DATABASE app TO guest")?;
    rig.postgres.ask_for_password("guest")?;
    rig.postgres.restart()?;
    let port = rig.postgres.port();
    let with = |url: String| {
        let mut command = rig.command(STREAM);
        command.env("DATABASE_URL", url);
        command
    };
    let nowhere = format!("postgres://app:{SECRET}@127.0.0.1:{port}/nowhere");
    refused(&rig, &mut with(nowhere), "database \"nowhere\" does not exist").await?;
    let wrong = format!("postgres://guest:{SECRET}x@127.0.0.1:{port}/app");
    refused(&rig, &mut with(wrong), "password authentication failed").await?;
    // This server has no TLS; nothing is sent to it in the clear.
    let encrypted = format!("postgres://guest:{SECRET}@127.0.0.1:{port}/app?sslmode=require");
    refused(&rig, &mut with(encrypted), "server does not support TLS").await?;
    let misspelt = format!("postgres://guest:{SECRET}@127.0.0.1:{port}/app?sslmod=require");
    refused(&rig, &mut with(misspelt), "the parameter \"sslmod\"").await?;
    let elsewhere = rig.nats.url().replace("nats://", "postgres://");
    refused(&rig, &mut with(format!("{elsewhere}/{SECRET}?sslmode=require")), "cannot connect").await?;
    assert_eq!(rig.rows_if_any(), 0);

    // The password in a variable, and in a file.
    let guest = format!("postgres://guest@127.0.0.1:{port}/app");
    rig.archive_with(STREAM, with(guest.clone()).env("PGPASSWORD", SECRET)).await?;
    let file = rig.file("passwords");
    std::fs::write(&file, format!("# ours\n127.0.0.1:{port}:*:guest:{SECRET}\n"))?;
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    rig.publish("s.a", 1).await?;
    rig.archive_with(STREAM, with(guest).env("PGPASSFILE", &file)).await?;
    rig.check(EACH + 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_cannot_hold_the_archive_are_refused() -> Result<()> {
    let rig = Rig::new().await?;
    rig.publish("s.a", EACH).await?;
    rig.archive(STREAM).await?;
    for (change, says, back) in [
        (
            "ALTER TABLE archive.records ALTER subject TYPE varchar(9)",
            "table records in schema archive has a column subject of type character varying(9), not text",
            "ALTER TABLE archive.records ALTER subject TYPE text",
        ),
        (
            "ALTER TABLE archive.records RENAME payload TO body",
            "has no column payload",
            "ALTER TABLE archive.records RENAME body TO payload",
        ),
        (
            "ALTER TABLE archive.records DROP CONSTRAINT records_pkey",
            "has no unique key on (published_ns, sequence, source)",
            "ALTER TABLE archive.records ADD PRIMARY KEY (source, sequence, published_ns)",
        ),
        (
            "ALTER TABLE archive.records SET UNLOGGED",
            "does not survive a crash",
            "ALTER TABLE archive.records SET LOGGED",
        ),
        (
            "ALTER TABLE archive.records ADD owner text; UPDATE archive.records SET owner = ''; \
             ALTER TABLE archive.records ALTER owner SET NOT NULL",
            "has a column owner that must be filled",
            "ALTER TABLE archive.records DROP owner",
        ),
        (
            "ALTER TABLE archive.claims RENAME TO others; CREATE VIEW archive.claims AS TABLE archive.others",
            "table claims in schema archive is no table",
            "DROP VIEW archive.claims; ALTER TABLE archive.others RENAME TO claims",
        ),
    ] {
        rig.postgres.ask(change)?;
        refused(&rig, &mut rig.command(STREAM), says).await?;
        rig.postgres.ask(back)?;
    }
    // A column of one's own is welcome, and so are partitions.
    rig.postgres.ask("ALTER TABLE archive.records ADD loaded timestamptz NOT NULL DEFAULT now()")?;
    rig.postgres.ask(
        "ALTER TABLE archive.records RENAME TO old;
         CREATE TABLE archive.records (LIKE archive.old INCLUDING DEFAULTS, PRIMARY KEY (source, sequence, published_ns))
             PARTITION BY RANGE (published_ns);
         CREATE TABLE archive.all_times PARTITION OF archive.records DEFAULT",
    )?;
    rig.publish("s.a", EACH).await?;
    rig.archive(STREAM).await?;
    assert_eq!(rig.rows()?, EACH as u64);
    rig.postgres.ask("ALTER TABLE archive.all_times SET UNLOGGED")?;
    refused(&rig, &mut rig.command(STREAM), "does not survive a crash").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_would_not_keep_its_word_is_refused() -> Result<()> {
    let mut rig = Rig::new().await?;
    rig.publish("s.a", EACH).await?;
    rig.postgres.ask("CREATE ROLE guest LOGIN")?;
    let url = rig.postgres.url();
    let guest = url.replace("app@", "guest@");
    refused(&rig, rig.command(STREAM).env("DATABASE_URL", &guest), "permission denied for database app").await?;
    rig.archive(STREAM).await?;
    rig.postgres
        .ask("GRANT USAGE ON SCHEMA archive TO guest; GRANT SELECT ON ALL TABLES IN SCHEMA archive TO guest")?;
    refused(&rig, rig.command(STREAM).env("DATABASE_URL", &guest), "it needs INSERT").await?;

    rig.postgres.ask("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")?;
    let latin = format!("{}latin", url.trim_end_matches("app"));
    refused(&rig, rig.command(STREAM).env("DATABASE_URL", latin), "create a database with encoding UTF8").await?;

    let mut many = rig.command(STREAM);
    for number in 0..400 {
        many.args(["--filter", &format!("s.{:x}.{number}", number * 7_919_u64.pow(4))]);
    }
    refused(&rig, &mut many, "cannot note the source").await?;

    // A trigger that drops rows is found before anything is acked.
    rig.postgres.ask(&format!(
        "CREATE FUNCTION archive.drops() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN IF new.sequence > {EACH} THEN RETURN NULL; END IF; RETURN new; END$$;
         CREATE TRIGGER drops BEFORE INSERT ON archive.records FOR EACH ROW EXECUTE FUNCTION archive.drops()"
    ))?;
    rig.publish("s.a", EACH).await?;
    let mut archiver = rig.start(&mut rig.command(STREAM))?;
    crate::rig::until("the archiver says so", async || {
        Ok(archiver.log()?.contains("does a trigger or a rule drop rows?"))
    })
    .await?;
    assert_eq!(rig.rows()?, EACH as u64);
    rig.postgres.ask("DROP TRIGGER drops ON archive.records")?;
    rig.caught_up(STREAM, &mut archiver).await?;
    archiver.stop().await?;
    rig.check(2 * EACH)?;

    rig.postgres.configure("fsync = off\n")?;
    rig.postgres.restart()?;
    refused(&rig, &mut rig.command(STREAM), "fsync is off on the server").await?;
    rig.publish("s.a", 1).await?;
    rig.archive_with(STREAM, rig.command(STREAM).arg("--without-fsync")).await?;
    rig.check(2 * EACH + 1)
}
