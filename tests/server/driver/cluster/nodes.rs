//! Three servers that are one cluster, a stream on them, producers that go on whatever happens, and an archive.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use archiver_support::Port;
use async_nats::jetstream::consumer::{Config, pull};
use async_nats::jetstream::stream::ClusterInfo;
use async_nats::jetstream::{self, Context, stream};
use async_nats::{Client, HeaderMap};
use futures_util::StreamExt as _;
use replay_guard::{Driver, DriverBuilder, RecordId};
use tokio::task::JoinHandle;

use crate::driver::events::{self, Event};
use crate::driver::rig::{CONSUMER, DEADLINE, Running, spawn, until};
use crate::driver::sink::Archive;
use crate::nats::{Server, options};

/// How many messages are on their way at a time.
const WINDOW: usize = 20;

/// A cluster, and what one test works with.
pub(super) struct Site {
    pub(super) nodes: Vec<Server>,
    _routes: Vec<Port>,
    /// On a connection to whichever node is up.
    pub(super) context: Context,
    pub(super) stream: String,
    pub(super) archive: Archive,
    state: tempfile::TempDir,
}

impl Site {
    /// Three nodes, and a stream with so many replicas.
    pub(super) async fn new(version: &'static str, replicas: usize) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        events::keep();
        let routes: Vec<Port> = (0..3).map(|_| Port::reserve().unwrap()).collect();
        let listed: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{}", port.number)).collect();
        let configuration = |node: usize| {
            let (port, listed) = (routes[node].number, listed.join(", "));
            format!(
                "server_name: n{node}\nserver_tags: [n{node}]\ncluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{listed}] }}"
            )
        };
        let texts = [configuration(0), configuration(1), configuration(2)];
        // None of them answers before there are two.
        let started = futures_util::future::join_all(texts.iter().map(|text| Server::start_with(version, text))).await;
        let nodes: Vec<Server> = started.into_iter().map(Result::unwrap).collect();
        let context = jetstream::new(connect(&nodes).await);
        let stream = format!("C{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let config = stream::Config {
            name: stream.clone(),
            subjects: vec![format!("{stream}.>")],
            num_replicas: replicas,
            allow_direct: true,
            ..Default::default()
        };
        until("there is a stream", async || context.create_stream(config.clone()).await.is_ok()).await;
        let state = tempfile::tempdir().unwrap();
        Self { nodes, _routes: routes, context, stream, archive: Archive::new(), state }
    }

    /// The node that leads the stream; for a stream with one replica the one that holds it.
    pub(super) async fn leader(&self) -> usize {
        let mut leader = None;
        until("the stream has a leader", async || {
            let Ok(mut stream) = self.context.get_stream(&self.stream).await else { return false };
            let Ok(info) = stream.info().await else { return false };
            let name = info.cluster.as_ref().and_then(|cluster| cluster.leader.as_deref());
            leader = name.and_then(|name| name.strip_prefix('n')).and_then(|number| number.parse().ok());
            leader.is_some()
        })
        .await;
        leader.unwrap()
    }

    /// Waits until all replicas of the stream and of the consumer are up and have all.
    pub(super) async fn in_step(&self) {
        let all = |cluster: Option<&ClusterInfo>| {
            cluster.is_some_and(|cluster| {
                let replicas = &cluster.replicas;
                cluster.leader.is_some()
                    && replicas.len() == 2
                    && replicas.iter().all(|one| one.current && !one.offline)
            })
        };
        until("all replicas are in step", async || {
            let Ok(mut stream) = self.context.get_stream(&self.stream).await else { return false };
            let Ok(consumer) = stream.consumer_info(CONSUMER).await else { return false };
            all(consumer.cluster.as_ref()) && stream.info().await.is_ok_and(|info| all(info.cluster.as_ref()))
        })
        .await;
    }

    /// A connection to this node, and to no other.
    pub(super) async fn client_of(&self, node: usize) -> Client {
        self.nodes[node].client_with(options().ignore_discovered_servers()).await.unwrap()
    }

    pub(super) async fn start(&self) -> Running {
        self.start_on(connect(&self.nodes).await).await
    }

    pub(super) async fn start_on(&self, client: Client) -> Running {
        // Again, where an answer was slow.
        let deadline = Instant::now() + DEADLINE;
        loop {
            match Box::pin(self.builder(client.clone()).open(self.archive.sink())).await {
                Ok(driver) => return spawn(driver),
                Err(error) => assert!(!error.is_setting() && Instant::now() < deadline, "no opening: {error}"),
            }
        }
    }

    fn builder(&self, client: Client) -> DriverBuilder {
        Driver::builder(jetstream::new(client), self.stream.as_str())
            .consumer(CONSUMER)
            .consumer_config(Config { ack_wait: Duration::from_secs(3), ..Default::default() })
            .state_dir(PathBuf::from(self.state.path()))
            .flush_every(100, Duration::from_millis(200))
    }

