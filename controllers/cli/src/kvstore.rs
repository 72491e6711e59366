//! `cilia kvstore`: reads and writes etcd's keys, for those who have to look.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use cilia_kvstore::{Client, KeyValue, Options, Settings};
use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};

use crate::access::{Access, Reach};
use crate::agent::Agent;
use crate::output::{Choice, Format, text, write_bytes};
use crate::remote;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The kind of store [default: the agent's]
    #[arg(long, global = true, value_parser = ["etcd"])]
    kvstore: Option<String>,
    /// How to reach it, such as etcd.address=http://HOST:2379 [default: the agent's]
    #[arg(long = "kvstore-opt", global = true, value_name = "OPTION=VALUE", value_parser = pairs)]
    options: Vec<Pairs>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// The value of a key, or of all that begin with it
    Get {
        /// All keys that begin with it
        #[arg(long)]
        recursive: bool,
        /// The key [default with --recursive: all]
        key: Option<String>,
    },
    /// Sets a key
    Set {
        /// The key
        #[arg(long, allow_hyphen_values = true)]
        key: Option<String>,
        /// Its value
        #[arg(long, default_value = "", allow_hyphen_values = true)]
        value: String,
    },
    /// Deletes a key, or all that begin with it
    Delete {
        /// All keys that begin with it
        #[arg(long)]
        recursive: bool,
        /// The key
        key: Option<String>,
    },
}

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// All that is Cilium's.
const ROOT: &str = "cilium/";

type Pairs = Vec<(String, String)>;

pub(crate) async fn run(
    access: &Access,
    arguments: &Arguments,
    output: Option<&Choice>,
) -> anyhow::Result<ExitCode> {
    let given: BTreeMap<String, String> = arguments.options.iter().flatten().cloned().collect();
    let options = if given.is_empty() {
        let reach = access.reach().await?;
        match &reach {
            Reach::Here(agent) => agents_options(agent).await.context(
                "Unable to retrieve cilium configuration (--kvstore-opt etcd.address=http://HOST:2379 asks \
                 a store without it)",
            )?,
            // The store is the same for all agents, and reached from their nodes.
            Reach::There(_) => {
                let agents = access.agents(&reach).await?;
                let agent = agents.first().context("no agent runs")?;
                let output = output.map(|choice| choice.text.as_str());
                return remote::run(agent, &words(&arguments.command, output)).await;
            }
        }
    } else {
        given
    };
    let options = Options::parse(&options)?;
    let client = Client::new(&Settings::new(options), None).context("prepare to talk to etcd")?;
    let format = output.and_then(|choice| choice.format.as_ref());
    let done = tokio::time::timeout(PATIENCE, perform(&client, &arguments.command, format)).await;
    done.unwrap_or_else(|_| bail!("etcd did not answer within {PATIENCE:?}"))?;
    Ok(ExitCode::SUCCESS)
}

/// The command as it is typed.
fn words(command: &Command, output: Option<&str>) -> Vec<String> {
    let mut words = vec!["kvstore".to_owned()];
    words.extend(output.map(|format| format!("--output={format}")));
    let (name, recursive, key) = match command {
        Command::Get { recursive, key } => ("get", *recursive, key),
        Command::Delete { recursive, key } => ("delete", *recursive, key),
        Command::Set { key, value } => {
            words.push("set".to_owned());
            words.extend(key.iter().map(|key| format!("--key={key}")));
            words.push(format!("--value={value}"));
            return words;
        }
    };
    words.push(name.to_owned());
    words.extend(recursive.then(|| "--recursive".to_owned()));
    words.extend(key.iter().flat_map(|key| ["--".to_owned(), key.clone()]));
    words
}

