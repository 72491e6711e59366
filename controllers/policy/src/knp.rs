//! Reads Kubernetes' `NetworkPolicy` as Kubernetes means it: `ipBlock` means pods, too.

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::cnp::{Parsed, address_range};
use crate::config::Config;
use crate::error::Error;
use crate::l4;
use crate::rule::{Action, Item, Peer, Peers, Port, Ports, Rule, Section};
use crate::selector::{CLUSTER, K8S, Key, NAMESPACE, NAMESPACE_LABELS, Requirement, Selector};
use crate::translate;

/// The rule of a `NetworkPolicy`.
pub fn kubernetes(policy: &NetworkPolicy, config: &Config) -> Result<Parsed, Error> {
    let namespace = policy.metadata.namespace.as_deref().unwrap_or("default");
    // Without one it means what an empty one means, to Kubernetes: nothing may come to any pod.
    let spec = policy.spec.clone().unwrap_or_default();
    let written = spec
        .pod_selector
        .as_ref()
        .map(|selector| translate::kubernetes(selector, "", "spec.podSelector"));
    let (subject, _) =
        translate::subject(written.transpose()?.unwrap_or_default(), Some(namespace));
    let (ingress, egress) =
        (spec.ingress.as_deref().unwrap_or_default(), spec.egress.as_deref().unwrap_or_default());
    // Without types: ingress always, egress if there are rules for it.
    let types = spec.policy_types.as_deref().filter(|types| !types.is_empty());
    let has =
        |name: &str, default: bool| types.map_or(default, |types| types.iter().any(|t| t == name));
    let place = Place { namespace, config };
    let mut rule = Rule { subject, ..Rule::default() };
    if has("Ingress", true) {
        let items = ingress.iter().enumerate().map(|(index, one)| {
            let field = format!("spec.ingress[{index}]");
            place.item(one.from.as_deref(), one.ports.as_deref(), &field, "from")
        });
        rule.ingress = Some(section(items.collect::<Result<_, _>>()?));
    }
    if has("Egress", !egress.is_empty()) {
        let items = egress.iter().enumerate().map(|(index, one)| {
            let field = format!("spec.egress[{index}]");
            place.item(one.to.as_deref(), one.ports.as_deref(), &field, "to")
        });
        rule.egress = Some(section(items.collect::<Result<_, _>>()?));
    }
    Ok(Parsed { rules: vec![rule], notes: Vec::new() })
}

fn section(items: Vec<Item>) -> Section {
    Section { default_deny: true, items, ..Section::default() }
}

#[derive(Clone, Copy)]
struct Place<'a> {
    namespace: &'a str,
    config: &'a Config,
}

impl Place<'_> {
    /// Absent and empty lists of peers mean everybody, of ports every port.
    fn item(
        self,
        peers: Option<&[NetworkPolicyPeer]>,
        ports: Option<&[NetworkPolicyPort]>,
        field: &str,
        side: &str,
    ) -> Result<Item, Error> {
        let peers = match peers.unwrap_or_default() {
            [] => Peers::Any,
            peers => {
                let read = peers
                    .iter()
                    .enumerate()
                    .map(|(index, one)| self.peer(one, &format!("{field}.{side}[{index}]")));
                Peers::Of(read.filter_map(Result::transpose).collect::<Result<_, _>>()?)
            }
        };
        let ports = match ports.unwrap_or_default() {
            [] => Ports::Any,
            ports => {
                let read = ports
                    .iter()
                    .enumerate()
                    .map(|(index, one)| port(one, &format!("{field}.ports[{index}]")));
                Ports::Of(read.collect::<Result<_, _>>()?)
            }
        };
        Ok(Item { field: field.into(), action: Action::Allow, peers, ports })
    }

    /// Who is meant; an address range alone means addresses only.
    fn peer(self, peer: &NetworkPolicyPeer, field: &str) -> Result<Option<Peer>, Error> {
        if let Some(block) = &peer.ip_block {
            return ip_block(block, &format!("{field}.ipBlock")).map(Some);
        }
        let namespaces = peer.namespace_selector.as_ref();
        let namespaces = namespaces
            .map(|selector| {
                translate::kubernetes(
                    selector,
                    NAMESPACE_LABELS,
                    &format!("{field}.namespaceSelector"),
                )
            })
            .transpose()?;
        let pods = peer.pod_selector.as_ref();
        let pods = pods
            .map(|selector| translate::kubernetes(selector, "", &format!("{field}.podSelector")))
            .transpose()?;
        let own = || Requirement::equals(Key::new(K8S, NAMESPACE), self.namespace);
        let any = || Requirement::exists(Key::new(K8S, NAMESPACE));
        let mut requirements = match (namespaces, pods) {
            (None, None) => return Ok(None),
            (None, Some(pods)) => [vec![own()], pods].concat(),
            (Some(namespaces), pods) => {
                [vec![any()], namespaces, pods.unwrap_or_default()].concat()
            }
        };
        if self.config.local_cluster {
            requirements.push(Requirement::equals(Key::new(K8S, CLUSTER), &self.config.cluster));
        }
        Ok(Some(Peer::Endpoints(Selector::new(requirements))))
    }
}

fn ip_block(block: &IPBlock, field: &str) -> Result<Peer, Error> {
    let prefix = address_range(&block.cidr, &format!("{field}.cidr"))?;
    let except = block.except.iter().flatten().enumerate().map(|(index, text)| {
        let field = format!("{field}.except[{index}]");
        let except = address_range(text, &field)?;
        if !prefix.contains(&except) {
            return Err(Error::new(field, format!("{text} is not inside of {prefix}")));
        }
        Ok(except)
    });
    Ok(Peer::Block { prefix, except: except.collect::<Result<_, _>>()? })
}

fn port(port: &NetworkPolicyPort, field: &str) -> Result<Port, Error> {
    let proto = match port.protocol.as_deref().unwrap_or("TCP") {
        "TCP" => l4::protocol::TCP,
        "UDP" => l4::protocol::UDP,
        "SCTP" => l4::protocol::SCTP,
        other => {
            return Err(Error::new(
                format_args!("{field}.protocol"),
                format!("{other:?} is not one of TCP, UDP, SCTP"),
            ));
        }
    };
    let number = |number: i32, name: &str| {
        u16::try_from(number).map_err(|_| {
            Error::new(
                format_args!("{field}.{name}"),
                format!("{number} is not between 0 and 65535"),
            )
        })
    };
    match &port.port {
        None => Ok(Port::Range { proto, first: 0, last: 0 }),
        Some(IntOrString::Int(first)) => {
            let first = number(*first, "port")?;
            let last =
                port.end_port.map(|end| number(end, "endPort")).transpose()?.unwrap_or(first);
            Ok(Port::Range { proto, first, last: last.max(first) })
        }
        Some(IntOrString::String(name)) => {
            l4::port_or_name(proto, name, None, &format!("{field}.port"))
        }
    }
}
