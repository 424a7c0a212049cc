//! What leaves a stream while it is archived, and streams that follow others.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, Source};
use replay_guard::Start;

use super::rig::{CONSUMER, Rig, spawn, until};
use super::sink::Archive;
use crate::on_versions;

on_versions! {
    async fn a_limit_per_subject(server: Server) {
        let mut rig = Rig::with(server, |config| Config { max_messages_per_subject: 1, ..config }).await;
        let running = rig.start().await;
        let mut last = 0;
        for _ in 0..4 {
            last = rig.publish_to(&["a", "b", "c", "d", "e"], 300).await;
            until("the floor", async || running.now().floor == last).await;
            rig.server.restart().await.unwrap();
            rig.back().await;
        }
        last = rig.publish_to(&["a"], 1).await.max(last);
        until("the floor", async || running.now().floor == last).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.counters.forks, ended.counters.moves), (0, 0));
        rig.assert_stream_once().await;
        assert!(rig.archive.copies().values().all(|copies| *copies == 1));
        // What ends below the stream's first message is kept, one span for each session; it is forgotten first at the limit.
        assert!(rig.open().await.unwrap().report().spans <= 5);
    }

    async fn a_full_work_queue_goes_on_as_it_is_archived(server: Server) {
        let mut rig = Rig::with(server, |config| Config {
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            max_messages: 50,
            ..config
        }).await;
        let running = rig.start_with(|builder| builder.flush_every(20, Duration::from_millis(100))).await;
        let mut taken = 0;
        while taken < 500 {
            let payload = format!("{}-{taken}", rig.stream);
            // What a full stream refuses is tried again.
            let mut id = HeaderMap::new();
            id.insert("Nats-Msg-Id", payload.as_str());
            let sent = rig.context.publish_with_headers(rig.subject("a"), id, payload.clone().into());
            if sent.await.unwrap().await.is_ok() {
                rig.payloads.push(payload);
                taken += 1;
            }
        }
        rig.durable(500).await;
        until("the stream is empty", async || rig.stream_state().await.messages == 0).await;
        assert_eq!(running.stop().await.unwrap().floor, 500);
        rig.assert_published_once();
    }

    async fn a_purge_in_the_middle(server: Server) {
        let mut rig = Rig::new(server).await;
        let running = rig.start().await;
        rig.publish_to(&["a", "b"], 400).await;
        rig.durable(400).await;
        let stream = rig.context.get_stream(&rig.stream).await.unwrap();
        stream.purge().filter(rig.subject("a")).await.unwrap();
        rig.publish_to(&["a", "b"], 400).await;
        rig.durable(800).await;
        stream.purge().await.unwrap();
        let last = rig.publish_to(&["a", "b"], 5).await;
        rig.durable(805).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.forks), (last, 0));
        rig.assert_published_once();
        // The server forgets on top of it.
        rig.cut(|server, stream| server.empty_consumer_state(stream, CONSUMER).unwrap()).await;
        rig.publish(5).await;
        let ended = rig.archive_to(810).await;
        assert_eq!(ended.counters.written, 5);
        rig.assert_published_once();
    }

    async fn messages_that_expire_leave_markers_which_are_archived(server: Server) {
        let mut rig = Rig::with(server, |config| Config {
            subject_delete_marker_ttl: Some(Duration::from_secs(3_600)),
            duplicate_window: Duration::from_secs(2),
            allow_message_ttl: true,
            allow_rollup: true,
            ..config
        }).await;
        let running = rig.start().await;
        for number in 0..20 {
            rig.publish_to(&[&format!("a.{number}")], 1).await;
        }
        // Only now may they expire: one that was never delivered would be missing.
        rig.durable(20).await;
        let expire = async |max_age| {
            let config = rig.context.get_stream(&rig.stream).await.unwrap().cached_info().config.clone();
            rig.context.update_stream(Config { max_age, ..config }).await.unwrap();
        };
        expire(Duration::from_secs(2)).await;
        if !rig.server.is_at_least("2.11.0").unwrap() {
            until("all is expired", async || rig.stream_state().await.messages == 0).await;
            assert_eq!((running.stop().await.unwrap().floor, rig.stream_state().await.last_sequence), (20, 20));
            return;
        }
        // The server deletes each and says so in the stream, in a message of its own.
        until("20 markers", async || rig.stream_state().await.last_sequence >= 40).await;
        rig.durable(40).await;
        rig.acked().await;
        let ended = running.stop().await.unwrap();
        assert_eq!((ended.floor, ended.counters.forks, ended.counters.moves), (40, 0, 0));
        let markers = rig.archive.durable().into_iter().filter(|record| {
            record.headers.get("Nats-Marker-Reason").is_some_and(|why| why.as_str() == "MaxAge")
        });
        assert_eq!(markers.count(), 20);
        expire(Duration::ZERO).await;
        rig.cut(|server, stream| server.empty_consumer_state(stream, CONSUMER).unwrap()).await;
        rig.publish_to(&["b"], 5).await;
        rig.archive_to(45).await;
        assert!(rig.archive.copies().values().all(|copies| *copies == 1));
    }

    async fn a_mirror_is_archived_by_the_sequences_of_its_origin(server: Server) {
        let mut rig = Rig::new(server).await;
        rig.publish(300).await;
        let mirror = format!("{}-mirror", rig.stream);
        let config = Config {
            name: mirror.clone(),
            mirror: Some(Source { name: rig.stream.clone(), ..Default::default() }),
            ..Default::default()
        };
        rig.context.create_stream(config).await.unwrap();
        let of_mirror = rig.builder_of(&mirror).await;
        let running = spawn(of_mirror.open(rig.archive.sink()).await.unwrap());
        rig.publish(300).await;
        rig.durable(600).await;
        running.stop().await.unwrap();
        // Sequence and publish time are those of the origin.
        rig.assert_all_once().await;
        rig.server.kill().unwrap();
        rig.server.empty_consumer_state(&mirror, CONSUMER).unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        let running = spawn(rig.builder_of(&mirror).await.open(rig.archive.sink()).await.unwrap());
        rig.publish(10).await;
        rig.durable(610).await;
        assert_eq!(running.stop().await.unwrap().counters.written, 10);
        rig.assert_all_once().await;
        // The same messages under another stream's name are another source.
        let other = Archive::new();
        let running = spawn(rig.builder().await.start(Start::Beginning).open(other.sink()).await.unwrap());
        until("the origin is archived as well", async || other.count() == 610).await;
        running.stop().await.unwrap();
    }

    async fn a_stream_that_is_fed_by_two_others(server: Server) {
        let mut rig = Rig::new(server).await;
        let feeds = [format!("{}-1", rig.stream), format!("{}-2", rig.stream)];
        for name in &feeds {
            let subjects = vec![format!("{name}.>")];
            rig.context.create_stream(Config { name: name.clone(), subjects, ..Default::default() }).await.unwrap();
        }
        let name = format!("{}-all", rig.stream);
        let sources = feeds.iter().map(|name| Source { name: name.clone(), ..Default::default() }).collect();
        let config = Config { name: name.clone(), sources: Some(sources), ..Default::default() };
        rig.context.create_stream(config).await.unwrap();
        let running = spawn(rig.builder_of(&name).await.open(rig.archive.sink()).await.unwrap());
        let mut sent: HashMap<String, usize> = HashMap::new();
        for number in 0..200 {
            let payload = format!("{name}-{number}");
            let subject = format!("{}.a", feeds[number % 2]);
            rig.context.publish(subject, payload.clone().into()).await.unwrap().await.unwrap();
            sent.insert(payload, 1);
        }
        rig.durable(200).await;
        running.stop().await.unwrap();
        rig.server.kill().unwrap();
        rig.server.empty_consumer_state(&name, CONSUMER).unwrap();
        rig.server.restart().await.unwrap();
        rig.back().await;
        let running = spawn(rig.builder_of(&name).await.open(rig.archive.sink()).await.unwrap());
        rig.context.publish(format!("{}.a", feeds[0]), "last".into()).await.unwrap().await.unwrap();
        rig.durable(201).await;
        assert_eq!(running.stop().await.unwrap().counters.written, 1);
        sent.insert("last".to_owned(), 1);
        let mut got: HashMap<String, usize> = HashMap::new();
        for record in rig.archive.durable() {
            *got.entry(String::from_utf8(record.payload.to_vec()).unwrap()).or_default() += 1;
        }
        assert_eq!(got, sent);
    }
}
