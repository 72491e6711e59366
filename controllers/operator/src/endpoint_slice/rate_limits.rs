//! Decides how many slices may be written per second, by the size of the cluster.

use serde_json::{Map, Value};

/// However large the configured limit.
pub(super) const MAX_LIMIT: f64 = 50.0;
const MAX_BURST: f64 = 100.0;

/// Why `ces-rate-limits` cannot be used; worded as what is allowed instead.
#[derive(Debug, thiserror::Error)]
#[error(
    r#"a JSON list such as [{{"nodes":0,"limit":10,"burst":20}}] with at least one entry: {cause}"#
)]
pub(super) struct RateLimitError {
    cause: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    nodes: i64,
    limit: f64,
    burst: f64,
}

/// The limits, by number of nodes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RateLimits {
    /// Sorted by nodes, never empty.
    entries: Vec<Entry>,
}

impl RateLimits {
    /// Reads the value of `ces-rate-limits`.
    pub(super) fn parse(text: &str) -> Result<Self, RateLimitError> {
        let fail = |cause: String| RateLimitError { cause };
        if text.trim().is_empty() {
            return Err(fail("it is empty".to_owned()));
        }
        let list: Vec<Map<String, Value>> =
            serde_json::from_str(text).map_err(|error| fail(error.to_string()))?;
        let entries: Result<Vec<Entry>, String> =
            list.iter().enumerate().map(|(index, entry)| read(index, entry)).collect();
        let mut entries = entries.map_err(fail)?;
        if entries.is_empty() {
            return Err(fail("the list is empty".to_owned()));
        }
        entries.sort_by_key(|entry| entry.nodes);
        Ok(Self { entries })
    }

    /// Writes per second and at once for this many nodes.
    pub(super) fn for_nodes(&self, nodes: usize) -> (f64, f64) {
        let nodes = i64::try_from(nodes).unwrap_or(i64::MAX);
        let fitting = self.entries.iter().rev().find(|entry| entry.nodes <= nodes);
        let entry = fitting.unwrap_or(&self.entries[0]);
        (entry.limit.min(MAX_LIMIT), entry.burst.min(MAX_BURST))
    }
}

fn read(index: usize, fields: &Map<String, Value>) -> Result<Entry, String> {
    let mut entry = Entry { nodes: 0, limit: 0.0, burst: 0.0 };
    for (key, value) in fields {
        let wrong = |what: &str| format!("entry {index}: {key} is {value}, but must be {what}");
        let integer = || value.as_i64().ok_or_else(|| wrong("an integer"));
        match key.to_ascii_lowercase().as_str() {
            "nodes" => entry.nodes = integer()?,
            "limit" => {
                let limit = value.as_f64().filter(|limit| *limit > 0.0);
                entry.limit = limit.ok_or_else(|| wrong("a number above 0"))?;
            }
            "burst" => {
                let burst = i32::try_from(integer()?).ok().filter(|burst| *burst > 0);
                entry.burst = burst.ok_or_else(|| wrong("an integer from 1"))?.into();
            }
            _ => return Err(format!("entry {index}: {key:?} is none of nodes, limit, burst")),
        }
    }
    for (name, value) in [("limit", entry.limit), ("burst", entry.burst)] {
        if value <= 0.0 {
            return Err(format!("entry {index}: {name} is missing"));
        }
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::RateLimits;

    #[test]
    fn chooses_by_nodes_whatever_the_order() {
        // CES-35, 38, 39, 41.
        let cases: &[(&str, usize, (f64, f64))] = &[
            (r#"[{"nodes":1,"limit":100,"burst":200}]"#, 1, (50.0, 100.0)),
            (r#"[{"nodes":5,"limit":15,"burst":30}]"#, 1000, (15.0, 30.0)),
            (r#"[{"nodes":5,"limit":15,"burst":30}]"#, 0, (15.0, 30.0)),
            (
                r#"[{"nodes":15,"limit":11,"burst":22},{"nodes":5,"limit":5,"burst":10},
                    {"NODES":25,"Limit":16,"burst":32}]"#,
                0,
                (5.0, 10.0),
            ),
            (
                r#"[{"nodes":15,"limit":11,"burst":22},{"nodes":5,"limit":0.5,"burst":10}]"#,
                15,
                (11.0, 22.0),
            ),
        ];
        for &(text, nodes, want) in cases {
            assert_eq!(RateLimits::parse(text).expect(text).for_nodes(nodes), want, "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let cases = [
            ("", "it is empty"),
            ("[]", "the list is empty"),
            ("[{", "EOF"),
            ("{}", "invalid type: map"),
            (r#"[{"nodes":1,"limit":10,"burst":20,"x":1}]"#, r#"entry 0: "x" is none of"#),
            (r#"[{"nodes":1.5,"limit":10,"burst":20}]"#, "nodes is 1.5, but must be an integer"),
            (r#"[{"nodes":1,"limit":"10","burst":20}]"#, r#"limit is "10", but must be a number"#),
            (r#"[{"nodes":1,"limit":10}]"#, "entry 0: burst is missing"),
            (r#"[{"nodes":1,"limit":0,"burst":20}]"#, "limit is 0"),
        ];
        for (text, want) in cases {
            let error = RateLimits::parse(text).expect_err(text).to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
