//! The agent's metrics as a list.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::Parts;

pub(super) async fn get(State(parts): State<Arc<Parts>>) -> Json<Vec<Value>> {
    Json(parts.metrics.render().lines().filter_map(sample).collect())
}

/// A line of Prometheus' text format; nothing for a comment.
fn sample(line: &str) -> Option<Value> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    Some(json!({"name": name, "labels": pairs(labels), "value": value.parse::<f64>().ok()?}))
}

/// `key="value",...`; values may have escaped quotes, and commas.
fn pairs(mut text: &str) -> Map<String, Value> {
    let mut found = Map::new();
    while let Some((key, rest)) = text.split_once("=\"") {
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let mut end = rest.len();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, other)) => value.push(other),
                    None => {}
                },
                '"' => {
                    end = at + 1;
                    break;
                }
                other => value.push(other),
            }
        }
        found.insert(key.to_owned(), value.into());
        text = rest.get(end..).unwrap_or_default().trim_start_matches(',');
    }
    found
}

#[cfg(test)]
mod tests {
    use super::sample;
    use serde_json::json;

    #[test]
    fn reads_the_text_format() {
        assert_eq!(sample("# TYPE x counter"), None);
        assert_eq!(sample("x 3"), Some(json!({"name": "x", "labels": {}, "value": 3.0})));
        let line = r#"x_total{reason="a \"b\", c",direction="EGRESS"} 1.5"#;
        let want = json!({"name": "x_total", "labels": {"reason": "a \"b\", c", "direction": "EGRESS"}, "value": 1.5});
        assert_eq!(sample(line), Some(want));
    }
}
