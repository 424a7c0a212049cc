//! A connection that takes nothing more, as when the other machine has lost its power.

use std::net::SocketAddr;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::Config;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::nats::{Server, V2_15, options};

use super::rig::{DEADLINE, Rig, spawn, until};
use super::sink::Gate;
use super::store::held_up;

/// Between a client and its server.
struct Wire {
    address: SocketAddr,
    /// Closed, nothing more is read of what the client sends on its first connection.
    reads: Gate,
    cuts: watch::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Wire {
    fn new(server: &Server) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // What the kernel takes for us does not wait with the client.
        socket.set_recv_buffer_size(4_096).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(16).unwrap();
        let address = listener.local_addr().unwrap();
        let (reads, cuts) = (Gate::new(), watch::Sender::new(()));
        let (mut gate, cut, server) = (reads.clone(), cuts.clone(), server.url().replace("nats://", ""));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let (gate, mut cut) = (std::mem::replace(&mut gate, Gate::new()), cut.subscribe());
                tokio::spawn(async move {
                    tokio::select! {
                        () = between(client, server, gate) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { address, reads, cuts, task }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn between(client: TcpStream, server: TcpStream, gate: Gate) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut buffer = vec![0; 4_096];
        loop {
            gate.pass().await;
            match from_client.read(&mut buffer).await {
                Ok(length @ 1..) if to_server.write_all(&buffer[..length]).await.is_ok() => {}
                _ => return,
            }
        }
    };
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

/// Up to nats-server 2.12 an ack that comes on the next connection counts for whatever message has its sequence then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_that_a_connection_does_not_take_die_with_it() {
    const COUNT: u64 = 20_000;
    let mut rig = Rig::new(Server::start(V2_15).await.unwrap()).await;
    // Each ack names it: all together are more than the kernel takes.
    let consumer = "c".repeat(200);
    rig.publish(COUNT).await;
    let (wire, gate) = (Wire::new(&rig.server), Gate::new());
    let client = options().connect(wire.address.to_string()).await.unwrap();
    let config =
        Config { ack_wait: Duration::from_secs(120), max_ack_pending: 2 * COUNT.cast_signed(), ..Default::default() };
    let builder = rig.builder_on(jetstream::new(client), &rig.stream).store(held_up(&rig, &gate));
    let builder = builder.consumer(consumer.as_str()).consumer_config(config);
    let driver = builder.flush_every(COUNT, DEADLINE).open(rig.archive.sink()).await.unwrap();
    gate.close();
    let running = spawn(driver);
    gate.reached().await;
    // All is verified, and acked as soon as the checkpoint is saved.
    wire.reads.close();
    gate.open();
    let dropped = rig.event("acks_dropped").await.number("count");
    assert!(dropped > 2_048, "{dropped}: all is with the kernel");
    let watcher = rig.server.client().await.unwrap();
    let mut acks = watcher.subscribe(format!("$JS.ACK.{}.>", rig.stream)).await.unwrap();
    watcher.flush().await.unwrap();
    wire.cuts.send_replace(());
    until("another session", async || running.now().sessions == 2).await;
    // What the server sent before it answers this has come.
    until("an answer", async || jetstream::new(watcher.clone()).query_account().await.is_ok()).await;
    let late = tokio::task::unconstrained(async {
        let mut late = 0;
        while let Some(Some(ack)) = acks.next().now_or_never() {
            late += u64::from(ack.payload.as_ref() == b"+ACK");
        }
        late
    })
    .await;
    assert_eq!(late, 0);
    running.stop().await.unwrap();
    rig.assert_published_once();
}
