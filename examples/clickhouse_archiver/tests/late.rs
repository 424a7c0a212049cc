//! Requests whose answer is lost, and requests that arrive when a new archiver is at work already: a proxy between archiver
//! and ClickHouse holds them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archiver_support::Process;
use archiver_support::nats::V2_15;
use archiver_support::wheel::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

use crate::rig::{PATIENCE, Rig};
use crate::target::Kind;

/// What in a request's head tells the copy of a batch from all else, and the source's session from those of trials.
const COPY: [&[u8]; 2] = [b"insert_dedup", b"session_id=replay-guard-"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// The copy does not reach the server before it is released.
    Request,
    /// Its head does, and the rest not before it is released.
    Rest,
    /// It does, and its answer does not come back.
    Answer,
    /// Of the rows before it only a first chunk does, and then the connection breaks.
    Rows,
}

/// The same of a batch's rows.
const ROWS: [&[u8]; 2] = [b"INSERT+INTO", b"session_id=replay-guard-"];

/// The length of a request's head and its first chunk, once all of that is there.
fn first_chunk(request: &[u8]) -> Option<usize> {
    let find = |text: &[u8], from: usize| {
        request.get(from..)?.windows(text.len()).position(|window| window == text).map(|at| from + at + text.len())
    };
    let head = find(b"\r\n\r\n", 0)?;
    let data = find(b"\r\n", head)?;
    let size = std::str::from_utf8(request.get(head..data)?).ok()?.trim();
    let end = data + usize::from_str_radix(size, 16).ok()? + 2;
    (request.len() >= end).then_some(end)
}

/// Whether a request is there with all of its body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return false };
    if head.contains("transfer-encoding: chunked") {
        return request.ends_with(b"\r\n0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let begin = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_default() + 4;
    request.len() >= begin + length.unwrap_or(0_usize)
}

/// Passes everything on but the first copy of a batch, or its rows.
struct Proxy {
    url: String,
    /// Something is held.
    caught: Arc<Notify>,
    release: watch::Sender<bool>,
    /// What the server answered to what was held.
    answers: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Proxy {
    async fn start(server: u16, hold: Hold) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let caught = Arc::new(Notify::new());
        let (release, released) = watch::channel(false);
        let (answered, answers) = mpsc::unbounded_channel();
        let any = Arc::new(AtomicBool::new(false));
        let caught_here = Arc::clone(&caught);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                let (caught, released) = (Arc::clone(&caught_here), released.clone());
                tokio::spawn(pass(client, server, hold, Arc::clone(&any), caught, released, answered.clone()));
            }
        });
        Ok(Self { url, caught, release, answers })
    }

    async fn wait_until_held(&self) -> Result<()> {
        Ok(timeout(PATIENCE, self.caught.notified()).await?)
    }
}

async fn pass(
    client: TcpStream,
    server: TcpStream,
    hold: Hold,
    any: Arc<AtomicBool>,
    caught: Arc<Notify>,
    mut released: watch::Receiver<bool>,
    answered: mpsc::UnboundedSender<Vec<u8>>,
) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut holding = false;
    loop {
        tokio::select! {
            // What a killed archiver closes stays open to the server.
            count = from_client.read(&mut up), if !holding => {
                let count = count?;
                if count == 0 {
                    return Ok(());
                }
                let request = up.get(..count).unwrap_or_default();
                let has = |text: &[u8]| request.windows(text.len()).any(|window| window == text);
                let wanted = if hold == Hold::Rows { ROWS } else { COPY };
                if wanted.into_iter().all(has) && !any.swap(true, Ordering::SeqCst) {
                    holding = true;
                    let mut whole = request.to_vec();
                    if hold == Hold::Rows {
                        while first_chunk(&whole).is_none() {
                            let count = from_client.read(&mut up).await?;
                            if count == 0 {
                                return Ok(());
                            }
                            whole.extend_from_slice(up.get(..count).unwrap_or_default());
                        }
                        whole.truncate(first_chunk(&whole).unwrap_or_default());
                        to_server.write_all(&whole).await?;
                        to_server.shutdown().await?;
                        continue;
                    }
                    // Head and body may come apart.
                    while !is_whole(&whole) {
                        let count = from_client.read(&mut up).await?;
                        if count == 0 {
                            return Ok(());
                        }
                        whole.extend_from_slice(up.get(..count).unwrap_or_default());
                    }
                    if hold != Hold::Answer {
                        let head = whole.windows(4).position(|window| window == b"\r\n\r\n").map_or(0, |end| end + 4);
                        if hold == Hold::Rest {
                            to_server.write_all(&whole.drain(..head).collect::<Vec<u8>>()).await?;
                        }
                        caught.notify_one();
                        let _ = released.wait_for(|released| *released).await;
                    }
                    to_server.write_all(&whole).await?;
                } else {
                    to_server.write_all(request).await?;
                }
            }
            count = from_server.read(&mut down) => {
                let count = count?;
                let answer = down.get(..count).unwrap_or_default();
                if holding {
                    // Whoever waits for it no longer may be gone.
                    let _ = answered.send(answer.to_vec());
                    if matches!(hold, Hold::Answer | Hold::Rows) {
                        caught.notify_one();
                    }
                    std::future::pending::<()>().await;
                }
                if count == 0 {
                    return Ok(());
                }
                to_client.write_all(answer).await?;
            }
        }
    }
}