/// How the agent reaches its etcd.
pub(crate) async fn agents_options(agent: &Agent) -> anyhow::Result<BTreeMap<String, String>> {
    let config = agent.get("/v1/config").await?;
    let known = config["status"]["kvstoreConfiguration"]["options"].as_object();
    let pairs = known.into_iter().flatten().map(|(name, value)| (name.clone(), text(value)));
    let options: BTreeMap<String, String> = pairs.collect();
    if options.is_empty() {
        bail!("the agent uses no kvstore (kvstore-opt is not set)");
    }
    if let Some(file) = options.get("etcd.config").filter(|file| !Path::new(file).exists()) {
        bail!(
            "the agent's etcd.config, {file}, is not here: run this in its pod, with kubectl exec, or \
             with --node NODE"
        );
    }
    Ok(options)
}

async fn perform(
    client: &Client,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    match command {
        Command::Get { recursive: true, key } => {
            let found = match (key, client.list(key.as_deref().unwrap_or_default()).await) {
                // Its user may see what is Cilium's, and nothing else.
                (None, Err(error)) if error.to_string().contains("permission denied") => {
                    client.list(ROOT).await
                }
                (_, outcome) => outcome,
            };
            let (pairs, _) = found.context("Unable to list keys")?;
            if let Some(format) = format {
                return format.print(&listed(&pairs));
            }
            for pair in &pairs {
                write_bytes(&line(&pair.key, &pair.value));
            }
            Ok(())
        }
        Command::Get { key: None, .. } => bail!("Please specify a key, or --recursive for all"),
        Command::Get { key: Some(key), .. } => {
            let found = client.get(key).await;
            let found = found.with_context(|| format!("Unable to retrieve key {key}"))?;
            let pair = found.with_context(|| format!("key {key} is not found"))?;
            if let Some(format) = format {
                return format.print(&json!(String::from_utf8_lossy(&pair.value)));
            }
            write_bytes(&line(key.as_bytes(), &pair.value));
            Ok(())
        }
        Command::Set { key: None, .. } => bail!("--key attribute reqiured"),
        Command::Set { key: Some(key), value } => {
            let set = client.put(key, value.as_bytes(), false).await;
            set.with_context(|| format!("Unable to set key {key}")).map(drop)
        }
        Command::Delete { key: None, .. } => {
            bail!("Please specify a key or key prefix to delete")
        }
        Command::Delete { recursive, key: Some(key) } => {
            if *recursive {
                client.delete_prefix(key).await.map(drop).context("Unable to delete keys")
            } else {
                client.delete(key).await.map(drop).context("Unable to delete key")
            }
        }
    }
}

/// As they are, text or not.
fn line(key: &[u8], value: &[u8]) -> Vec<u8> {
    [key, b" => ", value, b"\n"].concat()
}

/// Keys with their values for programs: any bytes, in base64.
fn listed(pairs: &[KeyValue]) -> Value {
    let member = |pair: &KeyValue| {
        let value = json!({"Data": ByteString(pair.value.clone()), "ModRevision": pair.mod_revision,
            "LeaseID": pair.lease});
        (String::from_utf8_lossy(&pair.key).into_owned(), value)
    };
    Value::Object(pairs.iter().map(member).collect::<Map<_, _>>())
}

/// `OPTION=VALUE,...`, or an object in JSON, as the agent's flag of that name takes them.
fn pairs(text: &str) -> Result<Pairs, String> {
    if text.trim_start().starts_with('{') {
        let object: Result<BTreeMap<String, String>, _> = serde_json::from_str(text);
        return object
            .map(|object| object.into_iter().collect())
            .map_err(|error| error.to_string());
    }
    let pair = |pair: &str| {
        let pair = pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        pair.ok_or_else(|| "use OPTION=VALUE".to_owned())
    };
    text.split(',').map(pair).collect()
}

#[cfg(test)]
mod tests {
    use cilia_kvstore::testing::Etcd;
    use clap::Parser as _;
    use serde_json::json;

    use super::{Command, line, pairs, perform, words};
    use crate::output::{Format, Kept, captured};

