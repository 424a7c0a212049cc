//! Servers that many tests share: they end with this process, however it ends.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use archiver_support::wheel::Result;

/// A server below a shell that kills it and removes its directory once this process is gone, or this is dropped.
#[derive(Debug)]
pub(crate) struct Lifeline {
    shell: Child,
}

impl Lifeline {
    pub(crate) fn start(server: &Command, directory: &Path) -> Result<Self> {
        // The end of its input is the end of this process: nobody else has the other end.
        const SCRIPT: &str = "trap '' INT TERM HUP; directory=$1; shift; \"$@\" & read -r word; \
                              kill -9 $! 2>/dev/null; wait; [ \"$word\" = keep ] || rm -rf \"$directory\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "sh"]).arg(directory).arg(server.get_program()).args(server.get_args());
        for (name, value) in server.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { shell })
    }

    /// SIGKILL for the server; its directory stays.
    pub(crate) fn kill(mut self) -> Result<()> {
        if let Some(mut input) = self.shell.stdin.take() {
            input.write_all(b"keep\n")?;
        }
        self.shell.wait()?;
        Ok(())
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nothing can be done about a failure here.
        let _ = self.shell.wait();
    }
}
