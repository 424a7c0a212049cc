//! Times as the server writes them.

/// Unix nanoseconds of an RFC 3339 time; `None` where it is none, or outside what an `i64` of nanoseconds can say (Go's
/// zero time, for a stream that never held a message).
///
/// Read here and not by the client, since the type the client gives depends on a feature that any crate of a build may
/// switch on, and a system's clock type may be coarser than nanoseconds.
pub(crate) fn unix_nanos(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', 't'])?;
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut clock = clock.splitn(3, ':').map(number);
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let nanos = if fraction.is_empty() { 0 } else { number(&format!("{fraction:0<9}"))? };
    if fraction.len() > 9 {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset(zone)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

/// Digits only: no sign, at most what a fraction of nanoseconds needs.
fn number(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// Seconds east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.get(..1)? {
        "Z" | "z" => return (zone.len() == 1).then_some(0),
        "+" => 1,
        _ => -1,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    Some(sign * (number(hours)? * 3_600 + number(minutes)? * 60))
}

/// Days since 1970-01-01 in the Gregorian calendar. The year begins in March here, so that the leap day ends it.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_servers_write() {
        for (text, nanos) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.000000001Z", 1),
            ("1969-12-31T23:59:59.9Z", -100_000_000),
            ("2000-02-29T12:30:15.5Z", 951_827_415_500_000_000),
            ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
            ("2023-11-15T00:13:20.123456789+02:00", 1_700_000_000_123_456_789),
            ("2023-11-14T16:43:20-05:30", 1_700_000_000_000_000_000),
            ("2262-04-11T23:47:16.854775807Z", i64::MAX),
        ] {
            assert_eq!(unix_nanos(text), Some(nanos), "{text}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut expected = days(1_600, 1, 1);
        for year in 1_600..2_000 {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            for (month, length) in (1..).zip([31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
                for day in 1..=length {
                    assert_eq!(days(year, month, day), expected, "{year}-{month}-{day}");
                    expected += 1;
                }
            }
        }
        assert_eq!(days(1_970, 1, 1), 0);
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "",
            "0001-01-01T00:00:00Z",
            "2262-04-11T23:47:16.854775808Z",
            "2023-13-14T22:13:20Z",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13Z",
            "2023-11-14T22:13:20.1234567891Z",
            "2023-11-14 22:13:20Z",
            "-2023-11-14T22:13:20Z",
            "2023-11-14T22:13:20Zulu",
            "2023-11-14T22:13:20+0200",
        ] {
            assert_eq!(unix_nanos(text), None, "{text}");
        }
    }
}
