//! Children of this process: servers and archivers that are killed, stopped, and never left behind.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::wheel::{Result, run};

/// How often the end of a process is looked for.
const POLL: Duration = Duration::from_millis(20);

/// A child. Dropped: killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts it, without input. `name`: for errors.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).spawn();
        let child =
            child.map_err(|error| format!("cannot run {}: {error}", command.get_program().to_string_lossy()))?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// SIGKILL: it gets no chance to do anything more.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends a signal, such as `TERM`, `STOP` or `CONT`.
    pub fn signal(&self, name: &str) -> Result<()> {
        run(Command::new("sh").arg("-c").arg(format!("kill -{name} {}", self.child.id())))?;
        Ok(())
    }

    /// SIGTERM, and waits for the end. If that does not come, it is killed, which is an error.
    pub async fn stop(&mut self, patience: Duration) -> Result<ExitStatus> {
        self.signal("TERM")?;
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.kill()?;
                return Err(format!("{} did not stop within {patience:?}", self.name).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; nothing can be done about another failure here.
        let _ = self.kill();
    }
}
