//! `cilia encrypt`, `bgp`, `fqdn`, `lrp` and `nodeid`: what the agent says of parts that may be off.

use http::StatusCode;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Encrypt {
    /// Whether packets between nodes are encrypted
    Status,
}

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Bgp {
    /// Peers and their sessions
    Peers,
    /// Routes of peers
    Routes,
    /// What is announced to whom
    RoutePolicies,
}

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Fqdn {
    /// Names that were resolved for policies
    #[command(subcommand)]
    Cache(Cache),
    /// Names that policies select
    Names,
}

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Cache {
    /// Every entry
    #[command(alias = "ls")]
    List,
    /// Forgets all entries
    Clean {
        /// Nobody is asked anyway
        #[arg(short, long)]
        force: bool,
    },
}

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Listed {
    /// Every entry
    #[command(alias = "ls")]
    List,
}

pub(crate) async fn fqdn(
    agent: &Agent,
    command: &Fqdn,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    match command {
        Fqdn::Cache(Cache::Clean { force: _ }) => {
            agent.change(http::Method::DELETE, "/v1/fqdn/cache", None).await?;
            println!("FQDN proxy cache cleared");
            Ok(())
        }
        Fqdn::Cache(Cache::List) => {
            let header = ["Endpoint", "Source", "FQDN", "TTL", "ExpirationTime", "IPs"];
            let members = ["endpoint-id", "lookup-source", "fqdn", "ttl", "expiration-time", "ips"];
            listed(agent, "/v1/fqdn/cache", header, members, format).await
        }
        Fqdn::Names => format.unwrap_or(&Format::Json).print(&agent.get("/v1/fqdn/names").await?),
    }
}

pub(crate) async fn lrp(
    agent: &Agent,
    Listed::List: &Listed,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let header = ["LRP namespace", "LRP name", "FrontendType", "Matching Service"];
    let members = ["namespace", "name", "frontend-type", "service-id"];
    listed(agent, "/v1/lrp", header, members, format).await
}

pub(crate) async fn nodeid(
    agent: &Agent,
    Listed::List: &Listed,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let header = ["NODE ID", "IP ADDRESSES", "SPI"];
    listed(agent, "/v1/node/ids", header, ["id", "ips", "spi"], format).await
}

/// A list of the agent's, with the members of its entries in columns.
async fn listed<const N: usize>(
    agent: &Agent,
    path: &str,
    header: [&str; N],
    members: [&str; N],
    format: Option<&Format>,
) -> anyhow::Result<()> {
    // Cilium's API has no empty list of names.
    let answer = agent.find(path).await?.unwrap_or_else(|| Value::Array(Vec::new()));
    if let Some(format) = format {
        return format.print(&answer);
    }
    let mut table = Table::new(5);
    // Of names, and only of those, the last column is padded.
    let closed = path == "/v1/fqdn/cache";
    let mut add = |cells: [String; N]| if closed { table.closed(cells) } else { table.row(cells) };
    add(header.map(str::to_owned));
    for entry in items(&answer) {
        add(members.map(|member| match &entry[member] {
            Value::Array(many) => many.iter().map(text).collect::<Vec<_>>().join(", "),
            one => text(one),
        }));
    }
    table.print();
    Ok(())
}

pub(crate) async fn encrypt(
    agent: &Agent,
    command: &Encrypt,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let Encrypt::Status = command;
    let status = agent.get("/v1/healthz").await?;
    let encryption = &status["encryption"];
    if let Some(format) = format {
        return format.print(encryption);
    }
    println!("Encryption: {:<26}", text(&encryption["mode"]));
    Ok(())
}

pub(crate) async fn bgp(
    agent: &Agent,
    command: &Bgp,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let path = match command {
        Bgp::Peers => "/v1/bgp/peers",
        Bgp::Routes => "/v1/bgp/routes?table_type=loc-rib&afi=ipv4&safi=unicast",
        Bgp::RoutePolicies => "/v1/bgp/route-policies",
    };
    // That it is off is an answer, too.
    let Some(answer) = agent.get_unless(path, StatusCode::NOT_IMPLEMENTED).await? else {
        return off(format);
    };
    if let Some(format) = format {
        return format.print(&answer);
    }
    let mut table = Table::new(5);
    for entry in items(&answer) {
        table.row(entry.as_object().into_iter().flatten().map(|(_, value)| text(value)));
    }
    table.print();
    Ok(())
}

fn off(format: Option<&Format>) -> anyhow::Result<()> {
    const OFF: &str = "BGP Control Plane is disabled";
    match format {
        None => println!("{OFF}"),
        Some(format) => {
            eprintln!("{OFF}");
            format.print(&Value::Array(Vec::new()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::off;
    use crate::output::{Format, captured};

    #[tokio::test]
    async fn what_is_off_is_said_or_an_empty_list() {
        let said = captured(async { off(None) }).await;
        assert_eq!(said.1, "BGP Control Plane is disabled\n");
        let said = captured(async { off(Some(&Format::Json)) }).await;
        assert_eq!(said.1, "[]\n");
    }
}
