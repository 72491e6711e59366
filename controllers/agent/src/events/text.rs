//! Writes events as lines, as `cilium monitor` does, so that habits and greps carry over.

use std::sync::Arc;

use cilia_crds::NumericIdentity;
use cilia_loader::event::{Matched, TraceReason, VerdictEvent};
use cilia_loader::{Direction, Event as Datapath};
use cilia_policy::Origin;

use super::Event;

/// The event's line; with numbers, or with the names of identities that have one. Behind what Cilium says of a
/// verdict come the rules that made it.
pub fn line(event: &Event, numeric: bool, rules: &[Arc<Origin>]) -> String {
    let identity = |number: u32| match NumericIdentity(number).reserved_name() {
        Some(name) if !numeric => name.to_owned(),
        _ => number.to_string(),
    };
    let packet = event.summary.as_ref().map_or_else(|| other(&event.what), ToString::to_string);
    match &event.what {
        Datapath::Drop(drop) => format!(
            "xx drop ({}) flow {:#x} to endpoint {}, ifindex {}, file unknown(0):0, , identity {}->{}: {packet}",
            drop.reason_text(),
            drop.packet.hash,
            drop.destination_endpoint,
            drop.ifindex,
            identity(drop.source_identity),
            identity(drop.destination_identity),
        ),
        Datapath::Trace(trace) => {
            let arrow = match trace.point {
                0 => format!("-> endpoint {}", trace.destination_endpoint),
                1 => "-> proxy".to_owned(),
                2 => "-> host from".to_owned(),
                3 => "-> stack".to_owned(),
                4 => "-> overlay".to_owned(),
                11 => "-> network".to_owned(),
                13 => "-> crypto".to_owned(),
                5 => format!("<- endpoint {}", trace.packet.endpoint),
                6 => "<- proxy".to_owned(),
                7 => "<- host".to_owned(),
                8 => "<- stack".to_owned(),
                9 => "<- overlay".to_owned(),
                10 => "<- network".to_owned(),
                12 => "<- crypto".to_owned(),
                other => format!("?? {other}"),
            };
            let none = if trace.packet.ipv6 { "::" } else { "0.0.0.0" };
            let original = trace.original_source.map(|address| address.to_string());
            let original = original.as_deref().unwrap_or(none);
            format!(
                "{arrow} flow {:#x} , identity {}->{} state {} ifindex {} orig-ip {original}: {packet}",
                trace.packet.hash,
                identity(trace.source_identity),
                identity(trace.destination_identity),
                state(trace.reason),
                device(trace.ifindex),
            )
        }
        Datapath::Verdict(verdict) => {
            let direction =
                if verdict.direction == Direction::Ingress { "ingress" } else { "egress" };
            let action = action(verdict);
            format!(
                "Policy verdict log: flow {:#x} local EP ID {}, remote ID {}, proto {}, {direction}, action {action}, \
                 auth: disabled, match {}, {packet}{}",
                verdict.packet.hash,
                verdict.packet.endpoint,
                identity(verdict.remote_identity),
                verdict.proto,
                matched(verdict.matched),
                named(rules),
            )
        }
    }
}

/// The device's name; its number if it is gone.
pub fn device(ifindex: u32) -> String {
    let name = nix::net::if_::if_indextoname(ifindex).ok();
    name.and_then(|name| name.into_string().ok()).unwrap_or_else(|| ifindex.to_string())
}

/// What became of a packet, by Cilium's name.
pub fn action(verdict: &VerdictEvent) -> &'static str {
    match (verdict.denied, verdict.audited) {
        (_, true) => "audit",
        (Some(_), false) => "deny",
        (None, false) => "allow",
    }
}

/// A packet that is not IP: who sends it to whom on the wire.
fn other(event: &Datapath) -> String {
    let packet = match event {
        Datapath::Drop(event) => &event.packet,
        Datapath::Trace(event) => &event.packet,
        Datapath::Verdict(event) => &event.packet,
    };
    let Some(head) = packet.bytes.get(..14) else { return "[unknown]".to_owned() };
    let mac = |bytes: &[u8]| {
        let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        digits.join(":")
    };
    let kind = match u16::from_be_bytes([head[12], head[13]]) {
        0x0800 => "IPv4".to_owned(),
        0x0806 => "ARP".to_owned(),
        0x86dd => "IPv6".to_owned(),
        other => format!("{other:#06x}"),
    };
    format!("{} -> {} {kind}", mac(&head[6..12]), mac(&head[..6]))
}

/// The rules, each with what it wants logged.
fn named(rules: &[Arc<Origin>]) -> String {
    let one = |rule: &Arc<Origin>| {
        let log = rule.log.as_ref().map(|log| format!(" log {log:?}")).unwrap_or_default();
        format!("; {} {}{log}", rule.policy, rule.field)
    };
    rules.iter().map(one).collect()
}

/// The state of a connection, by Cilium's name.
fn state(reason: TraceReason) -> &'static str {
    match reason {
        TraceReason::New => "new",
        TraceReason::Established => "established",
        TraceReason::Reply => "reply",
        TraceReason::Related => "related",
        TraceReason::Unknown => "unknown",
    }
}

/// The kind of rule that matched, by Cilium's name.
pub fn matched(matched: Matched) -> &'static str {
    match matched {
        Matched::Nothing => "none",
        Matched::Identity => "L3-Only",
        Matched::IdentityAndPort => "L3-L4",
        Matched::Port => "L4-Only",
        Matched::All => "all",
        Matched::IdentityAndProtocol => "L3-Proto",
        Matched::Protocol => "Proto-Only",
    }
}
