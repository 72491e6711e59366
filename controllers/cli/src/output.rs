//! The formats in which programs read answers.

use std::str::FromStr;

use anyhow::Context as _;
use serde_json::Value;

use crate::jsonpath::Path;

/// How an answer is printed when not as a table.
#[derive(Debug, Clone)]
pub enum Format {
    /// JSON with indentation.
    Json,
    /// YAML.
    Yaml,
    /// What is at a path.
    Path(Path),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            _ => match text.strip_prefix("jsonpath=") {
                Some(path) => Path::parse(path.trim_matches('\'')).map(Self::Path),
                None => Err("use json, yaml or jsonpath='{.path}'".into()),
            },
        }
    }
}

impl Format {
    /// Prints a value.
    pub fn print(&self, value: &Value) -> anyhow::Result<()> {
        match self {
            Self::Json => println!("{}", serde_json::to_string_pretty(value)?),
            Self::Yaml => print!("{}", serde_saphyr::to_string(value).context("write YAML")?),
            Self::Path(path) => println!("{}", path.show(value)),
        }
        Ok(())
    }
}

/// A value as people read it: text without quotes, nothing for null.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The items of a list; none for anything else.
pub fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
