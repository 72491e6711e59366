//! Decides which versions of the CNI specification are spoken, and what each can say.

use crate::error::Error;

/// The newest version spoken; also that of answers to requests whose own version is unknown.
pub(crate) const CURRENT: &str = "1.1.0";

/// Every version spoken, oldest first.
pub(crate) const SUPPORTED: &[&str] =
    &["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", CURRENT];

/// A version of the specification, as its place in [`SUPPORTED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(usize);

impl Version {
    /// Reads `cniVersion`; a configuration without one is of the first version.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let text = if text.is_empty() { SUPPORTED[0] } else { text };
        match SUPPORTED.iter().position(|version| *version == text) {
            Some(place) => Ok(Self(place)),
            None => Err(Error::Version { got: text.to_owned() }),
        }
    }

    /// The version as it is written.
    pub(crate) fn text(self) -> &'static str {
        SUPPORTED[self.0]
    }

    /// Results name a list of addresses and interfaces, not `ip4` and `ip6`.
    pub(crate) fn has_lists(self) -> bool {
        self.text() >= "0.3.0"
    }

    /// Each address of a result says its own IP version.
    pub(crate) fn has_address_version(self) -> bool {
        self.has_lists() && self.text() < "1.0.0"
    }

    /// CHECK exists.
    pub(crate) fn has_check(self) -> bool {
        self.text() >= "0.4.0"
    }

    /// GC and STATUS exist, and results carry MTUs.
    pub(crate) fn has_status(self) -> bool {
        self.text() >= "1.1.0"
    }
}

#[cfg(test)]
mod tests {
    use super::{SUPPORTED, Version};

    #[test]
    fn abilities_follow_the_version() {
        let cases = [
            ("", false, false, false, false),
            ("0.2.0", false, false, false, false),
            ("0.3.0", true, true, false, false),
            ("0.3.1", true, true, false, false),
            ("0.4.0", true, true, true, false),
            ("1.0.0", true, false, true, false),
            ("1.1.0", true, false, true, true),
        ];
        for (text, lists, address_version, check, status) in cases {
            let version = Version::parse(text).unwrap();
            let got = (
                version.has_lists(),
                version.has_address_version(),
                version.has_check(),
                version.has_status(),
            );
            assert_eq!(got, (lists, address_version, check, status), "{text}");
        }
    }

    #[test]
    fn unknown_versions_are_refused() {
        for text in ["9.0.0", "1", "latest", "0.3"] {
            let error = Version::parse(text).unwrap_err();
            assert!(
                error.to_string().contains(text) && error.to_string().contains(SUPPORTED[0]),
                "{error}"
            );
        }
    }
}
