//! The servers that the tests archive to, and a plain way to ask them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use archiver_support::wheel::{self, Result, run};
use archiver_support::{Port, Process};

const OLD: &str = "18.16.1";
const NEW: &str = "26.9.0";
/// What the engine in it says of itself, more or less.
const ENGINE: &str = "26.9.";
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Debian's real clickhouse-server, an old one.
    Old,
    /// Today's engine in-process behind an HTTP front of ours.
    New,
    /// The same behind a front that does each insert from a temporary table twice.
    Repeating,
}

/// A server with files of its own, a child of this process. Dropped: killed, its files removed.
pub(crate) struct ClickHouse {
    kind: Kind,
    port: Port,
    process: Option<Process>,
    directory: tempfile::TempDir,
}

/// Users, and blocks so small that an insert which does not ask for one block makes many.
const USERS: &str = "<yandex>
<profiles>
  <default><min_insert_block_size_rows>10</min_insert_block_size_rows><max_insert_block_size>10</max_insert_block_size>
    <min_insert_block_size_bytes>100</min_insert_block_size_bytes></default>
  <reader><readonly>1</readonly></reader>
</profiles>
<users>
  <default><password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></default>
  <archiver><password>secret-1</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></archiver>
  <reader><password></password><networks><ip>127.0.0.1</ip></networks><profile>reader</profile><quota>default</quota></reader>
</users>
<quotas><default></default></quotas>
</yandex>";

impl ClickHouse {
    /// One that answers.
    pub(crate) async fn start(kind: Kind) -> Result<Self> {
        let mut server = Self::prepare(kind)?;
        server.launch().await?;
        Ok(server)
    }

