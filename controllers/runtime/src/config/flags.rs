//! Knows every flag: its name, short form, type and default, from the tables in `data/`.

use std::collections::BTreeMap;

use super::nearest::nearest;
use super::value::{Kind, Value};

const OPERATOR: &str = include_str!("../../data/operator-flags.tsv");
const OPERATOR_KEYS: &str = include_str!("../../data/operator-keys.tsv");
const AGENT: &str = include_str!("../../data/agent-flags.tsv");
const AGENT_KEYS: &str = include_str!("../../data/agent-keys.tsv");
const CHART_KEYS: &str = include_str!("../../data/chart-keys.txt");
const IGNORED_KEYS: &str = include_str!("../../data/ignored-keys.txt");

/// One flag, which is also an environment variable and a `ConfigMap` key.
#[derive(Debug, Clone, PartialEq)]
pub struct Flag {
    /// As on the command line, without dashes.
    pub name: String,
    /// The one-letter form.
    pub short: Option<char>,
    /// Its type.
    pub kind: Kind,
    /// Its value when nobody sets it.
    pub default: Value,
    /// Known, but not shown by `--help`.
    pub hidden: bool,
}

impl Flag {
    /// The environment variable of the flag: `CILIUM_` and the name in upper case.
    pub fn variable(&self) -> String {
        format!("CILIUM_{}", self.name.to_uppercase().replace(['-', '.'], "_"))
    }
}

/// What is known about a `ConfigMap` key that is no flag of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// Another component of the chart reads it.
    Elsewhere,
    /// Part of an earlier or later release.
    OtherRelease,
    /// Nobody's.
    Unknown,
}

/// The flags of one program.
#[derive(Debug, Clone)]
pub struct Flags {
    by_name: BTreeMap<String, Flag>,
}

impl Flags {
    /// The flags of the operator.
    pub fn operator() -> Self {
        Self::of(OPERATOR, OPERATOR_KEYS)
    }

    /// The flags of the agent.
    pub fn agent() -> Self {
        Self::of(AGENT, AGENT_KEYS)
    }

    /// The flags of a table, and hidden ones for the keys that only a `ConfigMap` holds.
    fn of(shown: &str, keys: &str) -> Self {
        let mut flags = Self { by_name: rows(shown, false) };
        for (name, flag) in rows(keys, true) {
            flags.by_name.entry(name).or_insert(flag);
        }
        flags
    }

    /// Adds a flag of our own that Cilium does not have.
    ///
    /// # Panics
    /// If `kind` or `default` is not what the flag tables would hold: a mistake in the program.
    #[must_use]
    pub fn with(mut self, name: &str, kind: &str, default: &str) -> Self {
        let line = format!("{name}\t\t{kind}\t{default}");
        let flag = row(&line, false)
            .unwrap_or_else(|| panic!("flag {name}: bad {kind} default {default}"));
        self.by_name.insert(name.into(), flag);
        self
    }

    /// The flag of this name.
    pub fn get(&self, name: &str) -> Option<&Flag> {
        self.by_name.get(name)
    }

    /// The flag with this one-letter form.
    pub fn short(&self, letter: char) -> Option<&Flag> {
        self.iter().find(|flag| flag.short == Some(letter))
    }

    /// All flags in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Flag> {
        self.by_name.values()
    }

    /// The flag that someone most likely meant by `name`.
    pub fn nearest(&self, name: &str) -> Option<&str> {
        nearest(name, self.iter().filter(|flag| !flag.hidden).map(|flag| flag.name.as_str()))
    }

    /// Why a `ConfigMap` may hold a key that is not among these flags.
    pub fn foreign(key: &str) -> Foreign {
        let elsewhere = [OPERATOR, OPERATOR_KEYS, AGENT, AGENT_KEYS, CHART_KEYS]
            .iter()
            .any(|table| table.lines().any(|line| line.split('\t').next() == Some(key)));
        if elsewhere || OWN_KEYS.contains(&key) {
            Foreign::Elsewhere
        } else if IGNORED_KEYS.lines().any(|pattern| matches(pattern, key)) {
            Foreign::OtherRelease
        } else {
            Foreign::Unknown
        }
    }
}

/// Keys of programs of ours that Cilium has no flags for, and what `cilia build-config` notes beside settings.
const OWN_KEYS: &[&str] = &["ces-adaptive-rate", "config-sources", "config-sources-overrides"];

fn matches(pattern: &str, key: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == key, |prefix| key.starts_with(prefix))
}

/// The rows of a table; of the rows with one name, the first, which is that of the generic operator.
fn rows(table: &str, hidden: bool) -> BTreeMap<String, Flag> {
    let mut flags = BTreeMap::new();
    for line in table.lines().skip(1).filter(|line| !line.is_empty()) {
        let flag =
            row(line, hidden).unwrap_or_else(|| panic!("bad line in a flag table: {line:?}"));
        flags.entry(flag.name.clone()).or_insert(flag);
    }
    flags
}

fn row(line: &str, hidden: bool) -> Option<Flag> {
    let mut cells = line.split('\t');
    let name = cells.next()?.to_string();
    let short = cells.next()?.chars().next();
    let kind = Kind::from_name(cells.next()?)?;
    let text = cells.next()?;
    let default = match kind {
        Kind::String => Value::String(serde_json::from_str(text).ok()?),
        Kind::Strings => Value::parse(kind, text.strip_prefix('[')?.strip_suffix(']')?)?,
        Kind::Map if text == "[]" => Value::Map(BTreeMap::new()),
        _ => Value::parse(kind, text)?,
    };
    Some(Flag { name, short, kind, default, hidden })
}

#[cfg(test)]
mod tests {
    use super::{Flags, Foreign};
    use crate::config::value::Value;

    #[test]
    fn every_row_of_the_tables_is_a_flag() {
        let (operator, agent) = (Flags::operator(), Flags::agent());
        assert!(operator.iter().count() > 150, "{}", operator.iter().count());
        assert!(agent.iter().count() >= 407, "{}", agent.iter().count());
        assert_eq!(operator.get("ipam").unwrap().default, Value::String("cluster-pool".into()));
        assert_eq!(operator.short('D').unwrap().name, "debug");
        assert_eq!(
            operator.get("kube-proxy-replacement").unwrap().variable(),
            "CILIUM_KUBE_PROXY_REPLACEMENT"
        );
    }

    #[test]
    fn tells_foreign_keys_apart() {
        let cases = [
            ("bpf-lb-map-max", Foreign::Elsewhere),
            ("enable-source-ip-verification", Foreign::Elsewhere),
            ("ces-write-qps-limit", Foreign::OtherRelease),
            ("ces-dynamic-rate-limit-nodes", Foreign::OtherRelease),
            ("ces-adaptive-rate", Foreign::Elsewhere),
            ("no-such-key", Foreign::Unknown),
        ];
        for (key, want) in cases {
            assert_eq!(Flags::foreign(key), want, "{key}");
        }
    }
}
