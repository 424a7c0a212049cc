//! The store: opened, and asked whether it keeps to conditions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, Error as StoreError, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
    RetryConfig,
};
use url::Url;

use crate::cli::BucketSettings;
use crate::error::SinkError;

/// A store that is back is noticed after this at the latest.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

const PROBE: &str = "probe";
const PROBE_TEXT: &str =
    "An archiver asks with this object whether the store keeps to conditions. It may be deleted.\n";

/// A bucket, or the part of one below a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    /// Whether writes are made conditional.
    pub(crate) conditional: bool,
    name: String,
}

impl Bucket {
    /// Asks nothing yet.
    pub(crate) fn new(settings: &BucketSettings) -> Result<Self, SinkError> {
        let error = |source| SinkError::Settings { source };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&settings.bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_allow_http(settings.allow_http)
            .with_config(
                AmazonS3ConfigKey::Client(ClientConfigKey::Timeout),
                format!("{}s", settings.request_timeout.as_secs()),
            )
            .with_retry(RetryConfig {
                backoff: BackoffConfig { max_backoff: LONGEST_BACKOFF, ..Default::default() },
                ..Default::default()
            });
        if let Some(region) = &settings.region {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = &settings.endpoint {
            // This one stands above all that the environment may name.
            builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
        }
        check(&builder, settings.allow_http)?;
        if builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_none() {
            tracing::info!(
                "AWS_ACCESS_KEY_ID is not set: a web identity, the container or the instance is asked for credentials"
            );
        }
        let prefix = Path::parse(&settings.prefix).map_err(|source| error(source.into()))?;
        let store = Arc::new(builder.build().map_err(error)?);
        Ok(Self { store, prefix, conditional: !settings.unconditional, name: settings.bucket.clone() })
    }

    /// Proves that objects can be written, read and listed in this directory, and that the store does not write over one
    /// that is there when it is told not to.
    ///
    /// That it keeps to that under two writers at once is not proved: the few stores that fail then cannot be told without
    /// some rubbish in the bucket.
    pub(crate) async fn probe(&self, directory: &Path) -> Result<(), SinkError> {
        let object = directory.clone().join(PROBE);
        let put = async || {
            let mode = if self.conditional { PutMode::Create } else { PutMode::Overwrite };
            match self.store.put_opts(&object, PutPayload::from_static(PROBE_TEXT.as_bytes()), mode.into()).await {
                Ok(_) => Ok(true),
                Err(StoreError::AlreadyExists { .. }) => Ok(false),
                Err(source @ StoreError::NotFound { .. }) => {
                    Err(SinkError::NoBucket { bucket: self.name.clone(), source })
                }
                Err(source) => Err(SinkError::request("write", &object, source)),
            }
        };
        let written_twice = put().await? && put().await?;
        self.store.head(&object).await.map_err(|source| SinkError::request("read", &object, source))?;
        let listed = self.store.list(Some(directory)).try_next().await;
        listed.map_err(|source| SinkError::request("list", directory, source))?;
        if written_twice && self.conditional {
            return Err(SinkError::NoConditions { object });
        }
        if !self.conditional {
            tracing::warn!(
                bucket = %self,
                "conditions are not used: an upload that comes true after its archiver died, or a second archiver, may \
                 write messages twice or replace an object of the same first and last message"
            );
        }
        Ok(())
    }
}

/// Refuses what the client would take and then fail with at the first request, or panic.
fn check(builder: &AmazonS3Builder, allow_http: bool) -> Result<(), SinkError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let visible = |c: char| c.is_ascii_graphic();
    let checks: [(_, &str, &dyn Fn(char) -> bool); 4] = [
        (AmazonS3ConfigKey::Bucket, "bucket's name", &plain),
        (AmazonS3ConfigKey::Region, "region", &plain),
        (AmazonS3ConfigKey::AccessKeyId, "access key's id (AWS_ACCESS_KEY_ID)", &visible),
        (AmazonS3ConfigKey::Token, "session's token (AWS_SESSION_TOKEN)", &visible),
    ];
    for (key, what, allowed) in checks {
        if builder.get_config_value(&key).is_some_and(|value| value.is_empty() || !value.chars().all(allowed)) {
            return Err(SinkError::Characters { what });
        }
    }
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let Some(endpoint) = endpoint.iter().find_map(|key| builder.get_config_value(key)) else { return Ok(()) };
    match Url::parse(&endpoint) {
        Ok(url) if url.scheme() == "http" && !allow_http => Err(SinkError::NoTls { endpoint }),
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none() => Ok(()),
        _ => Err(SinkError::Endpoint { endpoint }),
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.prefix)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser as _;
    use object_store::memory::InMemory;

    use super::*;
    use crate::cli::Cli;

    /// A bucket in memory.
    pub(crate) fn memory() -> Bucket {
        let store = Arc::new(InMemory::new());
        Bucket { store, prefix: Path::from("a/b"), conditional: true, name: "memory".into() }
    }

    fn bucket(options: &str) -> Result<Bucket, SinkError> {
        let bucket = if options.contains("--bucket") { "" } else { "--bucket b" };
        let line = format!("x --stream S {bucket} {options}");
        Bucket::new(&Cli::parse_from(line.split_whitespace()).bucket)
    }

    #[test]
    fn an_address_without_tls_must_be_allowed() {
        assert!(matches!(bucket("--endpoint http://127.0.0.1:9"), Err(SinkError::NoTls { .. })));
        assert!(bucket("--endpoint http://127.0.0.1:9 --allow-http").is_ok());
        assert!(bucket("--endpoint https://127.0.0.1:9").is_ok());
    }

    #[test]
    fn what_no_request_could_be_made_of_is_refused() {
        for options in ["--bucket a/b", "--bucket a%20b", "--region a/b", "--region="] {
            assert!(matches!(bucket(options), Err(SinkError::Characters { .. })), "{options}");
        }
        for endpoint in ["host", "127.0.0.1:9000", "ftp://host", "https://", "https://a%zz", "https://host/?a=b"] {
            let error = bucket(&format!("--allow-http --endpoint {endpoint}")).err();
            assert!(matches!(error, Some(SinkError::Endpoint { .. })), "{endpoint}: {error:?}");
        }
    }

    #[test]
    fn a_prefix_that_no_object_can_have_is_a_setting() {
        let error = bucket("--prefix a//b").err();
        assert!(error.as_ref().is_some_and(SinkError::is_setting), "{error:?}");
        assert_eq!(bucket("--prefix /a/b/").map(|bucket| bucket.prefix).ok(), Some(Path::from("a/b")));
    }

    #[tokio::test]
    async fn a_store_is_asked_again_without_a_trace() -> Result<(), SinkError> {
        let bucket = memory();
        let directory = bucket.prefix.clone().join("S");
        for _ in 0..2 {
            bucket.probe(&directory).await?;
        }
        let objects: Vec<_> =
            bucket.store.list(None).try_collect().await.map_err(|source| SinkError::Settings { source })?;
        assert_eq!(objects.len(), 1);
        Ok(())
    }
}
