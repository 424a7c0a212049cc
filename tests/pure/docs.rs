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
