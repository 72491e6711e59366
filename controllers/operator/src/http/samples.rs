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

/// The samples of our own metrics; of histograms the sums and counts.
pub(super) fn of(text: &str, prefix: &str) -> Vec<Sample> {
    let ours = text.lines().filter(|line| line.starts_with(prefix));
    ours.filter_map(sample).filter(|sample| !sample.name.ends_with("_bucket")).collect()
}

fn sample(line: &str) -> Option<Sample> {
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
                    cilium_operator_h_bucket{le=\"1\"} 1\n\
                    cilium_operator_h_sum 0.5\n\
                    cilium_k8s_other 1\n";
        let labels = [("x".to_string(), "1,\"}".to_string()), ("y".into(), String::new())].into();
        let want = [
            Sample { name: "cilium_operator_a_total".into(), labels, value: 3.0 },
            Sample { name: "cilium_operator_h_sum".into(), labels: [].into(), value: 0.5 },
        ];
        assert_eq!(of(text, "cilium_operator"), want);
    }
}
