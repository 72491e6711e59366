//! `cilia bpf policy`: what endpoints let in and out.

use std::collections::BTreeMap;

use cilia_policy::l4::L4;
use serde_json::{Value, json};

use super::{find, map, number};
use crate::agent::Agent;
use crate::identity;
use crate::output::{Format, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// What one endpoint lets in and out
    Get {
        /// The endpoint's number, host for the node's own, or the path of its map
        #[arg(required_unless_present = "all", value_parser = endpoint_of)]
        endpoint: Option<u16>,
        /// Numbers instead of labels
        #[arg(short, long)]
        numeric: bool,
        /// All endpoints
        #[arg(long)]
        all: bool,
    },
    /// What all endpoints let in and out
    #[command(alias = "ls")]
    List,
}

/// Where maps are pinned, and how those of policies begin.
const GLOBALS: &str = "/sys/fs/bpf/tc/globals/";
const PREFIX: &str = "cilium_policy_v2_";
/// The endpoint that is the node itself.
const HOST: u16 = u16::MAX;

/// An endpoint by its number, as `host`, or by its map's path.
fn endpoint_of(text: &str) -> Result<u16, String> {
    let name = text.rsplit('/').next().unwrap_or(text);
    match name.strip_prefix(PREFIX).unwrap_or(name) {
        "host" => Ok(HOST),
        number => number.parse().map_err(|_| {
            format!("use an endpoint's number up to {HOST}, host, or {GLOBALS}{PREFIX}NUMBER")
        }),
    }
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let known = map(agent, "cilium_policy_maps").await?;
    let mut known: Vec<u16> = known.iter().map(|entry| number(&entry["endpoint"])).collect();
    known.sort_unstable();
    let (wanted, numeric, all) = match command {
        Command::Get { endpoint: Some(endpoint), numeric, all: false } => {
            (vec![*endpoint], *numeric, false)
        }
        Command::Get { numeric, .. } => (known, *numeric, true),
        Command::List => (known, false, true),
    };
    if all && wanted.is_empty() && format.is_none() {
        println!("no maps found");
        return Ok(());
    }
    let labels = if numeric { BTreeMap::new() } else { names(agent).await? };
    let mut answers = Vec::new();
    for endpoint in wanted {
        let name = format!("{PREFIX}{endpoint:05}");
        let Some(entries) = find(agent, &name).await? else {
            // It may have gone since all were listed.
            anyhow::ensure!(
                all,
                "endpoint {endpoint} has no policy map here: there is no map {name}"
            );
            continue;
        };
        let path = format!("{GLOBALS}{name}");
        if format.is_some() {
            answers.push(if all {
                json!({"EndpointID": endpoint.to_string(), "Path": path, "Content": entries})
            } else {
                Value::Array(entries)
            });
            continue;
        }
        if all {
            println!("Endpoint ID: {endpoint}\nPath: {path}\n");
        }
        if entries.is_empty() {
            println!("Policy stats empty. Perhaps the policy enforcement is disabled?");
        } else {
            table(&entries, &labels, numeric).print();
        }
        if all {
            println!("\n");
        }
    }
    match format {
        Some(format) if all => format.print(&Value::Array(answers)),
        Some(format) => format.print(&answers.pop().unwrap_or_default()),
        None => Ok(()),
    }
}

/// The labels of identities; for blocks of addresses, which have none, the prefix.
async fn names(agent: &Agent) -> anyhow::Result<BTreeMap<u64, Vec<String>>> {
    let mut names = identity::labels(agent).await?;
    for blocks in ["cilium_block_v4", "cilium_block_v6"] {
        for block in map(agent, blocks).await? {
            if let Some(number) = block["identity"].as_u64() {
                names.insert(number, vec![format!("block:{}", text(&block["cidr"]))]);
            }
        }
    }
    Ok(names)
}

