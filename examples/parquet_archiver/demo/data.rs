//! What the demo publishes: a year of hourly temperatures of two cities, as they came.

use anyhow::{Context as _, Result};

const SEATTLE: &str = include_str!("../../data/seattle-temps.csv");
const SAN_FRANCISCO: &str = include_str!("../../data/sf-temps.csv");

/// One message to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) subject: &'static str,
    pub(super) payload: String,
}

#[derive(Debug, serde::Deserialize)]
struct Reading {
    date: String,
    temp: f64,
}

/// Every row of both files, hour by hour.
pub(super) fn temperatures() -> Result<Vec<Message>> {
    let mut rows = Vec::new();
    for (subject, text) in [("temps.seattle", SEATTLE), ("temps.sf", SAN_FRANCISCO)] {
        for reading in csv::Reader::from_reader(text.as_bytes()).into_deserialize() {
            let Reading { date, temp } = reading.with_context(|| format!("a row of {subject} is not understood"))?;
            // One city notes the seconds, the other does not.
            let hour: String = date.chars().take("2010/01/01 00:00".len()).collect();
            let payload = serde_json::json!({ "hour": hour, "fahrenheit": temp }).to_string();
            rows.push((hour, Message { subject, payload }));
        }
    }
    rows.sort_by(|(a, x), (b, y)| (a, x.subject).cmp(&(b, y.subject)));
    Ok(rows.into_iter().map(|(_, message)| message).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_both_files_becomes_a_message() -> Result<()> {
        let messages = temperatures()?;
        let rows = |text: &str| text.lines().count() - 1;
        assert_eq!(messages.len(), rows(SEATTLE) + rows(SAN_FRANCISCO));
        let expected = [
            ("temps.seattle", r#"{"fahrenheit":39.4,"hour":"2010/01/01 00:00"}"#),
            ("temps.sf", r#"{"fahrenheit":47.8,"hour":"2010/01/01 00:00"}"#),
        ];
        assert_eq!(messages.iter().take(2).map(|m| (m.subject, m.payload.as_str())).collect::<Vec<_>>(), expected);
        Ok(())
    }
}
