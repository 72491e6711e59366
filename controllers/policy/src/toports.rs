//! Reads `toPorts`: ports and protocols, and what is demanded of requests on them.

use cilia_crds::policy::{
    EnvoyConfigKind, FqdnSelector, L4Protocol, L7Rules, PortDenyRule, PortProtocol, PortRule,
};

use crate::cnp::Place;
use crate::error::{Error, Note};
use crate::l4::{port_or_name, protocol};
use crate::rule::{Direction, Port, Ports};

/// The ports of an allow or of a deny.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PortsOf<'a> {
    Allow(&'a [PortRule]),
    Deny(&'a [PortDenyRule]),
}

impl PortsOf<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Allow(rules) => rules.is_empty(),
            Self::Deny(rules) => rules.is_empty(),
        }
    }
}

/// The ports that an item means.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Those that are allowed or denied as such.
    pub(crate) ports: Ports,
    /// Those on which a proxy would look at requests.
    pub(crate) inspected: Vec<Port>,
}

/// The ports that an item means; an element without ports means none.
pub(crate) fn read(
    place: Place<'_>,
    direction: Direction,
    written: PortsOf<'_>,
    field: &str,
    notes: &mut Vec<Note>,
) -> Result<Read, Error> {
    let (mut found, mut inspected) = (Vec::new(), Vec::new());
    match written {
        PortsOf::Allow(rules) => {
            for (index, rule) in rules.iter().enumerate() {
                let field = format!("{field}[{index}]");
                let ports = ports(place, &rule.ports, &field, notes)?;
                demands(place, direction, rule, &ports, &field)?;
                if let Some(demand) = unbuilt(rule) {
                    let text = "not enforced yet: nothing is allowed on these ports".to_owned();
                    notes.push(Note { field: format!("{field}.{demand}"), text });
                    inspected.extend(ports);
                } else {
                    notes.extend(without_ports(&ports, &field, "allowed"));
                    found.extend(ports);
                }
            }
        }
        PortsOf::Deny(rules) => {
            for (index, rule) in rules.iter().enumerate() {
                let field = format!("{field}[{index}]");
                let ports = ports(place, &rule.ports, &field, notes)?;
                notes.extend(without_ports(&ports, &field, "denied"));
                found.extend(ports);
            }
        }
    }
    Ok(Read { ports: Ports::Of(found), inspected })
}

/// As with Cilium no port is no packet, which may be a mistake.
fn without_ports(ports: &[Port], field: &str, done: &str) -> Option<Note> {
    let text = || format!("no port is given: nothing is {done} by this element");
    ports.is_empty().then(|| Note { field: format!("{field}.ports"), text: text() })
}

fn ports(
    place: Place<'_>,
    written: &[PortProtocol],
    field: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<Port>, Error> {
    if written.len() > 40 {
        let fault = format!("{} ports are given, at most 40 are possible", written.len());
        return Err(Error::new(format_args!("{field}.ports"), fault));
    }
    let mut found = Vec::new();
    for (index, port) in written.iter().enumerate() {
        let field = format!("{field}.ports[{index}]");
        let text = port.port.as_deref().unwrap_or_default();
        let extended = place.scope.config.extended_protocols;
        if text.is_empty() && !extended {
            return Err(Error::new(
                format_args!("{field}.port"),
                "a port is required (enable-extended-ip-protocols is off)",
            ));
        }
        let protocols: &[u8] = match port.protocol.unwrap_or(L4Protocol::Any) {
            L4Protocol::Tcp => &[protocol::TCP],
            L4Protocol::Udp => &[protocol::UDP],
            L4Protocol::Sctp => &[protocol::SCTP],
            L4Protocol::Any => &[protocol::TCP, protocol::UDP, protocol::SCTP],
            other @ (L4Protocol::Vrrp | L4Protocol::Igmp) => {
                if !extended {
                    let fault = "VRRP and IGMP need enable-extended-ip-protocols, which is off";
                    return Err(Error::new(format_args!("{field}.protocol"), fault));
                }
                if !matches!(text, "" | "0") {
                    return Err(Error::new(
                        format_args!("{field}.port"),
                        "this protocol has no ports: leave it out",
                    ));
                }
                if other == L4Protocol::Vrrp { &[protocol::VRRP] } else { &[protocol::IGMP] }
            }
        };
        let end = port.end_port.map(|end| {
            u16::try_from(end).map_err(|_| {
                Error::new(
                    format_args!("{field}.endPort"),
                    format!("{end} is not between 0 and 65535"),
                )
            })
        });
        let end = end.transpose()?;
        let text = if text.is_empty() { "0" } else { text };
        let first = found.len();
        for proto in protocols {
            found.push(port_or_name(*proto, text, end, &format!("{field}.port"))?);
        }
        notes.extend(without_end(&found[first], end, &field));
    }
    Ok(found)
}

/// An end that Cilium ignores, which may be a mistake.
fn without_end(port: &Port, end: Option<u16>, field: &str) -> Option<Note> {
    let end = end.filter(|end| *end > 0)?;
    let text = match port {
        Port::Named { name, .. } => format!("a name has no end: it is {name} alone"),
        Port::Range { first, .. } if end < *first => {
            format!("{end} comes before {first}: it is port {first} alone")
        }
        Port::Range { .. } => return None,
    };
    Some(Note { field: format!("{field}.endPort"), text })
}

/// What is demanded beyond ports and isn't built yet.
fn unbuilt(rule: &PortRule) -> Option<&'static str> {
    let l7 = rule.rules.as_ref();
    let has = |present: bool, name| present.then_some(name);
    has(l7.is_some_and(|l7| l7.http.is_some()), "rules.http")
        .or(has(l7.is_some_and(|l7| l7.kafka.is_some()), "rules.kafka"))
        .or(has(l7.is_some_and(|l7| l7.dns.is_some()), "rules.dns"))
        .or(has(l7.is_some_and(|l7| l7.l7proto.is_some() || l7.l7.is_some()), "rules.l7proto"))
        .or(has(rule.terminating_tls.is_some(), "terminatingTLS"))
        .or(has(rule.originating_tls.is_some(), "originatingTLS"))
        .or(has(rule.server_names.is_some(), "serverNames"))
        .or(has(rule.listener.is_some(), "listener"))
}

