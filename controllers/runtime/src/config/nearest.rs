//! Finds the known name that someone most likely meant.

/// The name with the smallest edit distance to `word`, unless even that is far off.
pub(super) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(2, 6);
    names
        .map(|name| (distance(word, name), name))
        .filter(|&(distance, _)| distance <= limit)
        .min()
        .map(|(_, name)| name)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_what_was_meant() {
        let names = ["enable-ipv4", "enable-ipv6", "cluster-name", "debug"];
        let cases = [
            ("enable-ipv5", Some("enable-ipv4")),
            ("enabel-ipv6", Some("enable-ipv6")),
            ("clustername", Some("cluster-name")),
            ("debgu", Some("debug")),
            ("completely-different", None),
        ];
        for (word, want) in cases {
            assert_eq!(nearest(word, names.into_iter()), want, "{word}");
        }
    }
}