/// Whom an entry is for.
fn whom(identity: u64, labels: &BTreeMap<u64, Vec<String>>) -> Vec<String> {
    // What rules after those about blocks say of an identity is under its number with this bit; and
    // what they say of a block to whom they send on from a view, with the view's.
    let weak = u64::from(cilia_policy::WEAK);
    let view = (identity & !weak) >> cilia_policy::VIEW_SHIFT;
    let number = identity & ((1 << cilia_policy::VIEW_SHIFT) - 1);
    let mut shown = match (number, labels.get(&number)) {
        (0, _) => vec!["ANY".to_owned()],
        (_, Some(labels)) if !labels.is_empty() => labels.clone(),
        _ => vec![number.to_string()],
    };
    if identity & weak != 0 {
        shown.push("(after blocks)".to_owned());
    }
    if view != 0 {
        shown.push(format!("(view {view})"));
    }
    shown
}

fn table(entries: &[Value], labels: &BTreeMap<u64, Vec<String>>, numeric: bool) -> Table {
    let mut table = Table::new(5);
    table.row([
        "POLICY",
        "DIRECTION",
        if numeric { "IDENTITY" } else { "LABELS (source:key[=value])" },
        "PORT/PROTO",
        "PROXY PORT",
        "AUTH TYPE",
        "BYTES",
        "PACKETS",
        "PREFIX",
        "COOKIE",
    ]);
    let order = |entry: &&Value| {
        let egress = entry["egress"].as_bool();
        (
            entry["deny"].as_bool() != Some(true),
            egress,
            entry["identity"].as_u64(),
            entry["proto"].as_u64(),
            entry["port"].as_u64(),
        )
    };
    let mut sorted: Vec<&Value> = entries.iter().collect();
    sorted.sort_by_key(order);
    for entry in sorted {
        let yes = |member: &str| entry[member].as_bool() == Some(true);
        let identity = entry["identity"].as_u64().unwrap_or(0);
        let shown = if numeric { vec![identity.to_string()] } else { whom(identity, labels) };
        let mut shown = shown.into_iter();
        let l4 = L4 {
            proto: number(&entry["proto"]),
            port: number(&entry["port"]),
            prefix: number(&entry["port_prefix"]),
        };
        table.row([
            match entry["view"].as_u64() {
                _ if yes("deny") => "Deny".to_owned(),
                None | Some(0) => "Allow".to_owned(),
                Some(1) => "Ask block".to_owned(),
                Some(view) => format!("Ask block (view {})", view - 1),
            },
            if yes("egress") { "Egress" } else { "Ingress" }.to_owned(),
            shown.next().unwrap_or_default(),
            l4.to_string(),
            "NONE".into(),
            "disabled".into(),
            counted(&entry["bytes"]),
            counted(&entry["packets"]),
            l4.lpm_bits().to_string(),
            text(&entry["cookie"]),
        ]);
        shown.for_each(|label| table.row(["", "", &label, "", "", "", "", "", "", ""]));
    }
    table
}

