//! Stands in for the crate's driver until that exists: same calls, no guard. To be deleted.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use replay_guard::async_nats::jetstream::{self, AckKind, Context, consumer};
use replay_guard::{Flush, Reason, Record, Sink, Source, Written};

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("{0}")]
    Setting(String),
    #[error("{0}")]
    Later(String),
}
impl OpenError {
    pub(crate) fn is_setting(&self) -> bool {
        matches!(self, Self::Setting(_))
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) delivered: u64,
    pub(crate) skipped: u64,
}

pub(crate) struct Builder {
    jetstream: Context,
    stream: String,
    consumer: String,
    filters: Vec<String>,
    records: usize,
    after: Duration,
}

pub(crate) struct Driver<S> {
    sink: S,
    consumer: consumer::PullConsumer,
    records: usize,
    after: Duration,
}

impl Driver<()> {
    pub(crate) fn builder(jetstream: Context, stream: impl Into<String>) -> Builder {
        let (consumer, filters, after) = (String::new(), Vec::new(), Duration::from_secs(1));
        Builder { jetstream, stream: stream.into(), consumer, filters, records: 1, after }
    }
}

impl Builder {
    pub(crate) fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }
    pub(crate) fn filter(mut self, subject: impl Into<String>) -> Self {
        self.filters.push(subject.into());
        self
    }
    pub(crate) fn state_dir(self, _: impl AsRef<Path>) -> Self {
        self
    }
    pub(crate) fn flush_every(mut self, records: usize, after: Duration) -> Self {
        (self.records, self.after) = (records, after);
        self
    }
    pub(crate) fn flush_bytes(self, _: usize) -> Self {
        self
    }
    pub(crate) async fn open_with<S, F, O>(self, mut factory: F) -> Result<Driver<S>, OpenError>
    where
        S: Sink,
        F: FnMut() -> O + Send + 'static,
        O: Future<Output = Result<S, S::Error>> + Send,
    {
        let mut sink = factory().await.map_err(|e| OpenError::Setting(e.to_string()))?;
        sink.recover(&Source::new(&self.stream)).await.map_err(|e| OpenError::Later(e.to_string()))?;
        let stream = self.jetstream.get_stream(&self.stream).await.map_err(|e| match e.kind() {
            jetstream::context::GetStreamErrorKind::JetStream(e) => OpenError::Setting(e.to_string()),
            _ => OpenError::Later(e.to_string()),
        })?;
        let config = consumer::pull::Config {
            durable_name: Some(self.consumer.clone()),
            filter_subjects: self.filters,
            max_ack_pending: 100_000,
            ..Default::default()
        };
        let consumer = stream.get_or_create_consumer(&self.consumer, config).await;
        let consumer = consumer.map_err(|e| OpenError::Later(e.to_string()))?;
        Ok(Driver { sink, consumer, records: self.records, after: self.after })
    }
}

impl<S: Sink> Driver<S> {
    pub(crate) async fn run_until(mut self, stop: impl Future<Output = ()>) -> anyhow::Result<Ended> {
        let (mut ended, mut ackers, mut since) = (Ended::default(), Vec::new(), Instant::now());
        tokio::pin!(stop);
        loop {
            let pulled = tokio::select! {
                () = &mut stop => break,
                pulled = self.consumer.fetch().max_messages(self.records).messages() => pulled?,
            };
            let mut full = false;
            let mut pulled = pulled;
            while let Some(message) = pulled.next().await {
                let Ok(message) = message else { break };
                let info = message.info().map_err(|e| anyhow::anyhow!("{e}"))?;
                let (sequence, published) = (info.stream_sequence, info.published.unix_timestamp_nanos());
                let (message, acker) = message.split();
                let mut record = Record::new(sequence, i64::try_from(published)?, message.subject, message.payload);
                record.headers = message.headers.unwrap_or_default();
                full |= self.sink.write(record).await? == Written::Full;
                ackers.push(acker);
                ended.delivered += 1;
            }
            if full || ackers.len() >= self.records || since.elapsed() >= self.after {
                self.flush(&mut ackers).await?;
                since = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.flush(&mut ackers).await?;
        Ok(ended)
    }

    async fn flush(&mut self, ackers: &mut Vec<jetstream::message::Acker>) -> anyhow::Result<()> {
        self.sink.flush(Flush::without_guard(Reason::Due)).await?;
        for acker in ackers.drain(..) {
            acker.ack_with(AckKind::Ack).await.map_err(|e| anyhow::anyhow!("{e}"))?;
        }
        Ok(())
    }
}
