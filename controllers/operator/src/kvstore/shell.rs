//! Shows keys of the kvstore in the operator's shell: `kvstore/list`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use cilia_kvstore::{Client, KeyValue};
use cilia_runtime::config::Config;
use futures::FutureExt;
use serde_json::Value;
use tokio::time::timeout;

use crate::shell::Command;

/// How long etcd may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The commands of the kvstore, if there is one.
pub(crate) fn commands(config: &Config) -> anyhow::Result<Vec<Command>> {
    if !super::is_on(config) {
        return Ok(Vec::new());
    }
    let client = Client::new(&super::settings(config)?, None)?;
    client.bootstrapped();
    let list = move |arguments: Vec<String>| {
        let client = client.clone();
        async move {
            let listing = Listing::parse(&arguments)?;
            let listed = timeout(PATIENCE, client.list(&listing.prefix)).await;
            let listed = listed.map_err(|_| format!("etcd gave no answer within {PATIENCE:?}"))?;
            let (keys, _) = listed.map_err(|error| error.to_string())?;
            Ok(listing.show(&keys))
        }
        .boxed()
    };
    Ok(vec![Command {
        name: "kvstore/list",
        arguments: "[prefix] [-o plain|json] [--keys-only|--values-only]",
        about: "show the keys that begin with the prefix, and their values",
        run: Arc::new(list),
    }])
}

/// What of the kvstore is to be shown, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Listing {
    prefix: String,
    json: bool,
    keys_only: bool,
    values_only: bool,
}

impl Listing {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut listing = Self::default();
        let mut prefix = None;
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let output = match word {
                "-o" | "--output" => Some(words.next().unwrap_or_default()),
                _ => word.strip_prefix("-o=").or_else(|| word.strip_prefix("--output=")),
            };
            match (output, word) {
                (Some("plain"), _) => listing.json = false,
                (Some("json"), _) => listing.json = true,
                (Some(other), _) => return Err(format!("-o: {other:?} is neither plain nor json")),
                (None, "--keys-only") => listing.keys_only = true,
                (None, "--values-only") => listing.values_only = true,
                (None, word) if word.starts_with('-') => {
                    return Err(format!("unknown option {word:?}: see help kvstore/list"));
                }
                (None, word) if prefix.is_none() => prefix = Some(word.to_owned()),
                (None, word) => return Err(format!("one prefix is enough, {word:?} is too much")),
            }
        }
        if listing.keys_only && listing.values_only {
            return Err("--keys-only and --values-only exclude each other".to_owned());
        }
        listing.prefix = prefix.unwrap_or_default();
        Ok(listing)
    }

    /// A line with `#` and the key, then its value. As JSON, a value that is JSON is laid out.
    fn show(&self, keys: &[KeyValue]) -> String {
        let mut shown = String::new();
        for one in keys {
            // Writing to a string cannot fail.
            if !self.values_only {
                let _ = writeln!(shown, "# {}", String::from_utf8_lossy(&one.key));
            }
            if !self.keys_only {
                let plain = || String::from_utf8_lossy(&one.value).into_owned();
                let laid_out =
                    serde_json::from_slice::<Value>(&one.value).ok().filter(|_| self.json);
                let value = laid_out.map_or_else(plain, |value| format!("{value:#}"));
                let _ = writeln!(shown, "{value}");
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use cilia_kvstore::KeyValue;

    use super::Listing;

    fn show(arguments: &[&str]) -> Result<String, String> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let key = |key: &str, value: &str| KeyValue {
            key: key.into(),
            value: value.into(),
            ..KeyValue::default()
        };
        Listing::parse(&arguments).map(|listing| {
            listing.show(&[key("cilium/.heartbeat", "now"), key("cilium/a", r#"{"b":1}"#)])
        })
    }

    #[test]
    fn keys_and_values_are_shown_as_asked() {
        let all = "# cilium/.heartbeat\nnow\n# cilium/a\n{\"b\":1}\n";
        assert_eq!(show(&["cilium/"]).unwrap(), all);
        assert_eq!(show(&["-o", "plain"]).unwrap(), all);
        let keys = "# cilium/.heartbeat\n# cilium/a\n";
        assert_eq!(show(&["--keys-only", "cilium/"]).unwrap(), keys);
        let json = "now\n{\n  \"b\": 1\n}\n";
        assert_eq!(show(&["-o=json", "--values-only"]).unwrap(), json);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (arguments, want) in [
            (&["-o", "yaml"][..], "-o: \"yaml\" is neither plain nor json"),
            (&["-o"], "-o: \"\" is neither plain nor json"),
            (&["--keys-only", "--values-only"], "--keys-only and --values-only exclude each other"),
            (&["--all"], "unknown option \"--all\": see help kvstore/list"),
            (&["a", "b"], "one prefix is enough, \"b\" is too much"),
        ] {
            assert_eq!(show(arguments), Err(want.to_owned()), "{arguments:?}");
        }
    }
}
