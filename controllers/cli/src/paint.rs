//! Decides whether text is coloured: on a terminal, unless `NO_COLOR` says otherwise.

use std::io::IsTerminal as _;

/// Colours of words, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    /// For standard output as it is.
    pub(crate) fn of_output() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self(std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !dumb)
    }

    /// None.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self(false)
    }

    /// What is well.
    pub(crate) fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    /// What is wrong.
    pub(crate) fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    /// What should be looked at.
    pub(crate) fn odd(self, text: &str) -> String {
        self.with("33", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::Paint;

    #[test]
    fn only_terminals_see_colours() {
        assert_eq!(Paint::plain().bad("x"), "x");
        assert_eq!(Paint(true).good("x"), "\x1b[32mx\x1b[0m");
        assert!(!Paint::of_output().0 || std::io::IsTerminal::is_terminal(&std::io::stdout()));
    }
}
