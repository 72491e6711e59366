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

/// Whether something is on.
pub(super) fn flag(name: &str, value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("{name}: {value:?} is neither true nor false"))
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
    use super::{flag, numbers, words};

    #[test]
    fn lists_have_bounds() {
        assert_eq!(words("a,b,,c").as_deref(), Ok(&["a".to_owned(), "b".into(), "c".into()][..]));
        assert!(words(&"a,".repeat(65)).is_err() && words(&"a".repeat(513)).is_err());
        assert_eq!(numbers::<u16>("port", "80,443"), Ok(vec![80, 443]));
        assert!(numbers::<u16>("port", "70000").expect_err("no port").contains("70000"));
        assert!(flag("numeric", "yes").is_err());
    }
}
