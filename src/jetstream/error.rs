//! Why something could not be done with a consumer.

/// Why something could not be done with a consumer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// A setting of the consumer with which archiving would lose messages. Somebody has to change it.
    #[error("consumer {consumer} cannot be used: {reason}")]
    Refused {
        /// Its name.
        consumer: String,
        /// Which setting, and why.
        reason: String,
    },
    /// A name that cannot stand in an API subject: empty, or with white space, `.`, `*`, `>`, `/` or `\`.
    #[error("{name:?} cannot be the name of a stream or consumer")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// There is no such consumer.
    #[error("there is no consumer {consumer}")]
    Missing {
        /// Its name.
        consumer: String,
    },
    /// There is no such stream.
    #[error("there is no stream {stream}")]
    NoStream {
        /// Its name.
        stream: String,
    },
    /// The server cannot make a consumer of this name, usually since the files of an old one are damaged. Another name
    /// serves.
    #[error("consumer {consumer} cannot be made: {reason}")]
    Damaged {
        /// Its name.
        consumer: String,
        /// What the server said.
        reason: String,
    },
    /// This server cannot move a consumer on a stream of this retention without losing messages.
    #[error("consumer {consumer} cannot be moved: retention {retention}, server {version}: {reason}")]
    Unsupported {
        /// Its name.
        consumer: String,
        /// The stream's retention.
        retention: &'static str,
        /// The server's version.
        version: String,
        /// What would be needed.
        reason: &'static str,
    },
    /// The server refuses the request, and will again.
    #[error("the server refused: {reason}")]
    Rejected {
        /// What the server said.
        reason: String,
    },
    /// The user has no permission. Found when a driver opens, and later where [`Denials`](super::Denials) are noted.
    #[error("permission denied for {subject}: {reason}")]
    Denied {
        /// The subject that was refused; without the API prefix where a request was.
        subject: String,
        /// What the server said.
        reason: String,
    },
    /// No answer, or one that says nothing: a time-out, no leader, no responder. A missing permission looks the same
    /// where no [`Denials`](super::Denials) are noted.
    #[error("the consumer could not be asked: {reason}")]
    Unavailable {
        /// What the client or the server said.
        reason: String,
    },
}

impl ConsumerError {
    /// Whether the same call may succeed later without anybody changing anything.
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::NoStream { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_tried_again() {
        let consumer = || "c".to_owned();
        assert!(ConsumerError::Unavailable { reason: String::new() }.is_retriable());
        assert!(ConsumerError::NoStream { stream: consumer() }.is_retriable());
        assert!(!ConsumerError::Missing { consumer: consumer() }.is_retriable());
        assert!(!ConsumerError::Rejected { reason: String::new() }.is_retriable());
        assert!(!ConsumerError::Damaged { consumer: consumer(), reason: String::new() }.is_retriable());
    }
}
