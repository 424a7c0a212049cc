//! `demo`: a server of its own, real data, four disasters, and a count of what the archive lost or holds twice.

mod data;
mod stage;
mod table;
mod verdict;

use anyhow::{Context as _, Result, bail};
use archiver_support::progress;
use indicatif::HumanCount;

use crate::cli::DemoSettings;

use self::data::Message;
use self::stage::Stage;
use self::table::{Act, Table};
use self::verdict::Verdict;

/// How many messages each act publishes; the last one takes what is left.
const BEFORE: usize = 12_000;
const TAIL: usize = 1_000;
const OTHERS: usize = 1_500;

/// The command.
pub(crate) async fn main(settings: DemoSettings) -> Result<()> {
    progress::start_log(&settings.log)?;
    let directory =
        tempfile::Builder::new().prefix("replay-guard-demo-").tempdir().context("no temporary directory")?;
    let played = tokio::select! {
        played = play(directory.path()) => played,
        // Returning, not dying, ends the server and removes the files.
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    if settings.keep {
        println!("\nThe archive is kept in {}", directory.keep().display());
    }
    played
}

async fn play(directory: &std::path::Path) -> Result<()> {
    let mut messages = data::temperatures()?;
    let total = messages.len();
    let stage = Stage::set(directory).await?;
    println!(
        "{} hourly temperatures of Seattle and San Francisco, a year of each, go through a NATS server\n\
         into Parquet files. The server is then killed four times, and loses something each time; in the end the archiver does too.\n",
        HumanCount(total as u64)
    );
    let mut show = Show { stage, table: Table::default(), published: Vec::new(), written: 0, last: Verdict::default() };
    show.first_run(take(&mut messages, BEFORE)).await?;
    show.server_forgets_the_consumer().await?;
    let (tail, others) = (take(&mut messages, TAIL), take(&mut messages, OTHERS));
    show.server_loses_the_tail_and_the_archiver_is_back_first(tail, others).await?;
    let tail = take(&mut messages, TAIL);
    show.server_loses_the_tail_and_the_producers_are_back_first(tail, messages).await?;
    show.archiver_loses_its_checkpoint().await?;
    show.end(total).await
}

fn take(messages: &mut Vec<Message>, count: usize) -> Vec<Message> {
    messages.drain(..count.min(messages.len())).collect()
}

struct Show {
    stage: Stage,
    table: Table,
    published: Vec<verdict::Published>,
    /// Rows, by the sinks' own account.
    written: u64,
    last: Verdict,
}

impl Show {
    async fn first_run(&mut self, messages: Vec<Message>) -> Result<()> {
        println!("1. {} are published and archived.", HumanCount(messages.len() as u64));
        let count = self.publish(messages).await?;
        let archiver = self.stage.start_archiver().await?;
        let ended = archiver.archive(count).await?;
        self.act("1 first run", count, ended)
    }

    async fn server_forgets_the_consumer(&mut self) -> Result<()> {
        println!(
            "2. The server is killed, and its file of what was acknowledged is empty afterwards, as a power cut leaves it.\n   \
             It now delivers everything again. (The archiver could tell it to pass over that; here it lets it come.)"
        );
        self.stage.kill_server()?;
        self.stage.empty_consumer_state()?;
        self.stage.restart_server().await?;
        let archiver = self.stage.start_archiver().await?;
        let ended = archiver.catch_up().await?;
        self.act("2 acknowledgements forgotten", 0, ended)
    }

    async fn server_loses_the_tail_and_the_archiver_is_back_first(
        &mut self,
        tail: Vec<Message>,
        others: Vec<Message>,
    ) -> Result<()> {
        println!(
            "3. {} more are archived. The server is killed and comes back without them; what it kept of the consumer is\n   \
             ahead of the stream. The archiver is back at once, then {} others get the numbers of the lost ones.",
            HumanCount(tail.len() as u64),
            HumanCount(others.len() as u64)
        );
        let old = self.stage.copy_store()?;
        let archiver = self.stage.start_archiver().await?;
        let (lost, next) = (self.publish(tail).await?, others.len());
        let mut ended = archiver.archive(lost).await?;
        self.stage.kill_server()?;
        self.stage.put_back(&old, true)?;
        self.stage.restart_server().await?;
        let archiver = self.stage.start_archiver().await?;
        self.publish(others).await?;
        ended.add(archiver.archive(next).await?);
        self.act("3 tail lost, archiver first", lost + next, ended)
    }

    async fn server_loses_the_tail_and_the_producers_are_back_first(
        &mut self,
        tail: Vec<Message>,
        others: Vec<Message>,
    ) -> Result<()> {
        println!(
            "4. The same again, but {} others are published before the archiver is back: the stream has outgrown\n   \
             its checkpoint, and nothing looks odd at first sight.",
            HumanCount(others.len() as u64)
        );
        let old = self.stage.copy_store()?;
        let archiver = self.stage.start_archiver().await?;
        let (lost, next) = (self.publish(tail).await?, others.len());
        let mut ended = archiver.archive(lost).await?;
        self.stage.kill_server()?;
        self.stage.put_back(&old, false)?;
        self.stage.restart_server().await?;
        self.publish(others).await?;
        let archiver = self.stage.start_archiver().await?;
        ended.add(archiver.archive(next).await?);
        self.act("4 tail lost, producers first", lost + next, ended)
    }

    async fn archiver_loses_its_checkpoint(&mut self) -> Result<()> {
        println!(
            "5. The server forgets what was acknowledged, as in 2, and the archiver's checkpoint is deleted. What is archived,\n   \
             and which of it is in the stream by now, the files have to say.\n"
        );
        self.stage.kill_server()?;
        self.stage.empty_consumer_state()?;
        self.stage.delete_checkpoint()?;
        self.stage.restart_server().await?;
        let archiver = self.stage.start_archiver().await?;
        let ended = archiver.catch_up().await?;
        self.act("5 checkpoint lost as well", 0, ended)
    }

    async fn end(mut self, total: usize) -> Result<()> {
        let verdict = self.last;
        self.table.total(verdict);
        println!("{}", self.table);
        let gone = self.published.len() as u64 - self.stage.messages_in_stream().await?;
        println!(
            "{} of them the stream itself has lost for good. They are in the archive all the same.",
            HumanCount(gone)
        );
        if self.published.len() != total {
            bail!("only {} of {total} messages were published", self.published.len());
        }
        if verdict.is_clean() {
            println!("Nothing is missing in the archive, and nothing is in it twice.");
            return Ok(());
        }
        bail!("the archive is not right: {verdict}")
    }

    async fn publish(&mut self, messages: Vec<Message>) -> Result<usize> {
        let published = self.stage.publish(messages).await?;
        let count = published.len();
        self.published.extend(published);
        Ok(count)
    }

    /// Reads the whole archive back and notes what this act added.
    fn act(&mut self, name: &'static str, published: usize, run: stage::Run) -> Result<()> {
        self.written += run.written;
        let verdict = Verdict::read(self.stage.archive(), &self.published, self.written)?;
        self.table.add(Act { name, published: published as u64, run, verdict: verdict.since(self.last) });
        self.last = verdict;
        Ok(())
    }
}
