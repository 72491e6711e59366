//! Keeps each string once: namespaces, nodes and accounts are few, endpoints are many.

use std::collections::HashSet;
use std::sync::Arc;

/// A shared string.
pub type Text = Arc<str>;

/// Below this many strings nothing is swept.
const SWEEP_FROM: usize = 1024;

#[derive(Debug, Clone, Default)]
pub(crate) struct Texts {
    known: HashSet<Text>,
    /// How many there were after the last sweep.
    swept: usize,
}

impl Texts {
    pub(crate) fn intern(&mut self, text: &str) -> Text {
        if let Some(known) = self.known.get(text) {
            return Text::clone(known);
        }
        if self.known.len() >= SWEEP_FROM.max(2 * self.swept) {
            self.known.retain(|text| Text::strong_count(text) > 1);
            self.swept = self.known.len();
        }
        let text = Text::from(text);
        self.known.insert(Text::clone(&text));
        text
    }

    pub(crate) fn intern_some(&mut self, text: Option<&str>) -> Option<Text> {
        text.filter(|text| !text.is_empty()).map(|text| self.intern(text))
    }
}