    /// Publishes so many, each until the server's word for it came. Gives the payloads.
    pub(super) async fn publish(&self, count: usize) -> Vec<String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let payloads: Vec<String> =
            (0..count).map(|_| format!("{}-{}", self.stream, NUMBER.fetch_add(1, Ordering::Relaxed))).collect();
        store(&self.context, &self.stream, &payloads).await;
        payloads
    }

    pub(super) async fn durable(&self, count: usize) {
        until(&format!("{count} durable"), async || self.archive.count() >= count).await;
    }

    /// Waits until the consumer delivered all and everything is acked.
    pub(super) async fn acked(&self) {
        until("all is acked", async || {
            let Ok(stream) = self.context.get_stream(&self.stream).await else { return false };
            let Ok(info) = stream.consumer_info(CONSUMER).await else { return false };
            info.num_ack_pending == 0 && info.num_pending == 0
        })
        .await;
    }

    pub(super) fn events(&self, name: &str) -> Vec<Event> {
        let name = format!("replay_guard.{name}");
        events::of(&self.stream).into_iter().filter(|event| event.name == name).collect()
    }

    /// Every message that the stream holds: id and payload.
    async fn held(&self) -> Vec<(RecordId, Vec<u8>)> {
        let mut stream = self.context.get_stream(&self.stream).await.unwrap();
        let left = usize::try_from(stream.info().await.unwrap().state.messages).unwrap();
        let reader = stream.create_consumer(pull::OrderedConfig::default()).await.unwrap();
        let messages = reader.messages().await.unwrap().take(left).map(|message| {
            let message = message.unwrap();
            let info = message.info().unwrap();
            let published = i64::try_from(info.published.unix_timestamp_nanos()).unwrap();
            (RecordId::new(info.stream_sequence, published), message.payload.to_vec())
        });
        tokio::time::timeout(DEADLINE, messages.collect()).await.expect("the stream was not read")
    }

    /// Every one of these payloads is durable once, and so is what the stream holds.
    pub(super) async fn assert_once(&self, payloads: &[String]) {
        let mut copies: HashMap<Vec<u8>, usize> = HashMap::new();
        for record in self.archive.durable() {
            *copies.entry(record.payload.to_vec()).or_default() += 1;
        }
        let missing: Vec<&String> =
            payloads.iter().filter(|payload| !copies.contains_key(payload.as_bytes())).collect();
        assert!(missing.is_empty(), "{} lost: {:?}", missing.len(), &missing[..missing.len().min(5)]);
        let twice = copies.values().filter(|copies| **copies > 1).count();
        assert_eq!((twice, copies.len()), (0, payloads.len()), "so many twice, so many in all");
        let copies = self.archive.copies();
        for message in self.held().await {
            assert_eq!(copies.get(&message), Some(&1), "{} ({})", message.0, String::from_utf8_lossy(&message.1));
        }
    }

    /// Producers that publish until they are told to stop.
    pub(super) async fn load(&self) -> Load {
        let context = jetstream::new(connect(&self.nodes).await);
        let (stream, stop, stored) = (self.stream.clone(), Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let pause = Arc::<AtomicBool>::default();
        let (stopped, paused, count) = (Arc::clone(&stop), Arc::clone(&pause), Arc::clone(&stored));
        let task = tokio::spawn(async move {
            let mut all = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                if paused.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                let payloads: Vec<String> = (0..WINDOW).map(|n| format!("{stream}-load-{}", all.len() + n)).collect();
                store(&context, &stream, &payloads).await;
                all.extend(payloads);
                count.store(all.len(), Ordering::Relaxed);
                // Some thousand a second are enough.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            all
        });
        Load { task, stop, pause, stored }
    }
}

/// Producers at work.
pub(super) struct Load {
    task: JoinHandle<Vec<String>>,
    stop: Arc<AtomicBool>,
    pause: Arc<AtomicBool>,
    stored: Arc<AtomicUsize>,
}

impl Load {
    /// How many messages the stream is known to hold.
    pub(super) fn stored(&self) -> usize {
        self.stored.load(Ordering::Relaxed)
    }

    /// Publishes nothing more for a while, or goes on: replicas under load are never all in step on a slow machine.
    pub(super) fn pause(&self, yes: bool) {
        self.pause.store(yes, Ordering::Relaxed);
    }

    /// Every payload that was stored.
    pub(super) async fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        tokio::time::timeout(DEADLINE, self.task).await.expect("a message was never stored").unwrap()
    }
}

async fn connect(nodes: &[Server]) -> Client {
    let urls: Vec<String> = nodes.iter().map(Server::url).collect();
    options().retry_on_initial_connect().connect(urls).await.unwrap()
}

/// Publishes each until the server says that it has it; by the message ids it has each once.
async fn store(context: &Context, stream: &str, payloads: &[String]) {
    let deadline = Instant::now() + DEADLINE;
    let mut left: Vec<String> = payloads.to_vec();
    while !left.is_empty() {
        assert!(Instant::now() < deadline, "{} messages could not be stored", left.len());
        let mut acks = Vec::new();
        for payload in left.drain(..) {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", payload.as_str());
            let sent = context.publish_with_headers(format!("{stream}.a"), headers, payload.clone().into()).await;
            acks.push((payload, sent));
        }
        for (payload, sent) in acks {
            let stored = match sent {
                Ok(ack) => tokio::time::timeout(Duration::from_secs(2), ack).await.is_ok_and(|ack| ack.is_ok()),
                Err(_) => false,
            };
            if !stored {
                left.push(payload);
            }
        }
    }
}
