//! What a user may not do is found when a driver opens, without any help from the connection's options.

use std::time::Duration;

use async_nats::jetstream;
use replay_guard::{Driver, DriverBuilder, DriverError};

use super::rig::{CONSUMER, DEADLINE, Rig, spawn};
use super::sink::MemorySink;
use crate::nats::{Server, V2_10, V2_12, V2_15, options};

/// A server with users of which the first may do all, and the others what is written here.
async fn server(version: &'static str, users: &[(&str, &str)]) -> Server {
    let users: Vec<String> =
        users.iter().map(|(name, may)| format!("{{ user: {name}, password: x, permissions: {{ {may} }} }}")).collect();
    let users =
        format!("authorization {{ users: [ {{ user: all, password: x }}, {} ] }}\nno_auth_user: all", users.join(", "));
    Server::start_with(version, &users).await.unwrap()
}

async fn builder(rig: &Rig, user: &str) -> DriverBuilder {
    let client = rig.server.client_with(options().user_and_password(user.into(), "x".into())).await.unwrap();
    Driver::builder(jetstream::new(client), rig.stream.as_str())
        .consumer(CONSUMER)
        .state_dir(rig.state_dir())
        .flush_every(100, Duration::from_millis(200))
}

async fn open(rig: &Rig, user: &str) -> Result<Driver<MemorySink>, DriverError> {
    let opening = builder(rig, user).await.open(rig.archive.sink());
    tokio::time::timeout(DEADLINE, opening).await.expect("it is opened, or refused")
}

async fn what_is_missing_is_named_at_the_opening(version: &'static str) {
    let kinds = [
        ("info", "$JS.API.STREAM.INFO."),
        ("get", "$JS.API.STREAM.MSG.GET."),
        ("find", "$JS.API.CONSUMER.INFO."),
        ("make", "$JS.API.CONSUMER.CREATE."),
        ("next", "$JS.API.CONSUMER.MSG.NEXT."),
        ("ack", "$JS.ACK."),
    ];
    let users: Vec<(&str, String)> =
        kinds.iter().map(|(user, subject)| (*user, format!("publish: {{ deny: \"{subject}>\" }}"))).collect();
    let users: Vec<(&str, &str)> = users.iter().map(|(user, may)| (*user, may.as_str())).collect();
    let rig = Rig::new(server(version, &users).await).await;
    for (user, subject) in kinds {
        let error = open(&rig, user).await.unwrap_err();
        assert!(error.is_setting(), "{user}: {error}");
        let said = error.to_string();
        assert!(said.contains(&format!("{subject}{}", rig.stream)) && said.contains(user), "{said}");
    }
    assert_eq!(rig.checkpoints(), Vec::<std::path::PathBuf>::new(), "nothing was begun");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_named_at_the_opening_v2_10_26() {
    what_is_missing_is_named_at_the_opening(V2_10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_named_at_the_opening_v2_12_8() {
    what_is_missing_is_named_at_the_opening(V2_12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_named_at_the_opening_v2_15_1() {
    what_is_missing_is_named_at_the_opening(V2_15).await;
}

/// What the README lists, for a stream and a consumer.
fn listed(stream: &str) -> String {
    let readme = include_str!("../../../README.md");
    let from = readme.find("- Permission to publish to").unwrap();
    let list = &readme[from..from + readme[from..].find("\n- ").unwrap()];
    let publish: Vec<&str> = list.split('`').skip(1).step_by(2).filter(|word| word.starts_with('$')).collect();
    let mut subjects = Vec::new();
    for subject in publish {
        let subject = subject.replace("<stream>", stream);
        for name in [CONSUMER.to_owned(), format!("{CONSUMER}-rg")] {
            let subject = subject.replace("<consumer>", &name);
            match (subject.find('{'), subject.find('}')) {
                (Some(open), Some(close)) => subjects.extend(
                    subject[open + 1..close]
                        .split(',')
                        .map(|verb| format!("{}{verb}{}", &subject[..open], &subject[close + 1..])),
                ),
                _ => subjects.push(subject),
            }
        }
    }
    let quoted: Vec<String> = subjects.iter().map(|subject| format!("\"{subject}\"")).collect();
    format!("publish: {{ allow: [{}] }}, subscribe: {{ allow: \"_INBOX.>\" }}", quoted.join(", "))
}

async fn what_the_readme_lists_is_enough(version: &'static str) {
    let mut rig = Rig::new(server(version, &[("nobody", "publish: { deny: \">\" }")]).await).await;
    let may = listed(&rig.stream);
    assert!(may.matches("$JS.API").count() > 10 && may.contains("$JS.ACK"), "{may}");
    let few = "publish: { deny: [\"$JS.API.CONSUMER.RESET.>\"] }";
    let users = format!(
        "authorization {{ users: [ {{ user: all, password: x }}, {{ user: listed, password: x, permissions: {{ {may} }} }}, \
         {{ user: few, password: x, permissions: {{ {few} }} }} ] }}\nno_auth_user: all"
    );
    rig.server.configure(&users).unwrap();
    rig.server.restart().await.unwrap();
    rig.back().await;
    let running = spawn(open(&rig, "listed").await.unwrap());
    rig.publish(250).await;
    rig.durable(250).await;
    rig.acked().await;
    running.stop().await.unwrap();
    rig.assert_all_once().await;
    assert!(rig.events("setting").is_empty() && rig.events("retry").is_empty(), "{:?}", rig.events("setting"));
    drop(open(&rig, "few").await.unwrap());
    let setting = rig.event("setting").await;
    assert!(setting.fields["setting"].contains("$JS.API.CONSUMER.RESET."), "{setting:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_readme_lists_is_enough_v2_12_8() {
    what_the_readme_lists_is_enough(V2_12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_readme_lists_is_enough_v2_15_1() {
    what_the_readme_lists_is_enough(V2_15).await;
}

/// A filter's wildcards are tokens of the subject that a consumer is made with.
async fn a_star_in_a_permission_stands_for_a_filters_wildcard(version: &'static str) {
    let may = [
        "$JS.API.STREAM.>",
        "$JS.API.CONSUMER.INFO.>",
        "$JS.API.CONSUMER.MSG.NEXT.>",
        "$JS.API.CONSUMER.CREATE.*.*.*.*",
        "$JS.ACK.>",
        "$SYS.REQ.USER.INFO",
    ];
    let may = format!("publish: {{ allow: {may:?} }}");
    let mut rig = Rig::new(server(version, &[("stars", &may)]).await).await;
    let builder = builder(&rig, "stars").await.filter(rig.subject(">"));
    let running = spawn(builder.open(rig.archive.sink()).await.unwrap());
    rig.publish(10).await;
    rig.durable(10).await;
    rig.acked().await;
    running.stop().await.unwrap();
    rig.assert_all_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_star_in_a_permission_stands_for_a_filters_wildcard_v2_10_26() {
    a_star_in_a_permission_stands_for_a_filters_wildcard(V2_10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_star_in_a_permission_stands_for_a_filters_wildcard_v2_15_1() {
    a_star_in_a_permission_stands_for_a_filters_wildcard(V2_15).await;
}
