//! A cluster of three: leaders that go, a stream on another node than the one we are connected to, mirrors.

mod nodes;

use std::time::Duration;

use async_nats::jetstream::stream::{Config, Placement, Source};
use tokio::time::MissedTickBehavior;

use self::nodes::Site;
use super::rig::{CONSUMER, until};
use crate::nats::APART;

/// How often a leader is killed, at most.
const EVERY: Duration = Duration::from_secs(5);

/// `REPLAY_GUARD_CLUSTER_ROUNDS` says how many rounds instead of three; 24 are two minutes on a free machine.
fn rounds() -> usize {
    std::env::var("REPLAY_GUARD_CLUSTER_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap())
}

#[test]
fn the_leader_of_a_replicated_stream_is_killed_again_and_again() {
    crate::run_on(&APART, async |version| {
        let mut site = Site::new(version, 3).await;
        let running = site.start().await;
        let load = site.load().await;
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for round in 1..=rounds() {
            ticks.tick().await;
            let before = load.stored();
            until("the load goes on", async || load.stored() > before).await;
            // One that still lags behind when a second one goes may leave the stream without a quorum, for minutes.
            load.pause(true);
            site.in_step().await;
            load.pause(false);
            let leader = site.leader().await;
            site.nodes[leader].restart().await.unwrap();
            assert!(!running.is_over(), "the driver ended in round {round}");
        }
        let payloads = load.stop().await;
        site.durable(payloads.len()).await;
        site.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!(ended.unverified, 0);
        site.assert_once(&payloads).await;
        println!(
            "{version}: {} messages, {} rounds, {} forks, {} skipped, {} moves",
            payloads.len(),
            rounds(),
            ended.counters.forks,
            ended.counters.skipped,
            ended.counters.moves
        );
    });
}

/// A stream with one replica on another node than ours, which is killed and comes back on an older state: nothing happens on
/// our connection. The consumer's state is of later, ahead of the stream.
async fn forked_elsewhere(version: &'static str, mirrored: bool) {
    let mut site = Site::new(version, 1).await;
    let home = site.leader().await;
    let client = site.client_of((home + 1) % 3).await;
    let running = site.start_on(client.clone()).await;
    let mut payloads = site.publish(150).await;
    site.durable(150).await;
    site.acked().await;
    site.nodes[home].stop().await.unwrap();
    let snapshot = site.nodes[home].snapshot_messages(&site.stream).unwrap();
    site.nodes[home].restart().await.unwrap();
    payloads.extend(site.publish(50).await);
    site.durable(200).await;
    site.acked().await;
    let mirror = format!("{}-mirror", site.stream);
    let beside = async_nats::jetstream::new(site.client_of((home + 1) % 3).await);
    if mirrored {
        let origin = Source { name: site.stream.clone(), ..Default::default() };
        // On the node that the archiver is connected to: a direct get would be answered there.
        let placement = Some(Placement { tags: vec![format!("n{}", (home + 1) % 3)], ..Default::default() });
        let config =
            Config { name: mirror.clone(), mirror: Some(origin), mirror_direct: true, placement, ..Default::default() };
        site.context.create_stream(config).await.unwrap();
        until("the mirror answers for its origin", async || {
            let Ok(stream) = beside.get_stream(&site.stream).await else { return false };
            let Ok(message) = stream.direct_get(200).await else { return false };
            message.headers.get("Nats-Stream").is_some_and(|by| by.as_str() == mirror)
        })
        .await;
    }
    let connects = || client.statistics().connects.load(std::sync::atomic::Ordering::Relaxed);
    let before = connects();

    site.nodes[home].kill().unwrap();
    site.nodes[home].restore_messages(&site.stream, &snapshot).unwrap();
    site.nodes[home].restart().await.unwrap();
    payloads.extend(site.publish(100).await);
    site.durable(300).await;
    site.acked().await;
    assert_eq!(connects(), before, "nothing happened on our connection");
    let ended = running.stop().await.unwrap();
    assert_eq!((ended.floor, ended.counters.forks), (250, 1));
    let forks = site.events("fork");
    assert_eq!((forks.len(), forks[0].number("at")), (1, 150), "{forks:?}");
    site.assert_once(&payloads).await;
}

#[test]
fn a_tail_lost_on_another_node_without_a_word() {
    crate::run_on(&APART, async |version| forked_elsewhere(version, false).await);
}

#[test]
fn a_mirror_that_still_has_the_lost_tail_is_no_evidence() {
    crate::run_on(&APART, async |version| forked_elsewhere(version, true).await);
}

#[test]
fn the_consumers_leader_changes_and_pulls_stall() {
    crate::run_on(&APART, async |version| {
        let site = Site::new(version, 3).await;
        let running = site.start().await;
        let mut payloads = site.publish(50).await;
        site.durable(50).await;
        for _ in 0..5 {
            let subject = format!("CONSUMER.LEADER.STEPDOWN.{}.{CONSUMER}", site.stream);
            let said: serde_json::Value = site.context.request(subject, &serde_json::json!({})).await.unwrap();
            assert_eq!(said["success"], true, "{said}");
            payloads.extend(site.publish(50).await);
            site.durable(payloads.len()).await;
        }
        site.acked().await;
        assert_eq!(running.stop().await.unwrap().counters.forks, 0);
        site.assert_once(&payloads).await;
    });
}

#[test]
fn a_pull_that_was_lost_with_its_node_is_made_again() {
    crate::run_on(&APART, async |version| {
        let mut site = Site::new(version, 1).await;
        let home = site.leader().await;
        let running = site.start_on(site.client_of((home + 1) % 3).await).await;
        let mut payloads = site.publish(50).await;
        site.durable(50).await;
        site.acked().await;
        for _ in 0..2 {
            // The pull that is under way goes with it, and nobody says so.
            site.nodes[home].restart().await.unwrap();
            payloads.extend(site.publish(50).await);
            site.durable(payloads.len()).await;
        }
        site.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.forks), (150, 0));
        site.assert_once(&payloads).await;
    });
}
