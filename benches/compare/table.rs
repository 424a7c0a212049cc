//! The table, and the numbers in it.

use std::fmt;
use std::time::Duration;

/// What was measured, a line each.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// Two things that were run in turn, the guarded one first; the ratio is that of their speeds, a pair each.
    pub(crate) fn pairs(&mut self, measure: &str, pairs: &[(Duration, Duration)], bar: &str) {
        let ours = median(pairs.iter().map(|pair| pair.0.as_secs_f64()));
        let limit = median(pairs.iter().map(|pair| pair.1.as_secs_f64()));
        let ratios = pairs.iter().map(|(ours, limit)| limit.as_secs_f64() / ours.as_secs_f64());
        self.row(measure, &time(ours), &time(limit), &spread(ratios), bar);
    }

    /// Anything else.
    pub(crate) fn row(&mut self, measure: &str, ours: &str, limit: &str, ratio: &str, bar: &str) {
        eprintln!("{measure}: {ours} against {limit}, {ratio}");
        self.rows.push([measure, ours, limit, ratio, bar].map(str::to_owned));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| measure | guarded | limit | speed, median (least .. most) | bar |\n|---|---|---|---|---|")?;
        for row in &self.rows {
            writeln!(f, "| {} |", row.join(" | "))?;
        }
        Ok(())
    }
}

/// The middle one; of an even number, the upper of the two. NaN of none.
pub(crate) fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Median, least and most.
pub(crate) fn spread(numbers: impl Iterator<Item = f64> + Clone) -> String {
    let least = numbers.clone().fold(f64::INFINITY, f64::min);
    let most = numbers.clone().fold(0.0, f64::max);
    format!("{:.2} ({least:.2} .. {most:.2})", median(numbers))
}

/// Seconds, in a unit that suits them.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{seconds:.2} s"),
        0.001.. => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.1} us", seconds * 1e6),
    }
}
