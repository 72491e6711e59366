//! Turns the text of a setting into a value of the flag's type, by the rules of Go's pflag.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::duration;

/// The type of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A signed integer.
    Int,
    /// An unsigned integer of at most this many bits.
    Uint(u32),
    /// A floating point number.
    Float,
    /// A Go duration.
    Duration,
    /// Text.
    String,
    /// A comma-separated list.
    Strings,
    /// `key=value` pairs separated by commas, or a JSON object of strings.
    Map,
}

impl Kind {
    /// The kind of this name in the flag tables.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "int" => Self::Int,
            "uint" => Self::Uint(64),
            "uint32" => Self::Uint(32),
            "uint16" => Self::Uint(16),
            "uint8" => Self::Uint(8),
            "float" | "float32" => Self::Float,
            "duration" => Self::Duration,
            "string" => Self::String,
            "strings" => Self::Strings,
            "map" | "stringToString" => Self::Map,
            _ => return None,
        })
    }

    /// What a value of this kind looks like, for error messages.
    pub fn allowed(self) -> String {
        match self {
            Self::Bool => "true or false".into(),
            Self::Int => "an integer".into(),
            Self::Uint(bits) => format!("an integer from 0 to {}", u64::MAX >> (64 - bits)),
            Self::Float => "a number".into(),
            Self::Duration => duration::ALLOWED.into(),
            Self::String => "text".into(),
            Self::Strings => "a comma-separated list".into(),
            Self::Map => "key=value pairs separated by commas, or a JSON object of strings".into(),
        }
    }

    /// The name pflag shows in `--help`.
    pub fn help_name(self) -> &'static str {
        match self {
            Self::Bool => "",
            Self::Int => "int",
            Self::Uint(_) => "uint",
            Self::Float => "float",
            Self::Duration => "duration",
            Self::String => "string",
            Self::Strings => "strings",
            Self::Map => "map",
        }
    }
}

/// The value of a flag.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of [`Kind::Bool`].
    Bool(bool),
    /// Of [`Kind::Int`].
    Int(i64),
    /// Of [`Kind::Uint`].
    Uint(u64),
    /// Of [`Kind::Float`].
    Float(f64),
    /// Of [`Kind::Duration`].
    Duration(Duration),
    /// Of [`Kind::String`].
    String(String),
    /// Of [`Kind::Strings`].
    Strings(Vec<String>),
    /// Of [`Kind::Map`].
    Map(BTreeMap<String, String>),
}

impl Value {
    /// Parses `text` as a value of `kind`; `None` if it is none.
    pub fn parse(kind: Kind, text: &str) -> Option<Self> {
        match kind {
            Kind::Bool => boolean(text).map(Self::Bool),
            Kind::Int => integer(text).and_then(|n| i64::try_from(n).ok()).map(Self::Int),
            Kind::Uint(bits) => integer(text)
                .and_then(|n| u64::try_from(n).ok())
                .filter(|&n| n <= u64::MAX >> (64 - bits))
                .map(Self::Uint),
            Kind::Float => text.parse().ok().filter(|n: &f64| n.is_finite()).map(Self::Float),
            Kind::Duration => duration::parse(text).map(Self::Duration),
            Kind::String => Some(Self::String(text.into())),
            Kind::Strings => list(text).map(Self::Strings),
            Kind::Map => map(text).map(Self::Map),
        }
    }

    /// Joins the value of a flag given once more: lists and maps grow, others are replaced.
    pub fn join(&mut self, next: Self) {
        match (self, next) {
            (Self::Strings(list), Self::Strings(more)) => list.extend(more),
            (Self::Map(map), Self::Map(more)) => map.extend(more),
            (old, next) => *old = next,
        }
    }

