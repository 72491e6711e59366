//! `cilia endpoint`.

mod one;

use std::collections::BTreeMap;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use http::Method;
use serde_json::{Map, Value, json};

use crate::agent::{Agent, segment};
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All endpoints of the node
    #[command(alias = "ls")]
    List {
        /// Leave the header out
        #[arg(long)]
        no_headers: bool,
    },
    /// One endpoint, or those with all of these labels
    #[command(aliases = ["inspect", "show"])]
    Get {
        #[command(flatten)]
        which: Option<Id>,
        /// Labels such as k8s:app=web
        #[arg(short, long, value_delimiter = ',', conflicts_with = "id")]
        labels: Vec<String>,
    },
    /// How an endpoint came to be as it is
    Log(Id),
    /// Whether an endpoint is well
    #[command(alias = "healthz")]
    Health(Id),
    /// The labels that make an endpoint's identity
    Labels {
        #[command(flatten)]
        id: Id,
        /// Labels to add beside those of the pod, such as stage=test
        #[arg(short, long, value_delimiter = ',')]
        add: Vec<String>,
        /// Labels to take away
        #[arg(short, long, value_delimiter = ',')]
        delete: Vec<String>,
    },
    /// An endpoint's options, or changes them
    Config {
        #[command(flatten)]
        id: Id,
        /// Such as PolicyAuditMode=Enabled
        #[arg(value_name = "OPTION=VALUE")]
        options: Vec<String>,
    },
    /// Takes an endpoint off the network, until its pod is made anew
    Disconnect(Id),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Id {
    /// Its number, or a name such as pod-name:NAMESPACE/NAME, container-id:ID, ipv4:ADDRESS
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
}

impl Id {
    fn path(&self, below: &str) -> String {
        format!("/v1/endpoint/{}{below}", segment(&self.id))
    }

    async fn get(&self, agent: &Agent, below: &str) -> anyhow::Result<Value> {
        let found = agent.find(&self.path(below)).await?;
        found.with_context(|| format!("no endpoint {} on this node", self.id))
    }
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    match command {
        Command::List { no_headers } => {
            let endpoints = sorted(agent.get("/v1/endpoint").await?);
            if let Some(format) = format {
                return format.print(&endpoints);
            }
            list(items(&endpoints), !no_headers).print();
            Ok(())
        }
        Command::Get { which, labels } => {
            let endpoints = match which {
                Some(id) => json!([id.get(agent, "").await?]),
                None if labels.is_empty() => {
                    anyhow::bail!("name an endpoint, or --labels that it has")
                }
                None => {
                    let path = format!("/v1/endpoint?labels={}", segment(&labels.join(",")));
                    sorted(agent.find(&path).await?.unwrap_or_default())
                }
            };
            if items(&endpoints).is_empty() {
                anyhow::bail!("no endpoint of this node has all of these labels");
            }
            format.unwrap_or(&Format::Json).print(&endpoints)
        }
        Command::Log(id) => show(&id.get(agent, "/log").await?, format, one::log),
        Command::Health(id) => show(&id.get(agent, "/healthz").await?, format, one::health),
        Command::Labels { id, add, delete } => {
            if !(add.is_empty() && delete.is_empty()) {
                let now = id.get(agent, "/labels").await?;
                let user = relabelled(items(&now["status"]["realized"]["user"]), add, delete);
                let wanted = json!({"user": user});
                agent.change(Method::PATCH, &id.path("/labels"), Some(&wanted)).await?;
            }
            show(&id.get(agent, "/labels").await?, format, one::labels)
        }
        Command::Config { id, options } if options.is_empty() => {
            let config = id.get(agent, "/config").await?;
            match format {
                Some(format) => format.print(&config)?,
                None => print!("{}", one::config(&config)),
            }
            Ok(())
        }
        Command::Config { id, options } => {
            let pair = |option: &String| {
                let (name, value) = option
                    .split_once('=')
                    .with_context(|| format!("{option:?}: use OPTION=VALUE"))?;
                Ok((name.to_owned(), Value::from(value)))
            };
            let options: Map<String, Value> =
                options.iter().map(pair).collect::<anyhow::Result<_>>()?;
            let wanted = json!({"options": options});
            id.get(agent, "").await?;
            agent.change(Method::PATCH, &id.path("/config"), Some(&wanted)).await?;
            println!("Endpoint {} configuration updated successfully", id.id);
            Ok(())
        }
        Command::Disconnect(id) => {
            id.get(agent, "").await?;
            agent.change(Method::DELETE, &id.path(""), None).await?;
            println!("Endpoint {} successfully disconnected", id.id);
            Ok(())
        }
    }
}

/// The user's labels once some are added and others taken away. A key has one label: that which was there first.
fn relabelled(user: &[Value], add: &[String], delete: &[String]) -> Vec<String> {
    let mut labels: BTreeMap<String, String> = BTreeMap::new();
    for label in user.iter().map(text).chain(add.iter().cloned()) {
        labels.entry(key(&label).to_owned()).or_insert(label);
    }
    for label in delete {
        labels.remove(key(label));
    }
    labels.into_values().collect()
}