fn start(rig: &Rig, proxy: &Proxy) -> Result<Process> {
    Process::start("the archiver", &mut rig.archiver_at(&proxy.url, &[]))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_that_arrives_late_finds_nothing_to_insert() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let rig = Rig::new(V2_15, kind).await?;
        rig.publish(250).await?;
        let mut proxy = Proxy::start(rig.clickhouse.port(), Hold::Request).await?;
        let mut process = start(&rig, &proxy)?;
        proxy.wait_until_held().await?;
        process.kill()?;
        // The next one writes all of it.
        rig.archive(250, &[]).await?;
        proxy.release.send(true)?;
        let answer = timeout(PATIENCE, proxy.answers.recv()).await?.ok_or("no answer")?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 500") || answer.starts_with("HTTP/1.1 404"), "{answer}");
        rig.check(&rig.published().await?)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_that_is_under_way_is_waited_for() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let rig = Rig::new(V2_15, kind).await?;
        rig.publish(250).await?;
        let mut proxy = Proxy::start(rig.clickhouse.port(), Hold::Rest).await?;
        let mut process = start(&rig, &proxy)?;
        proxy.wait_until_held().await?;
        process.kill()?;

        let log = rig.directory.path().join("log");
        let mut command = rig.archiver(&["--clickhouse-timeout", "3"]);
        command.stdout(std::fs::File::create(&log)?).stderr(std::fs::File::options().append(true).open(&log)?);
        let mut next = Process::start("the archiver", &mut command)?;
        let says_so = || Ok(std::fs::read_to_string(&log)?.contains("is still under way in ClickHouse"));
        rig.wait_for("the next archiver to say that it waits", says_so).await?;
        assert_eq!(rig.rows()?, 0);

        proxy.release.send(true)?;
        let answer = timeout(PATIENCE, proxy.answers.recv()).await?.ok_or("no answer")?;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        rig.wait_for("all rows", || Ok(rig.rows()? >= 250)).await?;
        rig.wait_until_done().await?;
        assert!(next.stop(PATIENCE).await?.success());
        rig.check(&rig.published().await?)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_whose_answer_is_lost_is_found_by_the_next_archiver() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let rig = Rig::new(V2_15, kind).await?;
        rig.publish(250).await?;
        let proxy = Proxy::start(rig.clickhouse.port(), Hold::Answer).await?;
        let mut process = start(&rig, &proxy)?;
        proxy.wait_until_held().await?;
        process.kill()?;
        let before = rig.rows()?;
        assert!(before > 0);
        rig.archive(250, &[]).await?;
        rig.check(&rig.published().await?)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_answering_and_comes_back_has_each_message_once() -> Result<()> {
    let rig = Rig::new(V2_15, Kind::Old).await?;
    let mut process = rig.start(&["--clickhouse-timeout", "1.5"])?;
    for round in 1..=5 {
        rig.publish(1_500).await?;
        rig.wait_for("rows in the table", || Ok(rig.rows()? > 1_500 * (round - 1))).await?;
        rig.clickhouse.pause()?;
        // Longer than the archiver waits for an answer: it goes on with another sink.
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        rig.clickhouse.resume()?;
    }
    rig.wait_until_done().await?;
    assert!(process.stop(PATIENCE).await?.success());
    rig.check(&rig.published().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_break_off_on_their_way_are_not_in_the_table() -> Result<()> {
    for kind in [Kind::Old, Kind::New] {
        let rig = Rig::new(V2_15, kind).await?;
        // Several chunks, however they are compressed.
        let mut noise = 1_u64;
        for _ in 0..250 {
            let mut payload = Vec::new();
            for _ in 0..500 {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                payload.extend_from_slice(&noise.rotate_right(29).to_le_bytes());
            }
            rig.jetstream.publish("s.a", payload.into()).await?.await?;
        }
        let mut proxy = Proxy::start(rig.clickhouse.port(), Hold::Rows).await?;
        let mut command = rig.archiver_flushing(&proxy.url, ("250", "30"), &[]);
        let mut process = Process::start("the archiver", &mut command)?;
        proxy.wait_until_held().await?;
        process.kill()?;
        if kind == Kind::Old {
            // It took them for all.
            let answer = timeout(PATIENCE, proxy.answers.recv()).await?.ok_or("no answer")?;
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        }
        rig.archive(250, &[]).await?;
        rig.check(&rig.published().await?)?;
    }
    Ok(())
}

/// A fact about old servers that the temporary tables are there for.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_takes_a_body_that_breaks_off_for_a_whole_one() -> Result<()> {
    let rig = Rig::new(V2_15, Kind::Old).await?;
    rig.clickhouse.query("CREATE TABLE numbers (n UInt8) ENGINE = MergeTree ORDER BY n")?;
    let mut stream = TcpStream::connect(("127.0.0.1", rig.clickhouse.port())).await?;
    let head =
        "POST /?query=INSERT+INTO+numbers+FORMAT+RowBinary HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(format!("{head}3\r\nabc\r\n").as_bytes()).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(rig.clickhouse.query("SELECT count() FROM numbers")?, "3\n");
    Ok(())
}
