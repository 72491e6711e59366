//! Turns the text of a scrape into the JSON of `/v1/metrics/`: name, labels and value.

use std::collections::BTreeMap;

use serde::Serialize;

/// One sample.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// All samples; a histogram is the sum of what it observed.
pub(super) fn of(text: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    // The histogram whose samples follow; nothing while it is another kind of metric.
    let mut histogram = None;
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            histogram = declared.strip_suffix(" histogram");
        } else if let Some(mut sample) = sample(line) {
            match histogram.and_then(|name| sample.name.strip_prefix(name)) {
                Some("_sum") => sample.name.truncate(sample.name.len() - "_sum".len()),
                Some(_) => continue,
                None => {}
            }
            samples.push(sample);
        }
    }
    samples
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let mut pairs = BTreeMap::new();
    let mut rest = labels.trim_end_matches('}');
    while let Some((label, quoted)) = rest.split_once("=\"") {
        let (value, tail) = unquote(quoted)?;
        pairs.insert(label.into(), value);
        rest = tail.trim_start_matches(',');
    }
    Some(Sample { name: name.into(), labels: pairs, value: value.parse().ok()? })
}

/// The text before the closing quote without its escapes, and what follows.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c => c,
            }),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Sample, of};

    #[test]
    fn reads_its_own_scrape() {
        let text = "# HELP cilium_operator_a_total A\n\
                    cilium_operator_a_total{x=\"1,\\\"}\",y=\"\"} 3\n\
                    # TYPE cilium_operator_h histogram\n\
                    cilium_operator_h_bucket{le=\"1\"} 1\n\
                    cilium_operator_h_count 1\n\
                    cilium_operator_h_sum 0.5\n\
                    # TYPE cilium_k8s_event_count counter\n\
                    cilium_k8s_event_count 1\n";
        let labels = [("x".to_string(), "1,\"}".to_string()), ("y".into(), String::new())].into();
        let want = [
            Sample { name: "cilium_operator_a_total".into(), labels, value: 3.0 },
            Sample { name: "cilium_operator_h".into(), labels: [].into(), value: 0.5 },
            Sample { name: "cilium_k8s_event_count".into(), labels: [].into(), value: 1.0 },
        ];
        assert_eq!(of(text), want);
    }
}
