//! Decides the value of every setting: flag, else environment, else config file, else config folder, else default.
//!
//! ```
//! use cilia_runtime::config::{Config, Flags};
//! let config = Config::load(Flags::operator(), ["--cluster-name=east".to_string()], []).unwrap();
//! assert_eq!(config.string("cluster-name"), "east");
//! assert!(config.bool("enable-ipv4"));
//! ```

mod args;
pub mod duration;
mod error;
mod files;
mod flags;
mod nearest;
mod program;
mod value;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::{Error, Origin};
pub use flags::{Flag, Flags, Foreign};
pub use program::{Program, Start};
pub use value::{Kind, Value};

/// The settings of a process.
///
/// The typed getters panic on a name that the program's flags do not have, or have with another
/// type: both are mistakes of the program, not of its user.
#[derive(Debug, Clone)]
pub struct Config {
    flags: Flags,
    values: BTreeMap<String, (Value, Origin)>,
    warnings: Vec<String>,
}

impl Config {
    /// Reads the settings from `args` (without the program's name), `env` and the files they name.
    pub fn load(
        flags: Flags,
        args: impl IntoIterator<Item = String>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let env: HashMap<String, String> = env.into_iter().collect();
        let mut given: BTreeMap<String, (Value, Origin)> = BTreeMap::new();
        for (flag, value) in args::parse(&flags, args)? {
            given
                .entry(flag.name.clone())
                .and_modify(|(old, _)| old.join(value.clone()))
                .or_insert((value, Origin::Flag));
        }
        let mut config = Self { values: given, warnings: Vec::new(), flags };
        config.take_environment(&env)?;
        let home = env.get("HOME").map_or("", String::as_str);
        if let Some(path) = config.config_file(home) {
            config.take(files::file(&path)?, Origin::ConfigFile)?;
        }
        if let Some(folder) = config.path("config-dir") {
            config.take(files::folder(&folder)?, Origin::ConfigDir)?;
        }
        Ok(config)
    }

    fn take_environment(&mut self, env: &HashMap<String, String>) -> Result<(), Error> {
        for flag in self.flags.iter() {
            let variable = flag.variable();
            if self.values.contains_key(&flag.name) {
                continue;
            }
            // As with Cilium, an empty variable is one that is not set.
            let Some(text) = env.get(&variable).filter(|text| !text.is_empty()) else { continue };
            let origin = Origin::Environment(variable);
            let value = parse(flag, text, &origin)?;
            self.values.insert(flag.name.clone(), (value, origin));
        }
        Ok(())
    }

    fn take(
        &mut self,
        entries: files::Entries,
        origin: fn(PathBuf) -> Origin,
    ) -> Result<(), Error> {
        for (key, (path, text)) in entries {
            let origin = origin(path);
            let Some(flag) = self.flags.get(&key) else {
                match Flags::foreign(&key) {
                    Foreign::Elsewhere => {}
                    Foreign::OtherRelease => {
                        self.warnings.push(format!(
                            "{key}, set by {origin}, is not part of this release: ignored"
                        ));
                    }
                    Foreign::Unknown => {
                        self.warnings.push(format!("{key}, set by {origin}, is unknown: ignored"));
                    }
                }
                continue;
            };
            if let Entry::Vacant(place) = self.values.entry(key) {
                let value = parse(flag, &text, &origin)?;
                place.insert((value, origin));
            }
        }
        Ok(())
    }

    /// The config file to read: the one asked for, or the default one if it exists.
    fn config_file(&self, home: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.string("config").replace("$HOME", home));
        let asked = self.is_set("config");
        (!path.as_os_str().is_empty() && (asked || path.is_file())).then_some(path)
    }

    fn warn_of_unbuilt(&mut self, built: &[&str]) {
        for (name, (value, origin)) in &self.values {
            let differs = self.flags.get(name).is_some_and(|flag| flag.default != *value);
            if differs && !built.contains(&name.as_str()) {
                self.warnings.push(format!(
                    "{name}: {value}, set by {origin}, has no effect: not built yet"
                ));
            }
        }
    }

    /// What the user should know about the settings; to be logged once logging is up.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the program has this flag.
    pub fn has(&self, name: &str) -> bool {
        self.flags.get(name).is_some()
    }

    /// Whether anyone set this flag.
    pub fn is_set(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Who set this flag.
    pub fn origin(&self, name: &str) -> Origin {
        self.values.get(name).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// Every flag with its value, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.flags.iter().map(|flag| (flag.name.as_str(), self.value(&flag.name)))
    }

    /// The value of a flag of any type.
    ///
    /// # Panics
    /// If the program does not have this flag.
    pub fn value(&self, name: &str) -> &Value {
        match (self.values.get(name), self.flags.get(name)) {
            (Some((value, _)), _) => value,
            (None, Some(flag)) => &flag.default,
            (None, None) => panic!("the program asks for flag {name}, which it does not have"),
        }
    }

    /// The value of a bool.
    pub fn bool(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Bool(value) => *value,
            other => wrong_type(name, other, "bool"),
        }
    }

    /// The value of an int.
    pub fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Int(value) => *value,
            other => wrong_type(name, other, "int"),
        }
    }

    /// The value of an unsigned integer of any size.
    pub fn uint(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Uint(value) => *value,
            other => wrong_type(name, other, "uint"),
        }
    }

    /// The value of a float.
    pub fn float(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Float(value) => *value,
            other => wrong_type(name, other, "float"),
        }
    }

    /// The value of a duration.
    pub fn duration(&self, name: &str) -> Duration {
        match self.value(name) {
            Value::Duration(value) => *value,
            other => wrong_type(name, other, "duration"),
        }
    }

    /// The value of a string.
    pub fn string(&self, name: &str) -> &str {
        match self.value(name) {
            Value::String(value) => value,
            other => wrong_type(name, other, "string"),
        }
    }

    /// The value of a string that is a path; `None` when it is empty.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.string(name)).filter(|path| !path.is_empty()).map(|path| Path::new(path).into())
    }

    /// The value of a list.
    pub fn strings(&self, name: &str) -> &[String] {
        match self.value(name) {
            Value::Strings(value) => value,
            other => wrong_type(name, other, "strings"),
        }
    }

    /// The value of a map.
    pub fn map(&self, name: &str) -> &BTreeMap<String, String> {
        match self.value(name) {
            Value::Map(value) => value,
            other => wrong_type(name, other, "map"),
        }
    }

    /// The value of a string that must be one of `allowed`.
    pub fn one_of<'c>(&'c self, name: &str, allowed: &[&str]) -> Result<&'c str, Error> {
        let value = self.string(name);
        if allowed.contains(&value) {
            Ok(value)
        } else {
            Err(self.reject(name, format!("one of {}", allowed.join(", "))))
        }
    }

    /// The error for a value that has the right type but is not allowed.
    pub fn reject(&self, name: &str, allowed: impl Into<String>) -> Error {
        Error::BadValue {
            key: name.into(),
            origin: self.origin(name),
            value: self.value(name).to_string(),
            allowed: allowed.into(),
        }
    }
}

fn parse(flag: &Flag, text: &str, origin: &Origin) -> Result<Value, Error> {
    Value::parse(flag.kind, text).ok_or_else(|| Error::BadValue {
        key: flag.name.clone(),
        origin: origin.clone(),
        value: text.into(),
        allowed: flag.kind.allowed(),
    })
}

fn wrong_type(name: &str, value: &Value, asked: &str) -> ! {
    panic!("the program asks for flag {name} as {asked}, but it is {value:?}")
}

#[cfg(test)]
mod tests;
