//! Decides what a file says of options that are not typed: `--config FILE`, or `~/.cilium.yaml` if it is there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

/// The file in a home that is read where none is named.
const FILE: &str = ".cilium.yaml";

/// Options by their long names.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) host: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) debug: Option<bool>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl Settings {
    /// Reads the file that is named; else the one in the home, if there is one.
    pub(crate) fn read(named: Option<&Path>) -> anyhow::Result<Self> {
        let own = || std::env::home_dir().map(|home| home.join(FILE));
        let Some(path) = named.map(Path::to_owned).or_else(own) else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&path) {
            // A home that may be somebody else's, after `su` or `sudo`.
            Err(error)
                if named.is_none()
                    && matches!(
                        error.kind(),
                        ErrorKind::NotFound
                            | ErrorKind::PermissionDenied
                            | ErrorKind::NotADirectory
                    ) =>
            {
                return Ok(Self::default());
            }
            read => read.with_context(|| format!("--config {}", path.display()))?,
        };
        let settings = Self::parse(&text).with_context(|| format!("read {}", path.display()))?;
        for name in settings.others.keys() {
            eprintln!("{}: {name} is no option of all commands: it is left out", path.display());
        }
        Ok(settings)
    }

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        Ok(serde_saphyr::from_str(text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn a_file_has_options_by_their_names() {
        let settings = Settings::parse("host: unix:///x\ndebug: true\nlog-driver: syslog\n");
        let settings = settings.expect("settings");
        assert_eq!((settings.host.as_deref(), settings.debug), (Some("unix:///x"), Some(true)));
        assert!(settings.others.contains_key("log-driver"));
        assert_eq!(Settings::parse(" \n").expect("an empty file"), Settings::default());
        for bad in ["host: [1]", "- host", "debug: perhaps"] {
            assert!(Settings::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_that_is_named_has_to_be_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cilium.yaml");
        assert!(Settings::read(Some(&path)).is_err());
        std::fs::write(&path, "node: n1\n").expect("a file");
        let settings = Settings::read(Some(&path)).expect("settings");
        assert_eq!(settings.node.as_deref(), Some("n1"));
    }
}