    /// Whether this is what the type is without a value: `false`, 0, empty.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Bool(value) => !value,
            Self::Int(value) => *value == 0,
            Self::Uint(value) => *value == 0,
            Self::Float(value) => *value == 0.0,
            Self::Duration(value) => value.is_zero(),
            Self::String(value) => value.is_empty(),
            Self::Strings(value) => value.is_empty(),
            Self::Map(value) => value.is_empty(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Uint(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Duration(value) => write!(f, "{}", duration::format(*value)),
            Self::String(value) => write!(f, "{value}"),
            Self::Strings(value) => write!(f, "{}", value.join(",")),
            Self::Map(value) => {
                for (at, (key, value)) in value.iter().enumerate() {
                    write!(f, "{}{key}={value}", if at > 0 { "," } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// An integer with Go's prefixes `0x`, `0o`, `0b`, a leading `0` for octal, and `_` between digits.
fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = [("0x", 16), ("0o", 8), ("0b", 2)]
        .iter()
        .find_map(|&(prefix, radix)| lower.strip_prefix(prefix).map(|rest| (radix, rest)))
        .or_else(|| lower.strip_prefix('0').filter(|rest| !rest.is_empty()).map(|rest| (8, rest)))
        .unwrap_or((10, &lower));
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(if negative { -number } else { number })
}

/// A line of comma-separated values, quoted where they hold commas; blanks separate when no comma does.
fn list(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    if !text.contains([',', '"']) {
        return Some(text.split_whitespace().map(Into::into).collect());
    }
    let mut items = Vec::new();
    let mut rest = text;
    loop {
        let (item, tail) = if let Some(quoted) = rest.strip_prefix('"') {
            unquote(quoted)?
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            (rest[..end].trim().to_string(), &rest[end..])
        };
        items.push(item);
        match tail.trim_start().strip_prefix(',') {
            Some(tail) => rest = tail.trim_start(),
            None if tail.trim().is_empty() => break,
            None => return None,
        }
    }
    items.retain(|item| !item.is_empty());
    Some(items)
}

/// What stands before the closing quote (doubled quotes are one), and what follows it.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut item = String::new();
    let mut rest = quoted;
    loop {
        let end = rest.find('"')?;
        item.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(tail) => {
                item.push('"');
                rest = tail;
            }
            None => return Some((item, rest)),
        }
    }
}

/// `k=v,k=v`, where a value may hold commas as long as what follows them holds no `=`; or JSON.
fn map(text: &str) -> Option<BTreeMap<String, String>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(BTreeMap::new());
    }
    if text.starts_with('{') {
        return serde_json::from_str(text).ok();
    }
    let mut pairs: Vec<(String, String)> = Vec::new();
    for piece in text.split(',') {
        match (piece.split_once('='), pairs.last_mut()) {
            (Some((key, value)), _) if !key.trim().is_empty() => {
                pairs.push((key.trim().into(), value.trim().into()));
            }
            (None, Some((_, value))) => {
                value.push(',');
                value.push_str(piece.trim_end());
            }
            _ => return None,
        }
    }
    Some(pairs.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::{Kind, Value};

    fn shown(kind: Kind, text: &str) -> Option<String> {
        Value::parse(kind, text).map(|value| value.to_string())
    }

    #[test]
    fn parses_like_pflag() {
        let cases: &[(Kind, &str, Option<&str>)] = &[
            (Kind::Bool, "T", Some("true")),
            (Kind::Bool, "yes", None),
            (Kind::Bool, "", None),
            (Kind::Int, "-12", Some("-12")),
            (Kind::Int, "0x10", Some("16")),
            (Kind::Int, "010", Some("8")),
            (Kind::Int, "0", Some("0")),
            (Kind::Int, "1_000", Some("1000")),
            (Kind::Int, "1.5", None),
            (Kind::Int, "--1", None),
            (Kind::Int, "", None),
            (Kind::Uint(8), "255", Some("255")),
            (Kind::Uint(8), "256", None),
            (Kind::Uint(64), "-1", None),
            (Kind::Float, "0.25", Some("0.25")),
            (Kind::Float, "NaN", None),
            (Kind::Duration, "90s", Some("1m30s")),
            (Kind::Duration, "90", None),
            (Kind::Strings, "", Some("")),
            (Kind::Strings, "a, b,,c", Some("a,b,c")),
            (Kind::Strings, "a b\tc", Some("a,b,c")),
            (Kind::Strings, r#""a,b",c"#, Some("a,b,c")),
            (Kind::Strings, r#""a"#, None),
            (Kind::Map, "", Some("")),
            (Kind::Map, "a=1,b=2", Some("a=1,b=2")),
            (
                Kind::Map,
                "pool=ipv4-cidrs:10.0.0.0/8,11.0.0.0/8;x:1,other=y",
                Some("other=y,pool=ipv4-cidrs:10.0.0.0/8,11.0.0.0/8;x:1"),
            ),
            (Kind::Map, r#"{"a": "1,2"}"#, Some("a=1,2")),
            (Kind::Map, r#"{"a": 1}"#, None),
            (Kind::Map, "a", None),
            (Kind::Map, "=a", None),
        ];
        for &(kind, text, want) in cases {
            assert_eq!(shown(kind, text).as_deref(), want, "{kind:?} {text:?}");
        }
    }

    #[test]
    fn quotes_keep_commas() {
        let want = Value::Strings(vec!["a,b".into(), "say \"c\"".into()]);
        assert_eq!(Value::parse(Kind::Strings, r#""a,b","say ""c""""#), Some(want));
    }
}
