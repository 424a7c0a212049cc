//! What the documentation says of events is what the code emits.

use std::collections::BTreeMap;

const CODE: &str = include_str!("../../src/events.rs");
const TABLE: &str = include_str!("../../src/docs/events.md");

/// Name, level and fields of each event in the code.
fn emitted() -> BTreeMap<String, (String, Vec<String>)> {
    let mut events = BTreeMap::new();
    for call in CODE.split("!(").skip(1) {
        let body = call.split(");").next().unwrap();
        let Some(name) = body.split("name: \"").nth(1).and_then(|rest| rest.split('"').next()) else { continue };
        let before = &CODE[..CODE.find(call).unwrap() - 2];
        let level = before.rsplit(|c: char| !c.is_alphabetic()).next().unwrap();
        let fields = body
            .split(',')
            .map(str::trim)
            .filter(|part| {
                !part.is_empty() && !part.starts_with('"') && !part.contains("name:") && !part.contains("target:")
            })
            .map(|part| part.split('=').next().unwrap().trim().to_owned())
            .filter(|field| field != "source" && field.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            .collect();
        events.insert(name.to_owned(), (level.to_owned(), fields));
    }
    events
}

/// The same from the table.
fn described() -> BTreeMap<String, (String, Vec<String>)> {
    TABLE
        .lines()
        .filter(|line| line.starts_with("| `replay_guard."))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let fields = cells[3].split_whitespace().map(|field| field.trim_matches('`').to_owned()).collect();
            (cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), fields))
        })
        .collect()
}

#[test]
fn every_event_is_described_with_its_level_and_fields() {
    let (emitted, described) = (emitted(), described());
    assert!(emitted.len() > 20, "the events were not found in the code: {emitted:?}");
    assert_eq!(emitted, described);
}

/// The public fields of a struct.
fn fields(code: &str, name: &str) -> Vec<String> {
    let start = code.find(&format!("pub struct {name} {{")).unwrap();
    let body = code[start..].split("\n}").next().unwrap();
    let lines = body.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'));
    lines.map(|(field, _)| field.to_owned()).collect()
}

/// The first cells of the table that begins with this heading.
fn rows(heading: &str) -> Vec<String> {
    let table = &TABLE[TABLE.find(heading).unwrap()..];
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').nth(1).unwrap().trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn every_counter_is_described() {
    let counters = fields(include_str!("../../src/guard/report.rs"), "Counters");
    assert!(counters.len() > 15, "the counters were not found in the code: {counters:?}");
    assert_eq!(counters, rows("| counter | counts |"));
    let status = fields(include_str!("../../src/jetstream/driver.rs"), "Status");
    assert!(status.len() >= 5, "the status was not found in the code: {status:?}");
    assert_eq!(status, rows("| field | what |"));
    // What an event's line names as its counter is one.
    for line in TABLE.lines().filter(|line| line.starts_with("| `replay_guard.")) {
        let cell = line.trim_end_matches('|').rsplit('|').next().unwrap();
        let named: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(named.iter().all(|name| counters.iter().chain(&status).any(|field| field == name)), "{line}");
    }
}

/// Every event that the page on running it names exists.
#[test]
fn what_to_look_at_is_there_to_look_at() {
    let page = include_str!("../../src/docs/running.md");
    let known = described();
    let names: Vec<&str> = page.split('`').filter(|word| word.starts_with("replay_guard.")).collect();
    assert!(names.len() > 10, "{names:?}");
    assert!(names.iter().all(|name| known.contains_key(*name)), "{names:?}");
}

/// The code from one line to another, without attributes, visibility and what only documents.
fn code<'a>(text: &'a str, from: &str, to: &str) -> Vec<&'a str> {
    let start = text.find(from).unwrap();
    let code = &text[start..start + text[start..].find(to).unwrap()];
    code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("///")).collect()
}

#[test]
fn the_sink_everybody_copies_is_the_one_that_is_tested() {
    let shown = code(include_str!("../../README.md"), "impl Lines {", "#[tokio::main]");
    let tested = include_str!("../../examples/lines.rs").replace("pub async fn open", "async fn open");
    let tested = code(&tested, "impl Lines {", "async fn shutdown_signal");
    assert!(shown.len() > 20);
    assert_eq!(shown, tested);
}
