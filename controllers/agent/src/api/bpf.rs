//! What the kernel's maps hold, entry by entry.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use cilia_loader::maps::{config::NodeConfig, names};
use cilia_loader::{Conntrack, Datapath, Direction, Error, Opened};
use serde_json::{Value, json};

/// The entries of a map; nothing if it is none of the datapath's.
pub(super) fn read(datapath: &Datapath, name: &str) -> Option<Result<Vec<Value>, Error>> {
    if let Some(endpoint) = name.strip_prefix(names::POLICY_PREFIX) {
        let endpoint = endpoint.parse().ok()?;
        return match datapath.policies() {
            Ok(known) if !known.contains(&endpoint) => None,
            Ok(_) => Some(policy(datapath, endpoint)),
            Err(error) => Some(Err(error)),
        };
    }
    Some(match name {
        names::IPCACHE => ipcache(datapath),
        names::LXC => endpoints(datapath),
        names::LB4_SERVICES | names::LB6_SERVICES => {
            services(datapath, name == names::LB4_SERVICES)
        }
        names::LB4_BACKENDS | names::LB6_BACKENDS => {
            backends(datapath, name == names::LB4_BACKENDS)
        }
        names::LB4_REVERSE_NAT | names::LB6_REVERSE_NAT => {
            rev_nat(datapath, name == names::LB4_REVERSE_NAT)
        }
        names::METRICS => metrics(datapath),
        names::BLOCK4 | names::BLOCK6 => blocks(datapath, name == names::BLOCK4),
        names::POLICY_OPTIONS => options(datapath),
        names::NODE_CONFIG => datapath.told().map(|told| settings(&told)),
        names::FRAG4 | names::FRAG6 => fragments(datapath, name == names::FRAG4),
        names::POLICY_MAPS => datapath
            .policies()
            .map(|ids| ids.into_iter().map(|id| json!({"endpoint": id})).collect()),
        names::CT_TCP4 | names::CT_TCP6 | names::CT_ANY4 | names::CT_ANY6 => {
            connections(datapath, name)
        }
        _ => return None,
    })
}

fn sorted<K: Ord, V>(mut entries: Vec<(K, V)>) -> Vec<(K, V)> {
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries
}

fn ipcache(datapath: &Datapath) -> Result<Vec<Value>, Error> {
    let entries = sorted(datapath.ipcache().entries()?);
    let show = |((address, length), value): &(
        (std::net::IpAddr, u8),
        cilia_loader::RemoteEndpoint,
    )| {
        json!({"cidr": format!("{address}/{length}"), "identity": value.identity, "encryptkey": value.key,
            "tunnelendpoint": value.tunnel})
    };
    Ok(entries.iter().map(show).collect())
}

fn policy(datapath: &Datapath, endpoint: u16) -> Result<Vec<Value>, Error> {
    let entries = sorted(datapath.policy(endpoint)?.entries()?);
    let counted = datapath.policy_stats()?;
    let counted: BTreeMap<cilia_loader::PolicyKey, cilia_loader::PolicyStats> = counted
        .into_iter()
        .filter(|(id, ..)| *id == endpoint)
        .map(|(_, key, sum)| (key, sum))
        .collect();
    let show = |(key, value): &(cilia_loader::PolicyKey, cilia_loader::PolicyEntry)| {
        let sum = counted.get(key);
        json!({"deny": value.deny, "view": value.view, "egress": key.egress, "identity": key.identity, "proto": key.proto,
            "port": key.port, "port_prefix": key.port_prefix, "cookie": value.cookie,
            "bytes": sum.map(|sum| sum.bytes), "packets": sum.map(|sum| sum.packets)})
    };
    Ok(entries.iter().map(show).collect())
}

fn blocks(datapath: &Datapath, v4: bool) -> Result<Vec<Value>, Error> {
    let entries = sorted(datapath.blocks().entries()?);
    let entries = entries.iter().filter(|((address, _), _)| address.is_ipv4() == v4);
    let show = |((address, length), identity): &((std::net::IpAddr, u8), u32)| json!({"cidr": format!("{address}/{length}"), "identity": identity});
    Ok(entries.map(show).collect())
}