/// A counter; `-` for an entry that has decided nothing yet, as Cilium shows it.
fn counted(value: &Value) -> String {
    if value.is_null() { "-".to_owned() } else { text(value) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser as _;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::{endpoint_of, table, whom};
    use crate::output::captured;

    /// An agent whose second endpoint goes as soon as all were listed.
    async fn answer(listener: UnixListener) {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a question");
            let mut question = [0; 4096];
            let asked = stream.read(&mut question).await.expect("a question");
            let asked = String::from_utf8_lossy(&question[..asked]).into_owned();
            let (status, body) = match asked.split(' ').nth(1).unwrap_or_default() {
                "/v1/map/cilium_policy_maps" => {
                    ("200 OK", json!({"entries": [{"endpoint": 7}, {"endpoint": 8}]}))
                }
                "/v1/map/cilium_policy_v2_00008" => ("404 Not Found", Value::Null),
                path if path.starts_with("/v1/map/") => ("200 OK", json!({"entries": []})),
                _ => ("200 OK", json!([])),
            };
            let (body, length) = (body.to_string(), body.to_string().len());
            let head = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
            );
            stream.write_all((head + &body).as_bytes()).await.expect("an answer");
        }
    }

    #[tokio::test]
    async fn an_endpoint_that_goes_meanwhile_hides_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let agent = tokio::spawn(answer(UnixListener::bind(&socket).expect("a socket")));
        let host = format!("unix://{}", socket.display());
        let ask = async |line: &str| {
            let words = ["cilia", "-H", &host, "bpf", "policy"].into_iter().chain(line.split(' '));
            let arguments = crate::Arguments::try_parse_from(words).expect(line);
            Box::pin(captured(crate::run(arguments))).await
        };
        let (outcome, shown) = ask("get --all -o json").await;
        outcome.expect("of the first");
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let path = "/sys/fs/bpf/tc/globals/cilium_policy_v2_00007";
        assert_eq!(shown, json!([{"EndpointID": "7", "Path": path, "Content": []}]));
        let refused = ask("get 8").await.0.expect_err("it is asked for by name");
        assert!(
            format!("{refused:#}").contains("endpoint 8 has no policy map here"),
            "{refused:#}"
        );
        agent.abort();
    }

    #[test]
    fn endpoints_are_named_by_number_or_map() {
        let cases = [
            ("7", Some(7)),
            ("00007", Some(7)),
            ("host", Some(65535)),
            ("/sys/fs/bpf/tc/globals/cilium_policy_v2_00007", Some(7)),
            ("cilium_policy_v2_65535", Some(65535)),
            ("65536", None),
            ("/sys/fs/bpf/tc/globals/cilium_lxc", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(endpoint_of(text).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn blocks_and_what_comes_after_them_have_names() {
        let labels = BTreeMap::from([
            (0x0300_0001, vec!["block:10.0.1.0/24".to_owned()]),
            (4711, vec!["k8s:app=web".to_owned()]),
        ]);
        assert_eq!(whom(0x0300_0001, &labels), ["block:10.0.1.0/24"]);
        let weak = u64::from(cilia_policy::WEAK);
        assert_eq!(whom(weak + 4711, &labels), ["k8s:app=web", "(after blocks)"]);
        assert_eq!(whom(weak, &labels), ["ANY", "(after blocks)"]);
        let view = 3 << cilia_policy::VIEW_SHIFT;
        assert_eq!(whom(view + 0x0300_0001, &labels), ["block:10.0.1.0/24", "(view 3)"]);
        assert_eq!(whom(4712, &labels), ["4712"]);
    }

    #[test]
    fn denies_come_first_and_labels_have_rows() {
        let entries = [
            json!({"deny": false, "egress": false, "identity": 0, "proto": 0, "port": 0, "port_prefix": 0, "cookie": 0}),
            json!({"deny": true, "egress": true, "identity": 4711, "proto": 6, "port": 64, "port_prefix": 10, "cookie": 7, "bytes": 120, "packets": 2}),
        ];
        let labels =
            BTreeMap::from([(4711, vec!["k8s:app=web".to_owned(), "k8s:tier=front".to_owned()])]);
        let text = table(&entries, &labels, false).trimmed();
        let words: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0][..4], ["Deny", "Egress", "k8s:app=web", "64-127/TCP"]);
        assert_eq!(words[0][6..], ["120", "2", "18", "7"]);
        assert_eq!(words[1], ["k8s:tier=front"]);
        assert_eq!(words[2][6..8], ["-", "-"]);
        assert_eq!(words[2][..4], ["Allow", "Ingress", "ANY", "ANY"]);
        let numbers = table(&entries, &labels, true).render();
        let last: Vec<&str> =
            numbers.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(last[..3], ["Allow", "Ingress", "0"]);
    }
}