/// What a label is called, whoever says it and whatever its value.
fn key(label: &str) -> &str {
    let name = label.split_once(':').map_or(label, |(_, name)| name);
    name.split_once('=').map_or(name, |(key, _)| key)
}

fn show(
    value: &Value,
    format: Option<&Format>,
    table: impl Fn(&Value) -> Table,
) -> anyhow::Result<()> {
    if let Some(format) = format {
        return format.print(value);
    }
    table(value).print();
    Ok(())
}

fn sorted(mut endpoints: Value) -> Value {
    if let Some(list) = endpoints.as_array_mut() {
        list.sort_by_key(|endpoint| endpoint["id"].as_u64());
    }
    endpoints
}

/// Endpoints in a table.
pub(crate) fn list(endpoints: &[Value], headers: bool) -> Table {
    let mut table = Table::new(5);
    if headers {
        table.closed([
            "ENDPOINT",
            "POLICY (ingress)",
            "POLICY (egress)",
            "IDENTITY",
            "LABELS (source:key[=value])",
            "IPv6",
            "IPv4",
            "STATUS",
        ]);
        // Cilium's tool has a column less here.
        table.row(["", "ENFORCEMENT", "ENFORCEMENT", "", "", "", "", ""]);
    }
    for endpoint in endpoints {
        let status = &endpoint["status"];
        let [ingress, egress] = enforcement(&text(&status["policy"]["realized"]["policy-enabled"]));
        let identity = match text(&status["identity"]["id"]) {
            none if none.is_empty() => "<no label id>".to_owned(),
            number => number,
        };
        let mut labels: Vec<String> =
            items(&status["identity"]["labels"]).iter().map(text).collect();
        labels.sort_unstable();
        if labels.is_empty() {
            labels.push("no labels".into());
        }
        let address = |family: &str| text(&status["networking"]["addressing"][0][family]);
        let mut labels = labels.into_iter();
        table.closed([
            text(&endpoint["id"]),
            ingress.to_owned(),
            egress.to_owned(),
            identity,
            labels.next().unwrap_or_default(),
            address("ipv6"),
            address("ipv4"),
            text(&status["state"]),
        ]);
        for label in labels {
            table.closed(["", "", "", "", &label, "", "", ""]);
        }
    }
    table
}

/// What is enforced at ingress and at egress.
fn enforcement(enabled: &str) -> [&'static str; 2] {
    const AUDIT: &str = "Disabled (Audit)";
    match enabled {
        "both" => ["Enabled", "Enabled"],
        "ingress" => ["Enabled", "Disabled"],
        "egress" => ["Disabled", "Enabled"],
        "none" => ["Disabled", "Disabled"],
        "audit-both" => [AUDIT, AUDIT],
        "audit-ingress" => [AUDIT, "Disabled"],
        "audit-egress" => ["Disabled", AUDIT],
        _ => ["Unknown", "Unknown"],
    }
}

#[cfg(test)]
mod tests {
    use super::{list, relabelled};
    use serde_json::json;

    #[test]
    fn a_key_has_one_label() {
        let user = [json!("unspec:a=1"), json!("k8s:b=2")];
        let of = |add: &[&str], delete: &[&str]| {
            let list = |labels: &[&str]| labels.iter().map(ToString::to_string).collect::<Vec<_>>();
            relabelled(&user, &list(add), &list(delete))
        };
        assert_eq!(of(&[], &[]), ["unspec:a=1", "k8s:b=2"]);
        assert_eq!(of(&["a=7", "c"], &["k8s:b"]), ["unspec:a=1", "c"]);
        assert_eq!(of(&["d=1"], &["a=other", "d", "none"]), ["k8s:b=2"]);
    }

    #[test]
    fn a_label_in_a_row() {
        let endpoints = [
            json!({"id": 12, "status": {"state": "ready",
                "identity": {"id": 4711, "labels": ["k8s:b=2", "k8s:a=1"]},
                "networking": {"addressing": [{"ipv4": "10.0.0.1", "ipv6": "fd00::1"}]},
                "policy": {"realized": {"policy-enabled": "ingress"}}}}),
            json!({"id": 7, "status": {"state": "waiting-for-identity",
                "networking": {"addressing": [{"ipv4": "10.0.0.2"}]},
                "policy": {"realized": {"policy-enabled": "audit-both"}}}}),
        ];
        let want = "\
ENDPOINT   POLICY (ingress)   POLICY (egress)    IDENTITY        LABELS (source:key[=value])   IPv6      IPv4       STATUS
           ENFORCEMENT        ENFORCEMENT
12         Enabled            Disabled           4711            k8s:a=1                       fd00::1   10.0.0.1   ready
                                                                 k8s:b=2
7          Disabled (Audit)   Disabled (Audit)   <no label id>   no labels                               10.0.0.2   waiting-for-identity
";
        assert_eq!(list(&endpoints, true).trimmed(), want);
        assert!(!list(&endpoints, false).render().contains("ENDPOINT"));
    }
}