/// Checks the demands beyond ports.
fn demands(
    place: Place<'_>,
    direction: Direction,
    rule: &PortRule,
    ports: &[Port],
    field: &str,
) -> Result<(), Error> {
    let rules = rule.rules.as_ref();
    if let Some(rules) = rules {
        l7(place, direction, rules, rule, ports, &format!("{field}.rules"))?;
    }
    let has_l7 = rules.is_some_and(|rules| *rules != L7Rules::default());
    for (index, name) in rule.server_names.iter().flatten().enumerate() {
        if name.is_empty() {
            return Err(Error::new(
                format_args!("{field}.serverNames[{index}]"),
                "the name is empty",
            ));
        }
    }
    if rule.server_names.is_some() && has_l7 && rule.terminating_tls.is_none() {
        return Err(Error::new(
            format_args!("{field}.serverNames"),
            "with rules for requests it needs terminatingTLS",
        ));
    }
    let Some(listener) = &rule.listener else { return Ok(()) };
    let refuse = |fault: &str| Err(Error::new(format_args!("{field}.listener"), fault));
    if direction == Direction::Ingress {
        return refuse("listeners are possible for egress only");
    }
    if has_l7 {
        return refuse("it can't be combined with rules for requests");
    }
    if listener.priority.is_some_and(|priority| !(1..=100).contains(&priority)) {
        return refuse("the priority must be from 1 to 100");
    }
    if place.scope.namespace.is_none()
        && listener.envoy_config.kind == Some(EnvoyConfigKind::CiliumEnvoyConfig)
    {
        return refuse(
            "a CiliumClusterwideNetworkPolicy can't name a CiliumEnvoyConfig, which has a namespace",
        );
    }
    Ok(())
}

fn l7(
    place: Place<'_>,
    direction: Direction,
    rules: &L7Rules,
    rule: &PortRule,
    ports: &[Port],
    field: &str,
) -> Result<(), Error> {
    let kinds = [
        ("http", rules.http.is_some()),
        ("kafka", rules.kafka.is_some()),
        ("dns", rules.dns.is_some()),
        ("l7proto", rules.l7proto.is_some()),
    ];
    let given: Vec<&str> =
        kinds.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    if given.len() > 1 {
        return Err(Error::new(
            field,
            format!("only one kind of rules is possible, not {}", given.join(" and ")),
        ));
    }
    if rules.l7.is_some() && rules.l7proto.is_none() {
        return Err(Error::new(format_args!("{field}.l7"), "it needs l7proto"));
    }
    let Some(kind) = given.first() else { return Ok(()) };
    let field = format!("{field}.{kind}");
    if !place.scope.config.l7_proxy {
        return Err(Error::new(field, "it needs enable-l7-proxy, which is off"));
    }
    if place.of_nodes && (direction == Direction::Ingress || *kind != "dns") {
        return Err(Error::new(
            field,
            "rules for nodes can look into DNS requests only, and for egress only",
        ));
    }
    let whole = ports.iter().any(|port| matches!(port, Port::Range { first: 0, .. }));
    if *kind == "dns" {
        if direction == Direction::Ingress {
            return Err(Error::new(field, "rules for DNS are possible for egress only"));
        }
        if rule.ports.is_empty() {
            return Err(Error::new(field, "rules for DNS need ports"));
        }
        if whole {
            return Err(Error::new(field, "it can't be combined with port 0"));
        }
        if ports.iter().any(|port| matches!(port, Port::Range { first, last, .. } if last > first))
        {
            return Err(Error::new(field, "rules for DNS can't be combined with endPort"));
        }
        for (index, name) in rules.dns.iter().flatten().enumerate() {
            check_name(name, &format!("{field}[{index}]"))?;
        }
        return Ok(());
    }
    if rule.ports.iter().any(|port| port.protocol != Some(L4Protocol::Tcp)) {
        return Err(Error::new(field, "every port needs protocol TCP"));
    }
    if whole {
        return Err(Error::new(field, "it can't be combined with port 0"));
    }
    Ok(())
}

/// Checks a DNS name or pattern.
pub(crate) fn check_name(name: &FqdnSelector, field: &str) -> Result<(), Error> {
    let allowed = |text: &str, star: bool| {
        text.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b) || (star && b == b'*'))
    };
    match (&name.match_name, &name.match_pattern) {
        (Some(_), Some(_)) => {
            Err(Error::new(field, "matchName and matchPattern exclude each other"))
        }
        (None, None) => Err(Error::new(field, "one of matchName and matchPattern is required")),
        (Some(text), None) if text.is_empty() || !allowed(text, false) => Err(Error::new(
            format_args!("{field}.matchName"),
            format!(
                "{text:?} is not a name: letters, digits, dashes, underscores and dots are possible"
            ),
        )),
        (None, Some(text)) if text.is_empty() || text.len() > 255 || !allowed(text, true) => {
            Err(Error::new(
                format_args!("{field}.matchPattern"),
                format!(
                    "{text:?} is not a pattern: at most 255 letters, digits, dashes, underscores, dots and stars"
                ),
            ))
        }
        _ => Ok(()),
    }
}
