//! `cilia config`: an agent's settings, and those that can be changed while it runs.

use anyhow::{Context as _, bail};
use http::Method;
use serde_json::{Map, Value};

use crate::agent::Agent;
use crate::output::{Format, text};

/// With `NAME=VALUE` the agent is asked to change an option; with `get NAME` or a part of a name
/// only some are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// OPTION=VALUE..., or get NAME, or a part of a name
    words: Vec<String>,
    /// Those that can't be changed while the agent runs too
    #[arg(short, long)]
    all: bool,
    /// Only those that can't be changed while the agent runs
    #[arg(short, long, conflicts_with = "all")]
    read_only: bool,
    /// Only those that can be changed while the agent runs, and what they mean
    #[arg(long, conflicts_with_all = ["all", "read_only"])]
    list_options: bool,
}

/// The option that the API has outside of its options.
const ENFORCEMENT: &str = "PolicyEnforcement";
/// Options that can be changed while the agent runs.
const OPTIONS: [(&str, &str); 2] = [
    ("PolicyAuditMode", "Record what policy would drop, and let it pass"),
    (
        ENFORCEMENT,
        "Restrict endpoints that rules select (default), all of them (always) or none (never)",
    ),
];

pub(crate) async fn run(
    agent: &Agent,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    if arguments.list_options {
        for (name, meaning) in OPTIONS {
            println!("{name:<24} {meaning}");
        }
        return Ok(());
    }
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    if !words.is_empty() && words.iter().all(|word| word.contains('=')) {
        let pairs = words.iter().filter_map(|word| word.split_once('='));
        agent.change(Method::PATCH, "/v1/config", Some(&wanted(pairs))).await?;
        return Ok(());
    }
    let answer = agent.get("/v1/config").await?;
    match words.as_slice() {
        ["get", name] => {
            let value = found(&answer, name).with_context(|| {
                format!("there is no setting {name}; cilia config --all lists them")
            })?;
            match format {
                Some(format) => format.print(&value)?,
                None => println!("{}", text(&value)),
            }
        }
        [] | [_] => {
            let part = words.first().copied();
            match format {
                Some(format) => format.print(&for_programs(arguments, &answer))?,
                None => print!("{}", blocks(arguments, part, &answer)),
            }
        }
        _ => bail!("use OPTION=VALUE..., get NAME, or a part of a name"),
    }
    Ok(())
}

/// The change that pairs of names and values ask for.
fn wanted<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let (mut wanted, mut options) = (Map::new(), Map::new());
    for (name, value) in pairs {
        if name == ENFORCEMENT {
            wanted.insert("policy-enforcement".into(), value.into());
        } else {
            options.insert(name.into(), value.into());
        }
    }
    wanted.insert("options".into(), options.into());
    wanted.into()
}

/// Settings that only a restart changes.
fn read_only(answer: &Value) -> &Value {
    &answer["status"]["daemonConfigurationMap"]
}

/// Settings that can be changed, by name.
fn read_write(answer: &Value) -> Map<String, Value> {
    let realized = &answer["status"]["realized"];
    let mut all = realized["options"].as_object().cloned().unwrap_or_default();
    if let Some(enforcement) = realized.get("policy-enforcement") {
        all.insert(ENFORCEMENT.into(), enforcement.clone());
    }
    all
}

/// A setting by its name, in whichever case, with or without hyphens: `EnablePolicy` is `enable-policy`. What can be
/// changed is as it is now, not as the agent started with it.
fn found(answer: &Value, name: &str) -> Option<Value> {
    let changeable = read_write(answer);
    let fixed = read_only(answer).as_object();
    let mut all = changeable.iter().chain(fixed.into_iter().flatten());
    let bare = |name: &str| name.replace(['-', '.'], "").to_ascii_lowercase();
    let wanted = bare(name);
    all.find(|(known, _)| bare(known) == wanted).map(|(_, value)| value.clone())
}

fn for_programs(arguments: &Arguments, answer: &Value) -> Value {
    if !arguments.read_only && !arguments.all {
        return answer["status"]["realized"]["options"].clone();
    }
    let mut shown = read_only(answer).clone();
    if arguments.all
        && let (Some(all), Some(realized)) =
            (shown.as_object_mut(), answer["status"]["realized"].as_object())
    {
        all.extend(realized.clone());
    }
    shown
}