fn options(datapath: &Datapath) -> Result<Vec<Value>, Error> {
    let show = |(endpoint, options): &(u16, cilia_loader::EndpointOptions)| json!({"endpoint": endpoint, "PolicyAuditMode": options.policy_audit});
    Ok(sorted(datapath.options().entries()?).iter().map(show).collect())
}

fn endpoints(datapath: &Datapath) -> Result<Vec<Value>, Error> {
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02X}")).join(":");
    let entries = sorted(datapath.endpoints().entries()?);
    let show = |(address, info): &(std::net::IpAddr, cilia_loader::EndpointInfo)| {
        json!({"ip": address, "id": info.id, "identity": info.identity, "ifindex": info.ifindex,
            "mac": mac(info.mac), "nodemac": mac(info.node_mac), "host": info.host})
    };
    Ok(entries.iter().map(show).collect())
}

fn services(datapath: &Datapath, v4: bool) -> Result<Vec<Value>, Error> {
    let entries = sorted(datapath.services().entries()?);
    let show = |(key, value): &(cilia_loader::ServiceKey, cilia_loader::ServiceEntry)| {
        json!({"ip": key.address, "port": key.port, "proto": key.proto, "slot": key.slot, "scope": key.scope,
            "backend": value.backend, "count": value.count, "revnat": value.rev_nat, "flags": value.flags})
    };
    Ok(entries.iter().filter(|(key, _)| key.address.is_ipv4() == v4).map(show).collect())
}

fn backends(datapath: &Datapath, v4: bool) -> Result<Vec<Value>, Error> {
    let entries = sorted(datapath.backends().entries()?);
    let show = |(id, backend): &(u32, cilia_loader::Backend)| {
        json!({"id": id, "ip": backend.address, "port": backend.port, "proto": backend.proto,
            "state": format!("{:?}", backend.state).to_lowercase()})
    };
    Ok(entries.iter().filter(|(_, backend)| backend.address.is_ipv4() == v4).map(show).collect())
}

fn rev_nat(datapath: &Datapath, v4: bool) -> Result<Vec<Value>, Error> {
    let entries = sorted(datapath.rev_nat().entries()?);
    let show = |(id, frontend): &(u16, cilia_loader::Frontend)| json!({"id": id, "ip": frontend.address, "port": frontend.port});
    Ok(entries.iter().filter(|(_, frontend)| frontend.address.is_ipv4() == v4).map(show).collect())
}

fn metrics(datapath: &Datapath) -> Result<Vec<Value>, Error> {
    let show = |(key, packets, bytes): &(cilia_loader::MetricKey, u64, u64)| {
        json!({"reason": key.reason_text(), "direction": direction(key.direction), "packets": packets, "bytes": bytes,
            "line": 0, "file": ""})
    };
    let mut entries = datapath.metrics()?;
    entries.sort_by_key(|(key, ..)| *key);
    Ok(entries.iter().map(show).collect())
}

/// A direction by the name that metrics have it under.
pub(super) fn direction(direction: Option<Direction>) -> &'static str {
    match direction {
        Some(Direction::Ingress) => "INGRESS",
        Some(Direction::Egress) => "EGRESS",
        None => "UNKNOWN",
    }
}

