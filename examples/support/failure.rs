//! Why the program ends otherwise than it should.

use std::fmt;
use std::process::ExitCode;

/// What the exit code tells a supervisor: whether starting again may help.
#[derive(Debug)]
pub enum Failure {
    /// Something that was set is wrong: starting again does not help.
    Setting(anyhow::Error),
    /// Anything else.
    Fatal(anyhow::Error),
}

impl Failure {
    /// A wrong setting.
    pub fn setting(error: impl Into<anyhow::Error>) -> Self {
        Self::Setting(error.into())
    }

    /// 2 for a wrong setting, 1 for anything else.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Setting(_) => ExitCode::from(2),
            Self::Fatal(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    /// The error and its causes on one line, without the causes that the texts above them repeat.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Setting(error) | Self::Fatal(error)) = self;
        let mut text = String::new();
        for cause in error.chain() {
            let cause = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            if !text.contains(&cause) {
                text += if text.is_empty() { "" } else { ": " };
                text += &cause;
            }
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_and_its_causes_stand_on_one_line() {
        let error = anyhow::anyhow!("the disk\nis full").context("the disk is full (28)").context("cannot write /a");
        assert_eq!(Failure::Fatal(error).to_string(), "cannot write /a: the disk is full (28)");
    }
}
