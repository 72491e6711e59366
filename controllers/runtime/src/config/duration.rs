//! Reads and writes durations the way Go does: `1h2m3.5s`, `500ms`, `0`.

use std::fmt::Write as _;
use std::time::Duration;

const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// What `parse` accepts, for error messages.
pub const ALLOWED: &str = "a duration such as 500ms, 30s or 1h15m";

/// Parses a Go duration that is not negative; `None` if it is none.
pub fn parse(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|&n| n > 0)?;
        let (number, tail) = rest.split_at(number_len);
        let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        let &(_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        nanos = nanos.checked_add(scaled(number, scale)?)?;
        rest = tail;
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    let below = u32::try_from(nanos % 1_000_000_000).ok()?;
    Some(Duration::new(seconds, below))
}

/// `number` (digits with at most one point) times `scale`, cut to whole nanoseconds.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut sum = whole.checked_mul(scale)?;
    let mut place = scale;
    for digit in fraction.bytes() {
        place /= 10;
        sum = sum.checked_add(place * u128::from(digit - b'0'))?;
    }
    Some(sum)
}

/// Writes a duration as Go's `Duration.String` does.
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    for (unit, scale, limit) in
        [("ns", 1, 1_000), ("µs", 1_000, 1_000_000), ("ms", 1_000_000, 1_000_000_000)]
    {
        if nanos < limit {
            return format!("{}{unit}", decimal(nanos, scale));
        }
    }
    let minutes = nanos / 60_000_000_000;
    let mut text = String::new();
    if minutes >= 60 {
        let _ = write!(text, "{}h", minutes / 60);
    }
    if minutes > 0 {
        let _ = write!(text, "{}m", minutes % 60);
    }
    let _ = write!(text, "{}s", decimal(nanos % 60_000_000_000, 1_000_000_000));
    text
}

fn decimal(value: u128, scale: u128) -> String {
    let (whole, fraction) = (value / scale, value % scale);
    if fraction == 0 {
        return whole.to_string();
    }
    let width = scale.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::{format, parse};
    use std::time::Duration;

    #[test]
    fn reads_what_go_reads() {
        let cases = [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("500ms", Some(500_000_000)),
            ("1m0s", Some(60_000_000_000)),
            ("2h13m20s", Some(8_000_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("+3us", Some(3_000)),
            ("3µs", Some(3_000)),
            ("", None),
            ("30", None),
            ("-1s", None),
            ("1d", None),
            ("s", None),
            (".s", None),
            ("1..5s", None),
            ("1s ", None),
            ("99999999999999999999999h", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text), want.map(Duration::from_nanos), "{text:?}");
        }
    }

    #[test]
    fn writes_what_go_writes_and_reads_it_back() {
        let cases = [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (500_000_000, "500ms"),
            (1_000_000_000, "1s"),
            (61_000_000_000, "1m1s"),
            (90_500_000_000, "1m30.5s"),
            (3_600_000_000_000, "1h0m0s"),
        ];
        for (nanos, want) in cases {
            assert_eq!(format(Duration::from_nanos(nanos)), want);
            assert_eq!(parse(want), Some(Duration::from_nanos(nanos)), "{want}");
        }
    }
}
