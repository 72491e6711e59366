//! Writes what was asked and answered to the log file that the configuration names.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::netconf::NetConf;

/// Adds a line; a log that cannot be written is no reason to fail a pod.
pub(crate) fn write(config: &NetConf, failed: bool, message: &str) {
    if config.log_file.is_empty() || (!failed && !config.debug) {
        return;
    }
    let level = if failed { "error" } else { "debug" };
    let line = line(level, message, config.log_json, SystemTime::now());
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(&config.log_file) {
        let _ = file.write_all(line.as_bytes());
    }
}

fn line(level: &str, message: &str, json: bool, now: SystemTime) -> String {
    let time = rfc3339(now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
    if json {
        format!(
            "{}\n",
            serde_json::json!({"time": time, "level": level, "msg": message, "subsys": "cilium-cni"})
        )
    } else {
        format!("time={time} level={level} msg={message:?} subsys=cilium-cni\n")
    }
}

/// Seconds since 1970 as a date; the calendar repeats every 400 years, counted from a March.
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86400 + 719_468, seconds % 86400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) =
        (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn dates_are_right() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ];
        for (seconds, want) in cases {
            assert_eq!(rfc3339(seconds), want);
        }
    }
}
