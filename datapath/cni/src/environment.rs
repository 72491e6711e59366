//! Decides whether the environment variables of a request say enough for its verb.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::error::Error;

/// Where the agent listens, unless `CILIUM_SOCK` says otherwise.
const SOCKET: &str = "/var/run/cilium/cilium.sock";
/// Interface names of Linux end at 15 characters.
const MAX_IFNAME: usize = 15;

/// The `CNI_*` variables, as given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    variables: BTreeMap<&'static str, String>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

/// Which attachment a request is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub(crate) container_id: String,
    pub(crate) netns: String,
    pub(crate) ifname: String,
    pub(crate) args: BTreeMap<String, String>,
}

const VARIABLES: &[&str] =
    &["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CILIUM_SOCK"];

impl Environment {
    /// What the process was started with.
    pub(crate) fn of_process() -> Self {
        let given = |name: &&'static str| {
            Some((*name, std::env::var_os(*name)?.to_string_lossy().into_owned()))
        };
        Self { variables: VARIABLES.iter().filter_map(given).collect() }
    }

    #[cfg(test)]
    pub(crate) fn of(variables: &[(&'static str, &str)]) -> Self {
        Self {
            variables: variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        }
    }

    fn get(&self, name: &'static str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    /// The agent's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        match self.get("CILIUM_SOCK") {
            "" => SOCKET.into(),
            path => path.trim_start_matches("unix://").into(),
        }
    }

    /// What is asked for.
    pub(crate) fn verb(&self) -> Result<Verb, Error> {
        match self.get("CNI_COMMAND") {
            "ADD" => Ok(Verb::Add),
            "DEL" => Ok(Verb::Del),
            "CHECK" => Ok(Verb::Check),
            "GC" => Ok(Verb::Gc),
            "STATUS" => Ok(Verb::Status),
            "VERSION" => Ok(Verb::Version),
            other => {
                let reason =
                    format!("must be ADD, DEL, CHECK, GC, STATUS or VERSION, is {other:?}");
                Err(Error::Environment { variable: "CNI_COMMAND", reason })
            }
        }
    }

    /// The attachment that `verb` is about, if all that the verb needs is there and well-formed.
    pub(crate) fn attachment(&self, verb: Verb) -> Result<Attachment, Error> {
        let needs_netns = matches!(verb, Verb::Add | Verb::Check);
        Ok(Attachment {
            container_id: self.checked("CNI_CONTAINERID", true, container_id_fault)?,
            netns: self.checked("CNI_NETNS", needs_netns, |_| None)?,
            ifname: self.checked("CNI_IFNAME", true, ifname_fault)?,
            args: parse_args(self.get("CNI_ARGS"))?,
        })
    }

    fn checked(
        &self,
        name: &'static str,
        required: bool,
        fault: fn(&str) -> Option<&str>,
    ) -> Result<String, Error> {
        let value = self.get(name);
        let reason = match (value, required) {
            ("", true) => Some("is missing".to_owned()),
            ("", false) => None,
            (value, _) => fault(value).map(|fault| format!("{fault}, is {value:?}")),
        };
        match reason {
            Some(reason) => Err(Error::Environment { variable: name, reason }),
            None => Ok(value.to_owned()),
        }
    }
}

/// Why `id` names no container (or network), if so.
pub(crate) fn container_id_fault(id: &str) -> Option<&str> {
    let well_formed = id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    (!well_formed)
        .then_some("must be letters, digits, '_', '.', '-' and start with a letter or digit")
}

/// Why `name` names no interface, if so.
pub(crate) fn ifname_fault(name: &str) -> Option<&str> {
    if name.len() > MAX_IFNAME {
        Some("must have at most 15 characters")
    } else if name == "."
        || name == ".."
        || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
    {
        Some("must be an interface name, without '/', ':' and space")
    } else {
        None
    }
}

/// Reads `K=V;K=V`.
fn parse_args(text: &str) -> Result<BTreeMap<String, String>, Error> {
    text.split(';')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => {
                let reason = format!("must be KEY=VALUE pairs separated by ';', has {pair:?}");
                Err(Error::Environment { variable: "CNI_ARGS", reason })
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Environment, Verb};

    #[test]
    fn says_which_variable_is_wrong() {
        let good = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "abc-1"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "K8S_POD_NAME=a;K8S_POD_NAMESPACE=b"),
        ];
        let cases = [
            ("CNI_CONTAINERID", "", true, true),
            ("CNI_CONTAINERID", "-x", true, true),
            ("CNI_CONTAINERID", "a/b", true, true),
            ("CNI_NETNS", "", true, false),
            ("CNI_IFNAME", "", true, true),
            ("CNI_IFNAME", "sixteen-letters-", true, true),
            ("CNI_IFNAME", "a b", true, true),
            ("CNI_IFNAME", "..", true, true),
            ("CNI_ARGS", "novalue", true, true),
            ("CNI_ARGS", "=x", true, true),
            ("CNI_ARGS", ";;", false, false),
        ];
        for (variable, value, add_fails, del_fails) in cases {
            let mut variables = good;
            variables
                .iter_mut()
                .filter(|(name, _)| *name == variable)
                .for_each(|entry| entry.1 = value);
            let environment = Environment::of(&variables);
            for (verb, fails) in [(Verb::Add, add_fails), (Verb::Del, del_fails)] {
                match environment.attachment(verb) {
                    Ok(_) => assert!(!fails, "{variable}={value} {verb:?}"),
                    Err(error) => {
                        assert!(fails, "{variable}={value} {verb:?}: {error}");
                        assert!(error.to_string().contains(variable), "{error}");
                        assert_eq!(error.code(), 4);
                    }
                }
            }
        }
    }

    #[test]
    fn unknown_verbs_are_refused() {
        for verb in ["", "add", "UPDATE"] {
            assert_eq!(Environment::of(&[("CNI_COMMAND", verb)]).verb().unwrap_err().code(), 4);
        }
    }
}
