//! Reads a `label-prefix-file`: the rules that take the place of the filter's defaults.

use serde::Deserialize;

use crate::{Error, Rule};

/// The prefix by which a file says that every reserved label counts.
const ANYTHING: &str = ".*";
const RESERVED: &str = "reserved";

#[derive(Debug, Deserialize)]
pub(crate) struct PrefixFile {
    #[serde(default)]
    version: i64,
    #[serde(default, rename = "valid-prefixes")]
    valid_prefixes: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(default)]
    invert: bool,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    source: String,
}

impl PrefixFile {
    pub(crate) fn parse(content: &str) -> Result<Self, Error> {
        let fail = |cause: String| Error::PrefixFile { cause };
        let file: Self = serde_json::from_str(content).map_err(|error| fail(error.to_string()))?;
        if file.version != 1 {
            return Err(fail(format!("version {} is not supported", file.version)));
        }
        for (index, entry) in file.valid_prefixes.iter().enumerate() {
            for (name, value) in [("prefix", &entry.prefix), ("source", &entry.source)] {
                if value.is_empty() {
                    return Err(fail(format!("valid-prefixes[{index}].{name} is empty")));
                }
            }
        }
        Ok(file)
    }

    /// Whether reserved labels pass.
    pub(crate) fn keeps_reserved(&self) -> bool {
        self.valid_prefixes.iter().any(Entry::keeps_reserved)
    }

    pub(crate) fn rules(&self) -> Result<Vec<Rule>, Error> {
        self.valid_prefixes
            .iter()
            .map(|entry| {
                // The one pattern that files are told to hold; everything else is a plain prefix.
                if entry.keeps_reserved() {
                    return Rule::parse(&format!("{RESERVED}:{ANYTHING}"));
                }
                Rule::prefix(&entry.source, &entry.prefix, entry.invert)
            })
            .collect()
    }
}

impl Entry {
    fn keeps_reserved(&self) -> bool {
        !self.invert && self.source == RESERVED && self.prefix == ANYTHING
    }
}