    #[tokio::test]
    async fn keys_are_read_and_written() {
        let etcd = Etcd::start().await;
        let client = etcd.client();
        let run = async |command: Command, format: Option<&Format>| {
            let (outcome, text) = captured(perform(&client, &command, format)).await;
            (outcome.map_err(|error| format!("{error:#}")), text)
        };
        let key = |text: &str| Some(text.to_owned());
        for (name, value) in [("cilium/a", "1"), ("cilium/b/c", "2"), ("other", "3")] {
            let set = Command::Set { key: key(name), value: value.into() };
            assert_eq!(run(set, None).await, (Ok(()), String::new()));
        }
        let one = Command::Get { recursive: false, key: key("cilium/a") };
        assert_eq!(run(one, None).await.1, "cilium/a => 1\n");
        let all = || Command::Get { recursive: true, key: None };
        assert_eq!(run(all(), None).await.1, "cilium/a => 1\ncilium/b/c => 2\nother => 3\n");
        let some = Command::Get { recursive: true, key: key("cilium/b") };
        assert_eq!(run(some, None).await.1, "cilium/b/c => 2\n");
        let kept = Kept::default();
        run(all(), Some(&Format::Keep(kept.clone()))).await.0.expect("a list");
        let value = kept.take();
        assert_eq!(value["cilium/b/c"]["Data"], "Mg==", "{value}");
        assert_eq!(value["cilium/b/c"]["LeaseID"], json!(0));
        let gone = Command::Get { recursive: false, key: key("cilium/z") };
        assert_eq!(run(gone, None).await.0, Err("key cilium/z is not found".into()));
        let delete = |recursive: bool, name: &str| Command::Delete { recursive, key: key(name) };
        assert_eq!(run(delete(false, "cilium/b"), None).await.0, Ok(()), "it is not there");
        assert_eq!(run(delete(true, "cilium/b"), None).await.0, Ok(()));
        assert_eq!(run(all(), None).await.1, "cilium/a => 1\nother => 3\n");
        let nothing = Command::Delete { recursive: true, key: None };
        assert_eq!(
            run(nothing, None).await.0,
            Err("Please specify a key or key prefix to delete".into())
        );
        let unnamed = Command::Set { key: None, value: String::new() };
        assert_eq!(run(unnamed, None).await.0, Err("--key attribute reqiured".into()));
    }

    #[test]
    fn options_are_pairs_or_an_object() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let want = vec![pair("etcd.address", "http://a:1"), pair("etcd.qps", "5")];
        assert_eq!(pairs("etcd.address=http://a:1,etcd.qps=5"), Ok(want.clone()));
        let object = r#"{"etcd.address": "http://a:1", "etcd.qps": "5"}"#;
        assert_eq!(pairs(object), Ok(want));
        for bad in ["etcd", "a=b,", "{", r#"{"a": 1}"#] {
            assert!(pairs(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn commands_are_what_was_typed() {
        for line in [
            "cilia kvstore --output=jsonpath={.a b} get --recursive -- -key",
            "cilia kvstore get --recursive",
            "cilia kvstore set --key=-k --value=-1 => x",
            "cilia kvstore delete -- a",
        ] {
            // Blanks within a word are none between words.
            let typed: Vec<String> = line
                .replace("{.a b}", "{.a_b}")
                .replace("-1 => x", "-1_=>_x")
                .split(' ')
                .map(|word| word.replace('_', " "))
                .collect();
            let read = crate::Arguments::try_parse_from(&typed).expect(line);
            let crate::Command::Kvstore(arguments) = read.command else { panic!("{line}") };
            let output = read.output.as_ref().map(|choice| choice.text.as_str());
            assert_eq!(words(&arguments.command, output), typed[1..], "{line}");
        }
    }

    #[test]
    fn bytes_stay_what_they_are() {
        assert_eq!(line(b"a\xff", b"\x00\xfe"), b"a\xff => \x00\xfe\n");
    }
}
