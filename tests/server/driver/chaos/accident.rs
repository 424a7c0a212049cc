//! One accident.

use std::time::Duration;

use async_nats::jetstream::stream::{self, RetentionPolicy};

use super::{Life, Snapshot};

impl Life {
    #[allow(clippy::too_many_lines, reason = "one arm for each accident")]
    pub(super) async fn accident(&mut self) {
        let roll = self.rng.below(20);
        match roll {
            0 => {
                self.rig.cut(|_, _| ()).await;
                self.note("KILL");
            }
            1 => {
                self.rig.server.stop().await.unwrap();
                self.rig.server.restart().await.unwrap();
                self.rig.back().await;
                self.note("STOP SERVER");
            }
            2 | 3 => {
                self.rig.server.stop().await.unwrap();
                let path = self.rig.server.snapshot_store().unwrap();
                self.rig.server.restart().await.unwrap();
                self.rig.back().await;
                self.snapshot = Some(Snapshot { path, published: self.rig.payloads.len() });
                self.note("snapshot");
            }
            4..=6 => {
                let Some(Snapshot { path, published }) = &self.snapshot else { return };
                let (path, published) = (path.clone(), *published);
                let consumers_too = self.rng.one_in(2);
                let name = self.with_state();
                self.rig.server.kill().unwrap();
                let state = name.and_then(|name| self.rig.server.consumer_state(&self.rig.stream, name).ok());
                self.rig.server.restore_store(&path).unwrap();
                if let (false, Some(name), Some(state)) = (consumers_too, name, state) {
                    let _ = self.rig.server.put_consumer_state(&self.rig.stream, name, &state);
                }
                self.ahead |= !consumers_too && self.retention == RetentionPolicy::Interest;
                self.rig.server.restart().await.unwrap();
                let lost: Vec<String> = self.rig.payloads[published..].to_vec();
                self.allowed += lost.len() + self.abort_costs();
                self.excused.extend(lost);
                // Producers are back before or after the archiver.
                if self.rng.one_in(2) {
                    self.rig.back().await;
                    self.publish().await;
                }
                self.rig.back().await;
                self.note(format!("TAIL LOST to {published}, consumers too {consumers_too}"));
            }
            7 | 8 => {
                let how = self.rng.below(6);
                let Some(name) = self.with_state() else { return };
                let old = self.old_state.clone();
                self.rig
                    .cut(|server, stream| {
                        let _ = match how {
                            0 => server.empty_consumer_state(stream, name),
                            1 => server.zero_fill_consumer_state(stream, name),
                            2 => server.empty_consumer_meta(stream, name),
                            3 => server.remove_consumer_state(stream, name),
                            4 => server.remove_consumer(stream, name),
                            _ => old.map_or(Ok(()), |old| server.put_consumer_state(stream, name, &old)),
                        };
                    })
                    .await;
                if self.retention == RetentionPolicy::Interest {
                    // Without a consumer that is interested the server drops what it holds.
                    self.excuse_all();
                }
                self.note(format!("CONSUMER DAMAGED {how} {name}"));
            }
            9 => {
                if let Some(name) = self.with_state() {
                    self.old_state = self.rig.server.consumer_state(&self.rig.stream, name).ok();
                }
            }
            10 => {
                if self.retention == RetentionPolicy::Interest {
                    self.excuse_all();
                }
                let Some(name) = self.with_state() else { return };
                let stream = self.rig.context.get_stream(&self.rig.stream).await.unwrap();
                let _ = stream.delete_consumer(name).await;
                self.note(format!("CONSUMER DELETED {name}"));
            }
            11 if self.rig.server.is_at_least("2.14.0").unwrap() => {
                let Some(name) = self.with_state() else { return };
                let last = self.rig.stream_state().await.last_sequence;
                let to = 1 + self.rng.below(last + 20);
                if self.retention == RetentionPolicy::Interest {
                    self.excuse_all();
                }
                let subject = format!("CONSUMER.RESET.{}.{name}", self.rig.stream);
                let _: Result<serde_json::Value, _> =
                    self.rig.context.request(subject, &serde_json::json!({ "seq": to })).await;
                self.note(format!("CONSUMER RESET to {to}"));
            }
            12 => {
                self.excuse_all();
                let stream = self.rig.context.get_stream(&self.rig.stream).await.unwrap();
                if self.rng.one_in(2) {
                    stream.purge().await.unwrap();
                } else {
                    let last = self.rig.stream_state().await.last_sequence;
                    stream.purge().sequence(1 + self.rng.below(last + 1)).await.unwrap();
                }
                self.note("PURGE");
            }
            13 => {
                self.excuse_all();
                let last = self.rig.stream_state().await.last_sequence;
                let stream = self.rig.context.get_stream(&self.rig.stream).await.unwrap();
                for _ in 0..5 {
                    let _ = stream.delete_message(last.saturating_sub(self.rng.below(12))).await;
                }
                self.note(format!("DELETED some up to {last}"));
            }
            14 if self.rng.one_in(2) => {
                self.excuse_all();
                self.allowed += self.abort_costs();
                self.rig.context.delete_stream(&self.rig.stream).await.unwrap();
                let config = stream::Config {
                    name: self.rig.stream.clone(),
                    subjects: vec![format!("{}.>", self.rig.stream)],
                    retention: self.retention,
                    max_messages_per_subject: self.per_subject,
                    ..Default::default()
                };
                self.rig.context.create_stream(config).await.unwrap();
                self.snapshot = None;
                self.note("STREAM MADE ANEW");
            }
            15 => {
                if let Some(running) = self.running.take() {
                    running.abort().await;
                    self.allowed += self.abort_costs();
                }
                self.note("ARCHIVER KILLED");
                if self.rng.one_in(2) {
                    self.publish().await;
                }
                Box::pin(self.start()).await;
            }
            16 => {
                self.stop().await;
                self.note("ARCHIVER STOPPED");
                if self.rng.one_in(2) {
                    self.publish().await;
                }
                Box::pin(self.start()).await;
            }
            17 => {
                for _ in 0..=self.rng.below(3) {
                    let _ = self.client.force_reconnect().await;
                    tokio::time::sleep(Duration::from_millis(self.rng.below(200))).await;
                }
                self.note("RECONNECT");
            }
            18 => {
                if self.rng.one_in(2) {
                    self.rig.archive.flushing.close();
                } else {
                    self.rig.archive.flushing.open();
                }
                self.note("gate");
            }
            _ => {
                tokio::time::sleep(Duration::from_millis(50 + self.rng.below(400))).await;
            }
        }
    }
}
