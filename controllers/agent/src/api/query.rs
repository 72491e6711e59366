//! Decides what a query may say: known names, and lists that are not too long.

use std::fmt::Write as _;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};

/// The longest list that a query may have.
const LONGEST: usize = 64;
/// The longest name of anything.
pub(super) const LONGEST_NAME: usize = 512;

/// The pairs of a query, decoded.
pub(super) type Pairs = Vec<(String, String)>;

/// The words of a list, its commas taken away.
pub(super) fn words(value: &str) -> Result<Vec<String>, String> {
    let words: Vec<String> =
        value.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    if words.len() > LONGEST || words.iter().any(|word| word.len() > LONGEST_NAME) {
        return Err(format!("a list may have {LONGEST} words of {LONGEST_NAME} bytes"));
    }
    Ok(words)
}

/// A label with its source; one without is Kubernetes'.
pub(super) fn with_source(label: String) -> String {
    if label.contains(':') { label } else { format!("k8s:{label}") }
}

/// The numbers of a list.
pub(super) fn numbers<N: std::str::FromStr>(name: &str, value: &str) -> Result<Vec<N>, String> {
    let number = |word: &String| word.parse().map_err(|_| format!("{name}: {word:?} is no number"));
    words(value)?.iter().map(number).collect()
}

/// A number as Go's `strconv` reads it, for a function of that; an error is worded as there.
pub(super) fn number(text: &str, function: &str) -> Result<u64, String> {
    let said = |why| format!("strconv.{function}: parsing {text:?}: {why}");
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let bases = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2), ("0", 8)];
    let mut known =
        bases.iter().filter_map(|(prefix, base)| Some((unsigned.strip_prefix(prefix)?, *base)));
    let (digits, base) = known.next().filter(|_| unsigned != "0").unwrap_or((unsigned, 10));
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return Err(said("invalid syntax"));
    }
    let number = u64::from_str_radix(digits, base).ok();
    number.filter(|number| i64::try_from(*number).is_ok()).ok_or_else(|| said("value out of range"))
}

/// Whether something is on.
pub(super) fn flag(name: &str, value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("{name}: {value:?} is neither true nor false"))
}

/// A value without members that are nothing: Cilium's answers have none.
pub(super) fn without_nulls(mut value: serde_json::Value) -> serde_json::Value {
    match &mut value {
        serde_json::Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            for member in members.values_mut() {
                *member = without_nulls(member.take());
            }
        }
        serde_json::Value::Array(items) => {
            for item in items {
                *item = without_nulls(item.take());
            }
        }
        _ => {}
    }
    value
}

/// Bytes as digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a text can't fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// An answer that a request is wrong.
pub(super) fn bad_request(text: impl Into<String>) -> Response {
    (StatusCode::BAD_REQUEST, text.into()).into_response()
}

#[cfg(test)]
mod tests {
    use super::{flag, number, numbers, words};

    #[test]
    fn numbers_are_go_s() {
        for (text, want) in [("0", 0), ("7", 7), ("0x10", 16), ("010", 8), ("0b11", 3), ("+5", 5)] {
            assert_eq!(number(text, "ParseInt"), Ok(want), "{text}");
        }
        for text in ["", "x", "0x", "08", "1 ", "-1", "+"] {
            let why = number(text, "ParseInt").expect_err(text);
            assert_eq!(why, format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
        }
        assert!(number("9223372036854775808", "ParseInt").expect_err("large").contains("range"));
    }

    #[test]
    fn lists_have_bounds() {
        assert_eq!(words("a,b,,c").as_deref(), Ok(&["a".to_owned(), "b".into(), "c".into()][..]));
        assert!(words(&"a,".repeat(65)).is_err() && words(&"a".repeat(513)).is_err());
        assert_eq!(numbers::<u16>("port", "80,443"), Ok(vec![80, 443]));
        assert!(numbers::<u16>("port", "70000").expect_err("no port").contains("70000"));
        assert!(flag("numeric", "yes").is_err());
    }
}