/// What the programs have been told of their node, a setting in an entry.
fn settings(told: &NodeConfig) -> Vec<Value> {
    let address = |words: [u32; 4], v4: bool| match (words, v4) {
        ([0, 0, 0, 0], _) => String::new(),
        ([word, ..], true) => Ipv4Addr::from(word.to_ne_bytes()).to_string(),
        (words, false) => {
            let octets: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            <[u8; 16]>::try_from(octets)
                .map_or_else(|_| String::new(), |octets| Ipv6Addr::from(octets).to_string())
        }
    };
    let flag = |bit: u32| (told.flags & bit != 0).to_string();
    let lives = &told.lives;
    let settings = [
        ("IPv4", flag(NodeConfig::IPV4)),
        ("IPv6", flag(NodeConfig::IPV6)),
        ("PolicyAuditMode", flag(NodeConfig::AUDIT)),
        ("PolicyAccounting", flag(NodeConfig::ACCOUNTING)),
        ("TraceNotification", flag(NodeConfig::TRACE)),
        ("AllowICMPFragNeeded", flag(NodeConfig::ALLOW_FRAG_NEEDED)),
        ("ExtendedIPProtocols", flag(NodeConfig::EXTENDED_PROTOCOLS)),
        ("HostInterface", told.host_ifindex.to_string()),
        ("NetInterface", told.net_ifindex.to_string()),
        ("TunnelInterface", told.overlay_ifindex.to_string()),
        ("TunnelPort", u16::from_be(told.tunnel_port).to_string()),
        ("RouterIPv4", address(told.router_v4, true)),
        ("RouterIPv6", address(told.router_v6, false)),
        ("ClusterID", told.cluster_id.to_string()),
        ("HostEndpoint", told.host_endpoint.to_string()),
        ("ConntrackLifetimeTCP", lives.tcp.to_string()),
        ("ConntrackLifetimeTCPSyn", lives.tcp_syn.to_string()),
        ("ConntrackLifetimeTCPFin", lives.tcp_fin.to_string()),
        ("ConntrackLifetimeAny", lives.any.to_string()),
        ("ConntrackLifetimeServiceTCP", lives.service_tcp.to_string()),
        ("ConntrackLifetimeServiceAny", lives.service_any.to_string()),
        ("MonitorAggregationInterval", told.report_interval.to_string()),
        ("MonitorAggregationFlags", format!("{:#04x}", told.report_flags)),
    ];
    settings.iter().map(|(name, value)| json!({"setting": name, "value": value})).collect()
}

fn fragments(datapath: &Datapath, v4: bool) -> Result<Vec<Value>, Error> {
    let entries = sorted(datapath.fragments().entries()?);
    let entries = entries.iter().filter(|(datagram, _)| datagram.source.is_ipv4() == v4);
    let show = |(datagram, (source, destination)): &(cilia_loader::Datagram, (u16, u16))| {
        json!({"source": datagram.source, "destination": datagram.destination, "id": datagram.id,
            "proto": datagram.proto, "source_port": source, "destination_port": destination})
    };
    Ok(entries.map(show).collect())
}

fn connections(datapath: &Datapath, name: &str) -> Result<Vec<Value>, Error> {
    let v4 = matches!(name, names::CT_TCP4 | names::CT_ANY4);
    let tcp = matches!(name, names::CT_TCP4 | names::CT_TCP6);
    let now = Conntrack::now();
    let mut entries = datapath.conntrack().entries()?;
    entries.sort_by_key(|(connection, _)| *connection);
    let entries =
        entries.iter().filter(|(c, _)| c.source.0.is_ipv4() == v4 && (c.proto == 6) == tcp);
    let show = |(connection, state): &(cilia_loader::Connection, cilia_loader::ConnectionState)| {
        let opened = match connection.opened {
            Opened::Out => "OUT",
            Opened::In => "IN",
            Opened::Service => "SVC",
        };
        json!({"proto": connection.proto, "direction": opened,
            "source": connection.source.0, "source_port": connection.source.1,
            "destination": connection.destination.0, "destination_port": connection.destination.1,
            "expires": state.expires, "remaining": i64::from(state.expires) - i64::from(now),
            "identity": state.source_identity, "revnat": state.rev_nat, "backend": state.backend,
            "closing": state.closing, "established": state.established,
            "tx_flags": state.tcp_flags.0, "rx_flags": state.tcp_flags.1, "flags": state.flags,
            "packets": state.counted.0, "bytes": state.counted.1,
            "last_tx_report": state.last_report.0, "last_rx_report": state.last_report.1})
    };
    Ok(entries.map(show).collect())
}
