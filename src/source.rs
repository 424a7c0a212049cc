//! What sequence numbers refer to.

/// A stream and a filter: what one guard archives, with one checkpoint.
///
/// The consumer's name is no part of it; another filter is another source. The domain is the one the program was
/// configured with, never one that was discovered, so that the same configuration always means the same checkpoint.
///
/// ```
/// use replay_guard::Source;
///
/// let a = Source::new("ORDERS").with_filters(["orders.b", "orders.a"]);
/// let b = Source::new("ORDERS").with_filters(["orders.a", "orders.b", "orders.a"]);
/// assert_eq!(a, b);
/// assert_ne!(a, Source::new("ORDERS"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Source {
    domain: Option<String>,
    stream: String,
    filters: Vec<String>,
}

impl Source {
    /// The whole of a stream.
    pub fn new(stream: impl Into<String>) -> Self {
        Self { domain: None, stream: stream.into(), filters: Vec::new() }
    }

    /// Only the messages whose subject matches one of these; sorted, repetitions removed. None means the whole stream.
    #[must_use]
    pub fn with_filters<I>(mut self, filters: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.filters = filters.into_iter().map(Into::into).collect();
        self.filters.sort_unstable();
        self.filters.dedup();
        self
    }

    /// The `JetStream` domain the stream lives in.
    #[must_use]
    pub fn with_domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// The domain, where one was configured.
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// The stream's name.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The filter subjects, sorted; empty for the whole stream.
    pub fn filters(&self) -> &[String] {
        &self.filters
    }

    /// Whether a message with this subject belongs to the source.
    pub fn matches(&self, subject: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| fits(filter, subject))
    }
}

/// Whether a subject fits a filter: `*` stands for one token, `>` at the end for one or more. In the subject they are tokens
/// like others.
pub(crate) fn fits(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for part in filter.split('.') {
        match (part, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (part, Some(token)) if part == token => {}
            (_, Some(_) | None) => return false,
        }
    }
    tokens.next().is_none()
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(domain) = &self.domain {
            write!(f, "{domain}/")?;
        }
        write!(f, "{}", self.stream)?;
        if !self.filters.is_empty() {
            write!(f, " [{}]", self.filters.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_matched_token_by_token() {
        for (filter, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", false),
            ("a.b", "a", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("*.b.>", "x.b.c", true),
            (">", "anything.at.all", true),
            ("a.b", "a.bc", false),
        ] {
            assert_eq!(Source::new("S").with_filters([filter]).matches(subject), expected, "{filter} {subject}");
        }
        assert!(Source::new("S").matches("whatever"));
        assert!(Source::new("S").with_filters(["a", "b"]).matches("b"));
    }
}
