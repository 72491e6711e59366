//! Decides which events a listener wants.

use std::sync::Arc;

use cilia_loader::{Direction, Event as Datapath};

use super::super::query::{Pairs, flag, numbers, words};
use crate::endpoint::{Endpoints, LocalEndpoint};
use crate::events::Event;

/// Which events are wanted. Empty lists want all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    types: Vec<String>,
    from: Vec<u32>,
    to: Vec<u32>,
    related: Vec<u32>,
    /// `namespace/name`, or a name in any namespace.
    pods: Vec<String>,
    identities: Vec<u32>,
    verdicts: Vec<Verdict>,
    ports: Vec<u16>,
    /// Identities as numbers in the line.
    pub(super) numeric: bool,
    /// With the packet's first bytes.
    pub(super) bytes: bool,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Forwarded,
    Dropped,
    Audit,
}

/// The field's types of events; of some there are none here.
const TYPES: [&str; 8] =
    ["agent", "capture", "debug", "drop", "l7", "policy-verdict", "trace", "trace-sock"];

/// The protocols that have ports: TCP, UDP, SCTP.
const PORTED: [u8; 3] = [6, 17, 132];

/// What a filter looks at.
struct Facts {
    kind: &'static str,
    from: u32,
    to: u32,
    identities: [u32; 2],
    verdict: Verdict,
    /// The port that policy was asked about, where the packet does not say it.
    port: Option<u16>,
}

impl Wanted {
    pub(super) fn parse(query: &Pairs) -> Result<Self, String> {
        let mut wanted = Self::default();
        for (name, value) in query {
            match name.as_str() {
                "type" => {
                    let types = words(value)?;
                    if let Some(odd) = types.iter().find(|kind| !TYPES.contains(&kind.as_str())) {
                        return Err(format!("type: {odd:?} is none of {}", TYPES.join(", ")));
                    }
                    wanted.types.extend(types);
                }
                "from" => wanted.from.extend(numbers::<u32>(name, value)?),
                "to" => wanted.to.extend(numbers::<u32>(name, value)?),
                "related-to" => wanted.related.extend(numbers::<u32>(name, value)?),
                "pod" => wanted.pods.extend(words(value)?),
                "identity" => wanted.identities.extend(numbers::<u32>(name, value)?),
                "verdict" => {
                    for word in words(value)? {
                        wanted.verdicts.push(match word.as_str() {
                            "forwarded" => Verdict::Forwarded,
                            "dropped" => Verdict::Dropped,
                            "audit" => Verdict::Audit,
                            other => {
                                return Err(format!(
                                    "verdict: {other:?} is none of forwarded, dropped, audit"
                                ));
                            }
                        });
                    }
                }
                "port" => wanted.ports.extend(numbers::<u16>(name, value)?),
                "numeric" => wanted.numeric = flag(name, value)?,
                "bytes" => wanted.bytes = flag(name, value)?,
                other => return Err(format!("{other:?} is no filter of events")),
            }
        }
        Ok(wanted)
    }

    pub(super) fn wants(&self, event: &Event, endpoints: &Endpoints) -> bool {
        let facts = facts(event);
        let either = |list: &[u32], ends: [u32; 2]| {
            list.is_empty() || ends.iter().any(|end| list.contains(end))
        };
        let port = |port: u16| self.ports.contains(&port);
        (self.types.is_empty() || self.types.iter().any(|name| name == facts.kind))
            && (self.verdicts.is_empty() || self.verdicts.contains(&facts.verdict))
            && either(&self.from, [facts.from; 2])
            && either(&self.to, [facts.to; 2])
            && either(&self.related, [facts.from, facts.to])
            && (either(&self.identities, facts.identities)
                || [facts.from, facts.to].iter().any(|end| self.has_identity(*end, endpoints)))
            && (self.ports.is_empty()
                || facts.port.is_some_and(port)
                || event.summary.as_ref().is_some_and(|packet| {
                    port(packet.source_port) || port(packet.destination_port)
                }))
            && (self.pods.is_empty()
                || self.is_pod(facts.from, endpoints)
                || self.is_pod(facts.to, endpoints))
    }

    /// Whether an endpoint has one of the identities: events tell the other side's, not always its own.
    fn has_identity(&self, endpoint: u32, endpoints: &Endpoints) -> bool {
        let of = find(endpoint, endpoints).and_then(|endpoint| endpoint.identity);
        of.is_some_and(|identity| self.identities.contains(&identity.0))
    }

    fn is_pod(&self, endpoint: u32, endpoints: &Endpoints) -> bool {
        find(endpoint, endpoints).is_some_and(|endpoint| {
            self.pods.iter().any(|pod| match pod.split_once('/') {
                Some((namespace, name)) => namespace == endpoint.namespace && name == endpoint.pod,
                None => *pod == endpoint.pod,
            })
        })
    }
}

fn find(endpoint: u32, endpoints: &Endpoints) -> Option<Arc<LocalEndpoint>> {
    u16::try_from(endpoint).ok().and_then(|id| endpoints.get(id))
}

