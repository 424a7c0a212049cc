//! What the user may do, asked once at an opening: a request without permission gets no answer, and no answer looks like a
//! server that is away.

use std::time::Duration;

use async_nats::jetstream;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::api::{Empty, api_prefix};
use super::consumer::Consumer;
use super::error::ConsumerError;
use crate::source::{Source, fits};

/// How long the server may take to say what the user may do. A user without the permission to ask waits this long.
const DEADLINE: Duration = Duration::from_secs(2);

/// What the server says about the user of a connection.
#[derive(Deserialize)]
struct UserInfo {
    data: User,
}

#[derive(Deserialize)]
struct User {
    user: String,
    #[serde(default)]
    permissions: Permissions,
}

/// What a user may do; nothing said: all.
#[derive(Default, Deserialize)]
struct Permissions {
    #[serde(default)]
    publish: Rules,
    /// Whoever gets a message may answer it.
    responses: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct Rules {
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
}

impl Rules {
    /// Whether a subject is allowed. Rules for a queue concern nobody here.
    fn allow(&self, subject: &str) -> bool {
        let covers = |rule: &String| !rule.contains(' ') && fits(rule, subject);
        (self.allow.is_empty() || self.allow.iter().any(covers)) && !self.deny.iter().any(covers)
    }
}

/// What an archiver needs. Each line is one thing, with the subjects that serve for it.
struct Needs {
    /// Without these nothing can be archived.
    publish: Vec<Vec<String>>,
    /// Without these a consumer that forgot is not moved, and one that was damaged not replaced.
    better: Vec<String>,
}

impl Needs {
    fn new(source: &Source, consumer: &str, other: &str) -> Self {
        let api = api_prefix(source);
        let stream = source.stream();
        let create = |consumer: &str| match source.filters() {
            [filter] => format!("{api}.CONSUMER.CREATE.{stream}.{consumer}.{filter}"),
            _ => format!("{api}.CONSUMER.CREATE.{stream}.{consumer}"),
        };
        let of = |verb: &str, consumer: &str| format!("{api}.CONSUMER.{verb}.{stream}.{consumer}");
        Self {
            publish: vec![
                vec![format!("{api}.STREAM.INFO.{stream}")],
                vec![format!("{api}.STREAM.MSG.GET.{stream}")],
                vec![of("INFO", consumer)],
                vec![create(consumer)],
                vec![of("MSG.NEXT", consumer)],
                // The form with domain and account is used where a server was told to.
                vec![
                    format!("$JS.ACK.{stream}.{consumer}.1.1.1.1.1"),
                    format!("$JS.ACK.{}.*.{stream}.{consumer}.1.1.1.1.1", source.domain().unwrap_or("_")),
                ],
            ],
            better: vec![
                of("DELETE", consumer),
                of("RESET", consumer),
                of("INFO", other),
                create(other),
                of("MSG.NEXT", other),
                of("DELETE", other),
            ],
        }
    }

