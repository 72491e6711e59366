//! Reads a command line by pflag's rules: `--name=value`, `--name value`, `--bool`, `-D`.

use super::error::{Error, Origin};
use super::flags::{Flag, Flags};
use super::value::{Kind, Value};

/// The flags given, in order; a flag given twice appears twice.
pub(super) fn parse(
    flags: &Flags,
    args: impl IntoIterator<Item = String>,
) -> Result<Vec<(&Flag, Value)>, Error> {
    let mut given = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let (flag, inline) = flag_of(flags, &arg)?;
        let text = match (inline, flag.kind) {
            (Some(text), _) => text.to_string(),
            (None, Kind::Bool) => "true".into(),
            (None, kind) => args.next().ok_or_else(|| Error::MissingValue {
                key: flag.name.clone(),
                allowed: kind.allowed(),
            })?,
        };
        let value = Value::parse(flag.kind, &text).ok_or_else(|| Error::BadValue {
            key: flag.name.clone(),
            origin: Origin::Flag,
            value: text,
            allowed: flag.kind.allowed(),
        })?;
        given.push((flag, value));
    }
    Ok(given)
}

/// The flag that `arg` names, and the value after its `=`.
fn flag_of<'f, 'a>(flags: &'f Flags, arg: &'a str) -> Result<(&'f Flag, Option<&'a str>), Error> {
    let Some(dashed) = arg.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
        return Err(Error::Argument(arg.into()));
    };
    let (name, value) = match dashed.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (dashed, None),
    };
    let flag = if let Some(long) = name.strip_prefix('-') {
        flags.get(long)
    } else {
        let mut letters = name.chars();
        let first = letters.next().filter(|_| letters.next().is_none());
        first.and_then(|letter| flags.short(letter))
    };
    flag.map(|flag| (flag, value)).ok_or_else(|| {
        let word = name.trim_start_matches('-');
        Error::UnknownFlag {
            flag: format!("-{name}"),
            nearest: flags.nearest(word).map(Into::into),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Flags, parse};

    fn parsed(args: &[&str]) -> Result<String, String> {
        let flags = Flags::operator();
        let given =
            parse(&flags, args.iter().map(ToString::to_string)).map_err(|e| e.to_string())?;
        Ok(given
            .iter()
            .map(|(flag, value)| format!("{}={value}", flag.name))
            .collect::<Vec<_>>()
            .join(" "))
    }

    #[test]
    fn reads_command_lines() {
        let cases: &[(&[&str], &str)] = &[
            (&["--debug"], "debug=true"),
            (&["-D", "--debug=false"], "debug=true debug=false"),
            (&["--cluster-name", "east", "--cluster-id=7"], "cluster-name=east cluster-id=7"),
            (
                &["--cluster-pool-ipv4-cidr=10.0.0.0/8,11.0.0.0/8"],
                "cluster-pool-ipv4-cidr=10.0.0.0/8,11.0.0.0/8",
            ),
            (&["--cluster-name="], "cluster-name="),
        ];
        for (args, want) in cases {
            assert_eq!(parsed(args).as_deref(), Ok(*want));
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let cases: &[(&[&str], &str)] = &[
            (&["--enable-ipv5"], "unknown flag --enable-ipv5: did you mean --enable-ipv4?"),
            (&["--xyzzy-something-else"], "unknown flag --xyzzy-something-else: see --help"),
            (&["-X"], "unknown flag -X: see --help"),
            (&["--cluster-name"], "flag --cluster-name needs a value: text"),
            (&["run"], "unexpected argument \"run\": every setting is a flag, see --help"),
            (
                &["--cluster-id=-1"],
                "cluster-id: \"-1\", set by the command line, is not allowed: an integer from 0 to 4294967295",
            ),
            (
                &["--debug=maybe"],
                "debug: \"maybe\", set by the command line, is not allowed: true or false",
            ),
        ];
        for (args, want) in cases {
            assert_eq!(parsed(args), Err((*want).into()));
        }
    }
}
