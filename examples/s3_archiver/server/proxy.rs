//! What may happen between an archiver and its store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use archiver_support::wheel::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What is done to the first upload of an archived object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mischief {
    /// It reaches the store only when [`Proxy::release`] says so, whatever has become of who sent it.
    Hold,
    /// It reaches the store, and the connection ends before the answer.
    LoseAnswer,
    /// It reaches the store, and the answer comes never.
    KeepAnswer,
    /// Half of it reaches the store; the connection ends when [`Proxy::release`] says so.
    Half,
}

/// A connection to the store that goes wrong once.
#[derive(Debug)]
pub(crate) struct Proxy {
    url: String,
    release: watch::Sender<bool>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// An upload was chosen for mischief.
    chosen: AtomicBool,
    /// Uploads chosen for it that have come here whole.
    uploads: AtomicUsize,
    /// Uploads of which the store has half.
    halves: AtomicUsize,
    /// Answers of the store to those on which mischief was done.
    answered: AtomicUsize,
}

impl Proxy {
    pub(crate) async fn start(store: u16, mischief: Mischief) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (release, released) = watch::channel(false);
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (state, released) = (Arc::clone(&shared), released.clone());
                // A connection that ends with an error has ended.
                tokio::spawn(async move { pass(client, store, mischief, &state, released).await.ok() });
            }
        });
        Ok(Self { url, release, state })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn uploads(&self) -> usize {
        self.state.uploads.load(Ordering::Relaxed)
    }

    pub(crate) fn halves(&self) -> usize {
        self.state.halves.load(Ordering::Relaxed)
    }

    /// Lets the upload that is held go on.
    pub(crate) fn release(&self) {
        self.release.send_replace(true);
    }

    pub(crate) fn answered(&self) -> usize {
        self.state.answered.load(Ordering::Relaxed)
    }
}

async fn pass(
    client: TcpStream,
    store: u16,
    mischief: Mischief,
    state: &State,
    mut released: watch::Receiver<bool>,
) -> Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_store, mut to_store) = TcpStream::connect(("127.0.0.1", store)).await?.into_split();
    let answers =
        tokio::spawn(async move { tokio::io::copy(&mut from_store, &mut to_client).await.map(|_| from_store) });
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = from_client.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let bytes = buffer.get(..count).unwrap_or_default();
        // A request begins with a packet of its own: the client waits for each answer.
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let is_upload = line.starts_with("PUT ") && line.contains(".parquet");
        if !is_upload || state.chosen.swap(true, Ordering::Relaxed) {
            to_store.write_all(bytes).await?;
            continue;
        }
        answers.abort();
        let mut request = bytes.to_vec();
        // All of it, so that the store can take it without the client.
        while !is_whole(&request) {
            let count = from_client.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            request.extend_from_slice(buffer.get(..count).unwrap_or_default());
        }
        state.uploads.fetch_add(1, Ordering::Relaxed);
        if mischief == Mischief::Hold {
            released.wait_for(|released| *released).await?;
        }
        let mut connection = TcpStream::connect(("127.0.0.1", store)).await?;
        if mischief == Mischief::Half {
            connection.write_all(request.get(..request.len() / 2).unwrap_or_default()).await?;
            state.halves.fetch_add(1, Ordering::Relaxed);
            released.wait_for(|released| *released).await?;
            return Ok(());
        }
        connection.write_all(&request).await?;
        let count = connection.read(&mut buffer).await?;
        assert!(count > 0, "the store does not answer");
        state.answered.fetch_add(1, Ordering::Relaxed);
        if mischief == Mischief::KeepAnswer {
            released.wait_for(|released| *released).await?;
        }
        return Ok(());
    }
}

/// Whether these are the head of a request and as many bytes as it says.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let begin = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_default() + 4;
    request.len() >= begin + length.unwrap_or(0_usize)
}