    /// What is missing: an error where nothing can be archived without it, else a list.
    fn check(&self, user: &User) -> Result<Vec<String>, ConsumerError> {
        let Permissions { publish, responses } = &user.permissions;
        for subjects in &self.publish {
            let answer = responses.is_some() && subjects.iter().any(|subject| subject.starts_with("$JS.ACK."));
            if !answer && !subjects.iter().any(|subject| publish.allow(subject)) {
                let subject = subjects.first().cloned().unwrap_or_default();
                let reason = format!("user {:?} may not publish to it", user.user);
                return Err(ConsumerError::Denied { subject, reason });
            }
        }
        Ok(self.better.iter().filter(|subject| !publish.allow(subject)).cloned().collect())
    }
}

/// Asks the server what its user may do and compares it with what an archiver needs. Gives what is missing and can be done
/// without; `None` where the server does not say, or is away. Cancel safe.
///
/// # Errors
///
/// [`ConsumerError::Denied`], with the first subject that is missing.
pub(super) async fn check(
    client: async_nats::Client,
    source: &Source,
    consumer: &Consumer,
) -> Result<Option<Vec<String>>, ConsumerError> {
    let needs = Needs::new(source, consumer.name(), consumer.other().name());
    let system = jetstream::with_prefix(client, "$SYS.REQ");
    match tokio::time::timeout(DEADLINE, system.request::<_, _, UserInfo>("USER.INFO", &Empty {})).await {
        Ok(Ok(info)) => needs.check(&info.data).map(Some),
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn rules(allow: &[&str], deny: &[&str]) -> Rules {
        let owned = |list: &[&str]| list.iter().map(|rule| (*rule).to_owned()).collect();
        Rules { allow: owned(allow), deny: owned(deny) }
    }

    fn user(publish: Rules) -> User {
        User { user: "u".to_owned(), permissions: Permissions { publish, responses: None } }
    }

    fn needs() -> Needs {
        Needs::new(&Source::new("S"), "c", "c-rg")
    }

    /// What the README lists.
    const LISTED: [&str; 8] = [
        "$JS.API.STREAM.INFO.S",
        "$JS.API.STREAM.MSG.GET.S",
        "$JS.API.CONSUMER.*.S.c",
        "$JS.API.CONSUMER.CREATE.S.c.>",
        "$JS.API.CONSUMER.MSG.NEXT.S.*",
        "$JS.ACK.S.c.>",
        "$JS.API.CONSUMER.*.S.c-rg",
        "$SYS.REQ.USER.INFO",
    ];

    #[test]
    fn patterns_cover_what_they_match() {
        for (pattern, subject) in [
            ("a.b", "a.b"),
            ("a.*", "a.b"),
            ("a.>", "a.b.c"),
            (">", "a"),
            ("a.*", "a.*"),
            ("a.>", "a.>"),
            ("a.*", "a.>"),
        ] {
            assert!(fits(pattern, subject), "{pattern} {subject}");
        }
        for (pattern, subject) in
            [("a", "a.b"), ("a.b", "a"), ("a.>", "a"), ("a.b", "a.*"), ("a.*", "a.b.c"), ("a.*", "a")]
        {
            assert!(!fits(pattern, subject), "{pattern} {subject}");
        }
    }

    #[test]
    fn nobody_is_missing_what_he_has() {
        for user in [
            user(Rules::default()),
            user(rules(&LISTED, &[])),
            user(rules(&[">"], &["$JS.API.STREAM.DELETE.>", "$JS.ACK.> queue"])),
        ] {
            assert_eq!(needs().check(&user).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn each_thing_that_is_missing_is_named() {
        for (missing, named) in [
            (0, "$JS.API.STREAM.INFO.S"),
            (1, "$JS.API.STREAM.MSG.GET.S"),
            (2, "$JS.API.CONSUMER.INFO.S.c"),
            (4, "$JS.API.CONSUMER.MSG.NEXT.S.c"),
            (5, "$JS.ACK.S.c."),
        ] {
            let some: Vec<&str> =
                LISTED.iter().copied().enumerate().filter(|(at, _)| *at != missing).map(|(_, s)| s).collect();
            let error = needs().check(&user(rules(&some, &[]))).unwrap_err();
            assert!(error.to_string().contains(named) && !error.is_retriable(), "{error}");
        }
        let filtered = Needs::new(&Source::new("S").with_filters(["a.*"]), "c", "c-rg");
        let error = filtered.check(&user(rules(&["$JS.*.>"], &["*.*.*.CREATE.S.c.a.>"]))).unwrap_err();
        assert!(error.to_string().contains("$JS.API.CONSUMER.CREATE.S.c.a.*"), "{error}");
    }

    #[test]
    fn what_can_be_done_without_is_listed() {
        let denied = rules(&[], &["$JS.API.CONSUMER.RESET.>", "$JS.API.CONSUMER.*.S.c-rg"]);
        let missing = needs().check(&user(denied)).unwrap();
        let of = |verb: &str, consumer: &str| format!("$JS.API.CONSUMER.{verb}.S.{consumer}");
        assert_eq!(missing, [of("RESET", "c"), of("INFO", "c-rg"), of("CREATE", "c-rg"), of("DELETE", "c-rg")]);
    }

    #[test]
    fn other_ways_to_ack_count() {
        let without: Vec<&str> = LISTED.iter().copied().filter(|rule| !rule.starts_with("$JS.ACK")).collect();
        let mut answers = user(rules(&without, &[]));
        assert!(needs().check(&answers).is_err());
        answers.permissions.responses = Some(IgnoredAny);
        assert!(needs().check(&answers).is_ok());
        let later = [&without[..], &["$JS.ACK._.*.S.c.>"]].concat();
        assert!(needs().check(&user(rules(&later, &[]))).is_ok());
    }
}
