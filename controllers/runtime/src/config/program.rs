//! Decides what a program does with its command line: run with a configuration, or print and end.

use std::fmt::Write as _;

use super::error::Error;
use super::flags::{Flag, Flags};
use super::value::{Kind, Value};
use super::{Config, args};

/// A program that takes its settings from flags, environment and files.
#[derive(Debug)]
pub struct Program {
    /// The name of the binary.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Every flag it knows.
    pub flags: Flags,
    /// The flags that have an effect; the others warn when they are set to something else than their default.
    pub built: &'static [&'static str],
}

/// What to do now.
#[derive(Debug)]
pub enum Start {
    /// Run with this configuration.
    Run(Box<Config>),
    /// Print this and end well: `--help` or `--version`.
    Print(String),
}

impl Program {
    /// Reads the settings of this process from `args` (without the program's name) and `env`.
    pub fn start(
        self,
        args: impl IntoIterator<Item = String>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Start, Error> {
        let args: Vec<String> = args.into_iter().collect();
        let given = args::parse(&self.flags, args.iter().cloned())?;
        let asks = |name: &str| {
            given.iter().any(|(flag, value)| flag.name == name && *value == Value::Bool(true))
        };
        if asks("help") || args.iter().any(|arg| arg == "--help") {
            return Ok(Start::Print(self.help()));
        }
        if asks("version") {
            return Ok(Start::Print(format!("{} {}\n", self.name, env!("CARGO_PKG_VERSION"))));
        }
        let mut config = Config::load(self.flags, args, env)?;
        config.warn_of_unbuilt(self.built);
        Ok(Start::Run(Box::new(config)))
    }

    fn help(&self) -> String {
        let mut text = format!("{}\n\nUsage:\n  {} [flags]\n\nFlags:\n", self.about, self.name);
        let shown: Vec<&Flag> = self.flags.iter().filter(|flag| !flag.hidden).collect();
        let left: Vec<String> = shown.iter().map(|flag| usage(flag)).collect();
        let width = left.iter().map(String::len).max().unwrap_or_default();
        for (flag, usage) in shown.iter().zip(&left) {
            let unbuilt =
                if self.built.contains(&flag.name.as_str()) { "" } else { "(not built yet) " };
            let default = if flag.default.is_zero() {
                String::new()
            } else if flag.kind == Kind::String {
                format!("(default {:?})", flag.default.to_string())
            } else {
                format!("(default {})", flag.default)
            };
            let line = format!("{usage:width$}   {unbuilt}{default}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text.push_str("\nEach flag can also be set as environment variable CILIUM_<NAME>, in the file of --config and in --config-dir.\n");
        text
    }
}

fn usage(flag: &Flag) -> String {
    let short = flag.short.map_or_else(|| "    ".into(), |letter| format!("-{letter}, "));
    format!("  {short}--{} {}", flag.name, flag.kind.help_name())
}

#[cfg(test)]
mod tests {
    use super::{Flags, Program, Start};

    fn start(args: &[&str]) -> Start {
        let program = Program {
            name: "p",
            about: "About.",
            flags: Flags::operator(),
            built: &["debug", "ipam"],
        };
        program.start(args.iter().map(ToString::to_string), []).unwrap()
    }

    #[test]
    fn help_lists_every_flag_that_is_not_hidden() {
        let Start::Print(text) = start(&["--help"]) else { panic!("must print") };
        assert!(text.contains("  -D, --debug \n") || text.contains("  -D, --debug\n"), "{text}");
        assert!(text.contains("(default \"cluster-pool\")"), "{text}");
        assert!(!text.contains("cmdref"));
        assert_eq!(
            text.matches("\n  ").count() - 1,
            Flags::operator().iter().filter(|f| !f.hidden).count()
        );
    }

    #[test]
    fn version_says_name_and_number() {
        let Start::Print(text) = start(&["--version"]) else { panic!("must print") };
        assert_eq!(text, format!("p {}\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn unbuilt_flags_warn_only_when_they_would_matter() {
        let Start::Run(config) =
            start(&["--debug", "--enable-ipv4=true", "--enable-gateway-api-alpn"])
        else {
            panic!("must run")
        };
        assert_eq!(
            config.warnings(),
            [
                "enable-gateway-api-alpn: true, set by the command line, has no effect: not built yet"
            ]
        );
    }
}