/// What can be changed; all, or what can't, on request; of both what has `part` in its name.
fn blocks(arguments: &Arguments, part: Option<&str>, answer: &Value) -> String {
    let status = &answer["status"];
    let lines = |settings: Vec<(String, String)>| {
        let named = settings.iter().filter(|(name, _)| part.is_none_or(|part| name.contains(part)));
        named.fold(String::new(), |all, (name, value)| all + &format!("{name:<34}: {value}\n"))
    };
    let sorted = |settings: &Value| {
        let settings = settings.as_object().into_iter().flatten();
        let mut all: Vec<(String, String)> =
            settings.map(|(name, value)| (name.clone(), text(value))).collect();
        all.sort_unstable();
        all
    };
    let mut blocks = String::new();
    if arguments.read_only || arguments.all || part.is_some() {
        let mut fixed = sorted(read_only(answer));
        for name in ["k8s-configuration", "k8s-endpoint"] {
            fixed.push((name.into(), text(&status[name])));
        }
        fixed.extend(sorted(&status["immutable"]));
        blocks = format!("#### Read-only configurations ####\n{}", lines(fixed));
    }
    if !arguments.read_only {
        let mut changeable = sorted(&status["realized"]["options"]);
        if let Some(pages) = status["nodeMonitor"].get("npages") {
            changeable.push(("MonitorNumPages".into(), text(pages)));
        }
        changeable.push((ENFORCEMENT.into(), text(&status["realized"]["policy-enforcement"])));
        blocks += "##### Read-write configurations #####\n";
        blocks += &lines(changeable);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::{Value, json};

    use super::{Arguments, blocks, for_programs, found, wanted};
    use crate::{Arguments as All, Command};

    fn arguments(words: &[&str]) -> Arguments {
        let words = ["cilia", "config"].iter().chain(words);
        let Command::Config(arguments) = All::try_parse_from(words).expect("a command").command
        else {
            panic!("another command")
        };
        arguments
    }

    fn answer() -> Value {
        json!({"status": {
            "daemonConfigurationMap":
                {"cluster-name": "", "policy-audit-mode": false, "routing-mode": "tunnel"},
            "realized": {"options": {"PolicyAuditMode": "Disabled"}, "policy-enforcement": "default"},
        }})
    }

    #[test]
    fn settings_stand_in_two_blocks() {
        let fixed = "\
#### Read-only configurations ####
cluster-name                      : \npolicy-audit-mode                 : false\nrouting-mode                      : tunnel
k8s-configuration                 : \nk8s-endpoint                      : \n";
        let changeable = "\
##### Read-write configurations #####
PolicyAuditMode                   : Disabled
PolicyEnforcement                 : default
";
        assert_eq!(blocks(&arguments(&[]), None, &answer()), changeable);
        assert_eq!(blocks(&arguments(&["-a"]), None, &answer()), format!("{fixed}{changeable}"));
        assert_eq!(blocks(&arguments(&["-r"]), None, &answer()), fixed);
        let some = blocks(&arguments(&["mode"]), Some("mode"), &answer());
        assert!(some.contains("routing-mode") && !some.contains("PolicyEnf"), "{some}");
    }

    #[test]
    fn a_setting_is_found_in_whichever_case() {
        assert_eq!(found(&answer(), "routing-mode"), Some("tunnel".into()));
        assert_eq!(found(&answer(), "policyauditmode"), Some("Disabled".into()));
        assert_eq!(found(&answer(), "RoutingMode"), Some("tunnel".into()));
        assert_eq!(found(&answer(), "policy-audit-mode"), Some("Disabled".into()));
        assert_eq!(found(&answer(), "routing"), None);
    }

    #[test]
    fn programs_get_what_people_see() {
        let fixed = for_programs(&arguments(&["-r"]), &answer());
        assert_eq!(fixed, answer()["status"]["daemonConfigurationMap"]);
        let all = for_programs(&arguments(&["-a"]), &answer());
        assert_eq!(
            (&all["routing-mode"], &all["policy-enforcement"]),
            (&"tunnel".into(), &"default".into())
        );
        let changeable = for_programs(&arguments(&[]), &answer());
        assert_eq!(changeable, json!({"PolicyAuditMode": "Disabled"}));
    }

    #[test]
    fn changes_are_as_the_api_wants_them() {
        let pairs = [("PolicyAuditMode", "Enabled"), ("PolicyEnforcement", "always")];
        let want =
            json!({"options": {"PolicyAuditMode": "Enabled"}, "policy-enforcement": "always"});
        assert_eq!(wanted(pairs.into_iter()), want);
    }
}