    /// One that does not run yet.
    pub(crate) fn prepare(kind: Kind) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("replay-guard-clickhouse-").tempdir()?;
        Ok(Self { kind, port: Port::reserve()?, process: None, directory })
    }

    /// Starts it (again), and waits until it answers.
    pub(crate) async fn launch(&mut self) -> Result<()> {
        self.kill()?;
        let kind = self.kind;
        let files = tokio::task::spawn_blocking(move || files(kind)).await??;
        let log = fs::OpenOptions::new().create(true).append(true).open(self.directory.path().join("log"))?;
        let mut command = self.command(&files)?;
        command.current_dir(self.directory.path()).stdout(Stdio::null()).stderr(log);
        let mut process = Process::start("ClickHouse", &mut command)?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = process.ended()? {
                return Err(format!("ClickHouse ended ({status}):\n{}", self.log()).into());
            }
            if let Ok(version) = self.query("SELECT version()") {
                let wanted = if kind == Kind::Old { OLD } else { ENGINE };
                if !version.starts_with(wanted) {
                    return Err(format!("this is ClickHouse {version}, and {wanted} is wanted").into());
                }
                self.process = Some(process);
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("ClickHouse does not answer after {DEADLINE:?}:\n{}", self.log()).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn command(&self, files: &Path) -> Result<Command> {
        let directory = self.directory.path();
        if self.kind != Kind::Old {
            let mut command = Command::new("python3");
            let front = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/front.py");
            command.arg(front).arg(self.port.number.to_string()).arg(directory.join("data"));
            command.args((self.kind == Kind::Repeating).then_some("repeat")).env("PYTHONPATH", files);
            return Ok(command);
        }
        let (path, port) = (directory.display(), self.port.number);
        let configuration = format!(
            "<yandex><logger><level>warning</level><log>{path}/server.log</log></logger>\
             <listen_host>127.0.0.1</listen_host><http_port>{port}</http_port>\
             <path>{path}/data/</path><tmp_path>{path}/tmp/</tmp_path><users_config>{path}/users.xml</users_config>\
             <mark_cache_size>67108864</mark_cache_size><default_profile>default</default_profile>\
             <default_database>default</default_database></yandex>"
        );
        fs::create_dir_all(directory.join("data"))?;
        fs::write(directory.join("users.xml"), USERS)?;
        fs::write(directory.join("config.xml"), configuration)?;
        let mut command = Command::new(files);
        command.arg("--config-file").arg(directory.join("config.xml"));
        library_path(&mut command, files)?;
        Ok(command)
    }

    fn log(&self) -> String {
        ["log", "server.log"]
            .map(|name| fs::read_to_string(self.directory.path().join(name)).unwrap_or_default())
            .join("\n")
    }

    /// Where a client connects to.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number)
    }

    /// What its HTTP interface unpacks: the front nothing.
    pub(crate) const fn compression(&self) -> &'static str {
        match self.kind {
            Kind::Old => "lz4",
            Kind::New | Kind::Repeating => "none",
        }
    }

    /// Its port.
    pub(crate) const fn port(&self) -> u16 {
        self.port.number
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// SIGSTOP: it keeps its connections and does not answer.
    pub(crate) fn pause(&self) -> Result<()> {
        self.process.as_ref().ok_or("it does not run")?.signal("STOP")
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) -> Result<()> {
        self.process.as_ref().ok_or("it does not run")?.signal("CONT")
    }

    /// What a query gives, as lines with tabs. By a plain request, not by the archiver's client.
    pub(crate) fn query(&self, sql: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        write!(
            stream,
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{sql}",
            sql.len()
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8(answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let body = if head.contains("chunked") { unchunked(body)? } else { body.to_owned() };
        if head.starts_with("HTTP/1.1 200") { Ok(body) } else { Err(format!("{sql}: {body}").into()) }
    }
}

fn unchunked(mut rest: &str) -> Result<String> {
    let mut whole = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").ok_or("the answer breaks off")?;
        let size = usize::from_str_radix(size, 16)?;
        if size == 0 {
            return Ok(whole);
        }
        whole += after.get(..size).ok_or("the answer breaks off")?;
        rest = after.get(size + 2..).ok_or("the answer breaks off")?;
    }
}

/// The server's binary, or the directory of the engine's package. Blocks; downloads it the first time.
fn files(kind: Kind) -> Result<PathBuf> {
    if kind != Kind::Old {
        return wheel::fetch("chdb-core", NEW, &|unpacked| {
            let ask = "import sys; from chdb.session import Session; print(Session().query('SELECT version()'))";
            run(Command::new("python3").args(["-c", ask]).env("PYTHONPATH", unpacked)).map(drop)
        })
        .map_err(|error| {
            let advice = "it is fetched with `python3 -m pip download chdb-core`, 181 MB, for Linux and macOS";
            format!("no ClickHouse engine {NEW}: {error}; {advice}").into()
        });
    }
    if let Some(path) = std::env::var_os("CLICKHOUSE_SERVER").filter(|path| !path.is_empty()).map(PathBuf::from) {
        return check(&path)
            .map(|()| path.clone())
            .map_err(|error| format!("CLICKHOUSE_SERVER is set to {}: {error}", path.display()).into());
    }
    let installed = ["clickhouse-server", "/usr/sbin/clickhouse-server"].map(PathBuf::from);
    if let Some(path) = installed.into_iter().find(|path| check(path).is_ok()) {
        return Ok(path);
    }
    let directory = wheel::once(&format!("clickhouse-server-{OLD}"), &download);
    let directory = directory.map_err(|error| {
        format!(
            "no clickhouse-server {OLD}: {error}. It is fetched with `apt-get download` from Debian 12; elsewhere install \
             one, or set CLICKHOUSE_SERVER to the path of a clickhouse-server {OLD}"
        )
    })?;
    Ok(directory.join("usr/sbin/clickhouse-server"))
}

/// Debian's packages, unpacked without being installed.
fn download(unpacked: &Path, scratch: &Path) -> Result<()> {
    let apt = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(scratch);
        command
    };
    let depends = [
        "depends",
        "--recurse",
        "--no-recommends",
        "--no-suggests",
        "--no-conflicts",
        "--no-breaks",
        "--no-replaces",
        "--no-enhances",
        "clickhouse-server",
    ];
    let said = run(apt("apt-cache").args(depends))?;
    // Of the C library there must be one, and the rest is nothing a server loads.
    let wanted = |name: &&str| (name.starts_with("clickhouse-") || name.starts_with("lib")) && *name != "libc6";
    let mut packages: Vec<_> = said.lines().filter(|line| !line.starts_with([' ', '<'])).filter(wanted).collect();
    packages.sort_unstable();
    packages.dedup();
    run(apt("apt-get").args(["download", "-qq"]).args(&packages))?;
    for entry in fs::read_dir(scratch)? {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "deb") {
            run(Command::new("dpkg").arg("-x").arg(&path).arg(unpacked))?;
        }
    }
    check(&unpacked.join("usr/sbin/clickhouse-server"))
}

/// Whether it runs at all. It knows no `--version`, and says so once it has its libraries.
fn check(binary: &Path) -> Result<()> {
    let mut command = Command::new(binary);
    library_path(&mut command, binary)?;
    match run(command.arg("--version")) {
        Err(error) if !error.to_string().contains("Unknown option specified: version") => Err(error),
        _ => Ok(()),
    }
}

/// Unpacked packages bring their libraries: they are beside the binary.
fn library_path(command: &mut Command, binary: &Path) -> Result<()> {
    let Some(root) = binary.to_str().and_then(|path| path.strip_suffix("/usr/sbin/clickhouse-server")) else {
        return Ok(());
    };
    if root.is_empty() {
        return Ok(());
    }
    let mut directories = Vec::new();
    libraries(Path::new(root), &mut directories)?;
    command.env("LD_LIBRARY_PATH", std::env::join_paths(directories)?);
    Ok(())
}

fn libraries(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            libraries(&entry.path(), found)?;
        } else if entry.file_name().to_string_lossy().contains(".so")
            && found.last().is_none_or(|last| last != directory)
        {
            found.push(directory.to_owned());
        }
    }
    Ok(())
}
