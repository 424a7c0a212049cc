//! The table at the end.

use std::fmt;

use indicatif::HumanCount;

use super::stage::Run;
use super::verdict::Verdict;

const HEADINGS: [&str; 6] = ["published", "archived", "delivered again", "skipped", "written twice", "lost"];

/// What one act of the demo did.
#[derive(Clone, Debug)]
pub(super) struct Act {
    pub(super) name: &'static str,
    pub(super) published: u64,
    pub(super) run: Run,
    /// What the archive holds more than before.
    pub(super) verdict: Verdict,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    acts: Vec<Act>,
}

impl Table {
    pub(super) fn add(&mut self, act: Act) {
        self.acts.push(act);
    }

    /// Adds the last line: the archive as a whole.
    pub(super) fn total(&mut self, verdict: Verdict) {
        let published = self.acts.iter().map(|act| act.published).sum();
        let mut run = Run::default();
        self.acts.iter().for_each(|act| run.add(act.run));
        self.acts.push(Act { name: "all", published, run, verdict });
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.acts.iter().map(|act| act.name.len()).max().unwrap_or_default();
        write!(f, "{:width$}", "")?;
        for heading in HEADINGS {
            write!(f, "  {heading}")?;
        }
        for act in &self.acts {
            write!(f, "\n{:width$}", act.name)?;
            let Verdict { archived, twice, lost } = act.verdict;
            let [published, delivered, skipped] =
                [act.published, act.run.delivered, act.run.skipped].map(u64::cast_signed);
            let again = (delivered - archived).max(0);
            let numbers = [published, archived, again, skipped, twice, lost];
            for (heading, number) in HEADINGS.into_iter().zip(numbers) {
                let sign = if number < 0 { "-" } else { "" };
                let text = format!("{sign}{}", HumanCount(number.unsigned_abs()));
                write!(f, "  {text:>width$}", width = heading.len())?;
            }
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_below_their_headings() {
        let mut table = Table::default();
        let run = Run { delivered: 12_300, written: 300, skipped: 12_000 };
        let verdict = Verdict { archived: 300, twice: 1, lost: 2 };
        table.add(Act { name: "first", published: 300, run, verdict });
        table.total(Verdict { archived: 1_300, twice: 1, lost: 0 });
        let expected = "       published  archived  delivered again  skipped  written twice  lost
first        300       300           12,000   12,000              1     2
all          300     1,300           11,000   12,000              1     0
";
        assert_eq!(table.to_string(), expected);
    }
}
