//! JSON byte for byte as Go's encoder writes it: with what HTML would take for its own escaped.

use std::io::{Result, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// What Go escapes, and JSON need not.
const ESCAPED: [(char, &str); 5] = [
    ('<', "\\u003c"),
    ('>', "\\u003e"),
    ('&', "\\u0026"),
    ('\u{2028}', "\\u2028"),
    ('\u{2029}', "\\u2029"),
];

struct LikeGo;

impl Formatter for LikeGo {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> Result<()> {
        let mut rest = fragment;
        while let Some((at, escaped)) = rest.char_indices().find_map(|(at, letter)| {
            ESCAPED.iter().find(|(which, _)| *which == letter).map(|escaped| (at, escaped))
        }) {
            let (letter, escape) = escaped;
            writer.write_all(&rest.as_bytes()[..at])?;
            writer.write_all(escape.as_bytes())?;
            rest = &rest[at + letter.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// The value in one line.
pub(super) fn to_vec<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut written = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut written, LikeGo))?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::to_vec;

    #[test]
    fn strings_are_escaped_like_go_does() {
        for (text, want) in [
            ("a", r#""a""#),
            ("<a href=\"x\">b & c</a>", r#""\u003ca href=\"x\"\u003eb \u0026 c\u003c/a\u003e""#),
            ("é\u{2028}\u{2029}\u{7f}", "\"é\\u2028\\u2029\u{7f}\""),
            ("\u{8}\u{c}\n\r\t\u{1}\\", r#""\b\f\n\r\t\u0001\\""#),
        ] {
            let written = to_vec(&text).unwrap();
            assert_eq!(String::from_utf8(written.clone()).unwrap(), want);
            assert_eq!(serde_json::from_slice::<String>(&written).unwrap(), text);
        }
        // Keys of maps, too.
        let map = std::collections::BTreeMap::from([("a<b", 1)]);
        assert_eq!(to_vec(&map).unwrap(), br#"{"a\u003cb":1}"#);
    }
}
