//! Why the archive cannot be written or read.

use std::error::Error as _;

use object_store::Error as StoreError;
use object_store::path::Path;
use parquet::errors::ParquetError;

/// Why the archive cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SinkError {
    #[error("the settings of the store are wrong")]
    Settings { source: StoreError },
    #[error("the {what} is empty or holds characters that it cannot have")]
    Characters { what: &'static str },
    #[error("{endpoint} is no address of a store, such as https://s3.example.org:9000")]
    Endpoint { endpoint: String },
    #[error("{endpoint} is an address without TLS; give an https address, or allow this one with --allow-http")]
    NoTls { endpoint: String },
    #[error("there is no bucket {bucket}; create it, or check its name, --region and --endpoint")]
    NoBucket { bucket: String, source: StoreError },
    #[error(
        "the store does not let these credentials {what} {object}; they need s3:PutObject and s3:GetObject there, and \
         s3:ListBucket on the bucket, which must exist"
    )]
    Denied { what: &'static str, object: Path, source: StoreError },
    #[error(
        "the store wrote {object} although it was there already and the request said `If-None-Match: *`: it ignores \
         conditions. Use one that keeps to them, or give --unconditional and live without the guarantee that nothing is \
         written twice"
    )]
    NoConditions { object: Path },
    #[error("cannot {what} {object}")]
    Request { what: &'static str, object: Path, source: StoreError },
    #[error(
        "{object} is there already and {there}, while {here} was to be written; if that object is not of this archive, \
         move it away"
    )]
    Taken { object: Path, there: String, here: String },
    #[error("others write {object} all the time; run one archiver per stream and filters")]
    Contended { object: Path },
    #[error("cannot write the rows of {object} as Parquet")]
    Encode { object: Path, source: ParquetError },
    #[error("the task that writes {object} ended without a result")]
    Task { object: Path, source: tokio::task::JoinError },
}

impl SinkError {
    /// A request that failed. `what`: what it was to do to the object.
    pub(crate) fn request(what: &'static str, object: &Path, source: StoreError) -> Self {
        let object = object.clone();
        match source {
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                Self::Denied { what, object, source }
            }
            source => Self::Request { what, object, source },
        }
    }

    /// Whether trying again cannot help, if this was the first request of all.
    pub(crate) fn is_setting(&self) -> bool {
        match self {
            Self::Settings { .. }
            | Self::Characters { .. }
            | Self::Endpoint { .. }
            | Self::NoTls { .. }
            | Self::NoBucket { .. }
            | Self::Denied { .. }
            | Self::NoConditions { .. } => true,
            Self::Request { source, .. } => is_refusal(source),
            Self::Taken { .. } | Self::Contended { .. } | Self::Encode { .. } | Self::Task { .. } => false,
        }
    }
}

/// Whether the store understood the request and did not want it (the wrong region, a name that no bucket can have, ...), or is
/// not to be trusted.
fn is_refusal(error: &StoreError) -> bool {
    if let StoreError::InvalidPath { .. } | StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } = error
    {
        return true;
    }
    // It is to be had as text only. A time-out, 408, may pass.
    let refused = [
        "redirect without LOCATION",
        "status code: 30",
        "status code: 40",
        "status code: 501",
        "invalid peer certificate",
    ];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if refused.iter().any(|part| text.contains(part)) && !text.contains("status code: 408") {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_no_setting() {
        let error = |text: &str| {
            let source = StoreError::Generic { store: "S3", source: text.to_owned().into() };
            SinkError::request("write", &Path::from("a"), source)
        };
        for text in [
            "Server returned non-2xx status code: 400 Bad Request: InvalidBucketName",
            "Server returned non-2xx status code: 301 Moved Permanently",
            "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
            "error sending request: client error (Connect): invalid peer certificate: UnknownIssuer",
        ] {
            assert!(error(text).is_setting(), "{text}");
        }
        for text in [
            "Server returned non-2xx status code: 408 Request Timeout",
            "Server returned non-2xx status code: 429 Too Many Requests",
            "Server returned non-2xx status code: 503 Slow Down",
            "error sending request: client error (Connect): tcp connect error: Connection refused (os error 111)",
        ] {
            assert!(!error(text).is_setting(), "{text}");
        }
    }
}