fn facts(event: &Event) -> Facts {
    match &event.what {
        Datapath::Drop(drop) => Facts {
            kind: "drop",
            from: drop.packet.endpoint.into(),
            to: drop.destination_endpoint,
            identities: [drop.source_identity, drop.destination_identity],
            verdict: Verdict::Dropped,
            port: None,
        },
        Datapath::Trace(trace) => Facts {
            kind: "trace",
            from: trace.packet.endpoint.into(),
            to: trace.destination_endpoint.into(),
            identities: [trace.source_identity, trace.destination_identity],
            verdict: Verdict::Forwarded,
            port: None,
        },
        Datapath::Verdict(verdict) => {
            let endpoint = u32::from(verdict.packet.endpoint);
            let ingress = verdict.direction == Direction::Ingress;
            Facts {
                kind: "policy-verdict",
                from: endpoint,
                to: if ingress { endpoint } else { 0 },
                identities: [verdict.remote_identity; 2],
                verdict: match (verdict.denied, verdict.audited) {
                    (_, true) => Verdict::Audit,
                    (Some(_), false) => Verdict::Dropped,
                    (None, false) => Verdict::Forwarded,
                },
                port: PORTED.contains(&verdict.proto).then_some(verdict.port),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use cilia_loader::event::{DropEvent, Matched, Packet, VerdictEvent};
    use cilia_loader::{Direction, Event as Datapath};

    use super::{Pairs, Verdict, Wanted};
    use crate::endpoint::Endpoints;
    use crate::endpoint::testing::{endpoint, registry};
    use crate::events::{Event, Summary};

    fn query(text: &str) -> Pairs {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn queries_name_what_is_wanted() {
        let wanted = query(
            "type=drop&type=trace&from=12,13&related-to=7&verdict=dropped,audit&numeric=true",
        );
        let wanted = Wanted::parse(&wanted).expect("a query");
        assert_eq!(wanted.types, ["drop", "trace"]);
        assert_eq!((&wanted.from, &wanted.related), (&vec![12, 13], &vec![7]));
        assert_eq!(wanted.verdicts, [Verdict::Dropped, Verdict::Audit]);
        assert!(wanted.numeric);
        assert_eq!(Wanted::parse(&query("")), Ok(Wanted::default()));
        for bad in
            ["type=recorder", "from=web", "verdict=maybe", "port=70000", "colour=red", "bytes=1"]
        {
            assert!(Wanted::parse(&query(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn filters_are_all_to_be_met() {
        let packet = Packet { endpoint: 7, hash: 0, length: 60, ipv6: false, bytes: Vec::new() };
        let summary = Summary {
            source: [10, 0, 0, 1].into(),
            source_port: 4711,
            destination: [10, 0, 0, 2].into(),
            destination_port: 80,
            protocol: 6,
            flags: 2,
            fragment: false,
        };
        let event = Event {
            time: SystemTime::now(),
            what: Datapath::Drop(DropEvent {
                packet,
                reason: 133,
                ext_error: 0,
                source_identity: 100,
                destination_identity: 200,
                destination_endpoint: 8,
                ifindex: 1,
            }),
            summary: Some(summary),
        };
        let cases = [
            ("", true),
            ("type=drop", true),
            ("type=trace,drop", true),
            ("type=trace", false),
            ("from=7", true),
            ("from=8", false),
            ("to=8", true),
            ("related-to=8,9", true),
            ("related-to=9", false),
            ("identity=200", true),
            ("identity=300", false),
            ("verdict=dropped", true),
            ("verdict=forwarded,audit", false),
            ("port=80", true),
            ("port=4711", true),
            ("port=443", false),
            ("pod=default/web", false),
            ("type=drop&port=443", false),
        ];
        for (text, want) in cases {
            let wanted = Wanted::parse(&query(text)).expect(text);
            assert_eq!(wanted.wants(&event, &Endpoints::default()), want, "{text}");
        }
    }

    #[test]
    fn verdicts_are_found_by_both_sides() {
        let packet = Packet { endpoint: 7, hash: 0, length: 60, ipv6: false, bytes: Vec::new() };
        let verdict = VerdictEvent {
            packet,
            remote_identity: 4711,
            denied: None,
            direction: Direction::Ingress,
            port: 80,
            proto: 6,
            matched: Matched::Identity,
            audited: false,
            cookie: 0,
        };
        let event =
            Event { time: SystemTime::now(), what: Datapath::Verdict(verdict), summary: None };
        let endpoints = registry(vec![endpoint(7, "c1", "web")]);
        let cases = [
            ("identity=4711", true),
            ("identity=1234", true),
            ("identity=99", false),
            ("pod=default/web", true),
            ("pod=web", true),
            ("pod=shop/web", false),
            ("port=80", true),
            ("port=81", false),
            ("verdict=forwarded&type=policy-verdict", true),
            ("to=7", true),
        ];
        for (text, want) in cases {
            let wanted = Wanted::parse(&query(text)).expect(text);
            assert_eq!(wanted.wants(&event, &endpoints), want, "{text}");
        }
    }
}
