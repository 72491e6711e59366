//! Decides whether, and over what length, one rule of the label filter matches a label.

use cilia_crds::LabelKey;
use regex::Regex;

use crate::Error;

/// One rule: labels of which source, matching what at the start of their key, are in or out.
#[derive(Debug, Clone)]
pub struct Rule {
    source: Option<String>,
    ignore: bool,
    pattern: Regex,
}

impl Rule {
    /// Reads an entry of `labels`: `[source:][!]regular-expression`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let fail = |cause: String| Error::Rule { rule: text.to_owned(), cause };
        // `!source:key` is what people write when they mean `source:!key`.
        let (early, rest) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
        let (source, rest) = match rest.split_once(':') {
            Some((source, rest)) => (Some(source.to_owned()), rest),
            None => (None, rest),
        };
        if source.as_deref() == Some("") {
            return Err(fail("the source before ':' is empty".to_owned()));
        }
        let (late, pattern) = rest.strip_prefix('!').map_or((false, rest), |rest| (true, rest));
        if pattern.is_empty() {
            return Err(fail("the regular expression is empty".to_owned()));
        }
        let pattern = anchored(pattern).map_err(|error| fail(error.to_string()))?;
        Ok(Self { source, ignore: early || late, pattern })
    }

    /// A rule for labels of `source` whose key starts with exactly `prefix`.
    pub fn prefix(source: &str, prefix: &str, ignore: bool) -> Result<Self, Error> {
        let pattern = anchored(&regex::escape(prefix))
            .map_err(|error| Error::Rule { rule: prefix.to_owned(), cause: error.to_string() })?;
        Ok(Self { source: Some(source.to_owned()), ignore, pattern })
    }

    /// Whether the rule leaves labels out.
    pub fn ignores(&self) -> bool {
        self.ignore
    }

    /// Over how many bytes at the start of the key the rule matches; 0 is no match.
    pub(crate) fn matched(&self, label: &LabelKey) -> usize {
        if self.source.as_ref().is_some_and(|source| *source != label.source) {
            return 0;
        }
        self.pattern.find(&label.key).map_or(0, |found| found.end())
    }
}

fn anchored(pattern: &str) -> Result<Regex, regex::Error> {
    // Compiled alone first: a stray parenthesis must not pair with those added around it.
    Regex::new(pattern)?;
    Regex::new(&format!("^(?:{pattern})"))
}
