//! What verification asks of the server.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archiver_support::nats::Server;
use futures_util::StreamExt as _;
use replay_guard::jetstream::StreamObserver;
use replay_guard::{Observer as _, Reading, Source, async_nats};
use tokio::sync::watch;

use crate::rig::{BATCH, Result, Rig, STREAM, Size, run};
use crate::table::Table;

/// Counts the requests to the server's API, all but pulls.
pub(crate) struct Spy {
    client: async_nats::Client,
    counted: Arc<AtomicU64>,
    marks: watch::Receiver<u64>,
}

impl Spy {
    /// What marks a place in the order of requests. Nobody else answers there.
    const MARK: &str = "$JS.API.MARK";

    pub(crate) async fn new(server: &Server) -> Result<Self> {
        let client = server.client().await?;
        let mut requests = client.subscribe("$JS.API.>").await?;
        client.flush().await?;
        let counted = Arc::new(AtomicU64::new(0));
        let (marked, marks) = watch::channel(0);
        let count = Arc::clone(&counted);
        tokio::spawn(async move {
            while let Some(request) = requests.next().await {
                if request.subject.as_str() == Self::MARK {
                    marked.send_modify(|marks| *marks += 1);
                } else if !request.subject.contains("MSG.NEXT") {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { client, counted, marks })
    }

    /// How many there were since this was asked last.
    pub(crate) async fn count(&self) -> Result<u64> {
        let mut marks = self.marks.clone();
        let before = *marks.borrow();
        self.client.publish(Self::MARK, "".into()).await?;
        marks.wait_for(|marks| *marks > before).await?;
        Ok(self.counted.swap(0, Ordering::Relaxed))
    }
}

/// The processor time of a process so far, in seconds, as Linux counts it.
pub(crate) fn cpu(process: Option<u32>) -> Result<f64> {
    let process = process.map_or_else(|| "self".to_owned(), |process| process.to_string());
    let stat = std::fs::read_to_string(PathBuf::from("/proc").join(process).join("stat"))?;
    // After the name, which may hold anything, come the state and ten numbers that are of no use here.
    let mut rest = stat.rsplit_once(')').ok_or("no name")?.1.split_whitespace().skip(11);
    let mut ticks = || -> Result<u32> { Ok(rest.next().ok_or("too short")?.parse()?) };
    Ok(f64::from(ticks()? + ticks()?) / 100.0)
}

pub(crate) async fn measure(rig: &Rig, size: Size, table: &mut Table) -> Result<()> {
    let state = tempfile::tempdir()?;
    let spy = Spy::new(&rig.server).await?;
    let builder = rig.driver("counted", state.path()).await?;
    spy.count().await?;
    let (_, ended) = run(builder, rig.messages).await?;
    let all = spy.count().await?;
    let flushes = rig.messages.div_ceil(BATCH);
    rig.forget("counted").await?;
    let per_flush = f64::from(u32::try_from(ended.counters.reads)?) / f64::from(u32::try_from(flushes)?);
    table.row(
        "requests that verification adds",
        &format!("{per_flush:.2} a flush"),
        &format!("{all} requests in {flushes} flushes, opening and session included"),
        "",
        "stated",
    );
    let observer = StreamObserver::new(rig.context().await?, &Source::new(STREAM));
    let process = Some(rig.server.process_id()?);
    let before = cpu(process)?;
    for read in 0..size.reads {
        let read = observer.read(read % rig.messages + 1).await?;
        assert!(matches!(read, Reading::Message(_)), "{read:?}");
    }
    let each = (cpu(process)? - before) / f64::from(u32::try_from(size.reads)?);
    table.row(
        "the server's processor for them at 100 flushes a second",
        &format!("{:.2} % of a core", each * per_flush * 100.0 * 100.0),
        &format!("{:.0} us a request", each * 1e6),
        "",
        "< 2 %",
    );
    Ok(())
}
