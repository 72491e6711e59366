//! Reads `CiliumNetworkPolicy` and `CiliumClusterwideNetworkPolicy`: validation and
//! the rules that follow.
//!
//! What is understood but not built yet is noted, and closed: an allow allows nothing through it,
//! a deny denies everybody.

use cilia_crds::policy::PolicyRule;
use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use ipnet::IpNet;

use crate::config::Config;
use crate::error::{Error, Note};
use crate::item::{Written, read};
use crate::rule::{Direction, Rule, Section, Tier};
use crate::selector::RESERVED;
use crate::translate::{self, Scope};

/// A policy that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parsed {
    /// What it says.
    pub rules: Vec<Rule>,
    /// What its author should know.
    pub notes: Vec<Note>,
}

/// The rules of a `CiliumNetworkPolicy`.
pub fn cilium(policy: &CiliumNetworkPolicy, config: &Config) -> Result<Parsed, Error> {
    let namespace = policy.metadata.namespace.as_deref().unwrap_or("default");
    rules(policy.spec.as_ref(), policy.specs.as_deref(), Some(namespace), config)
}

/// The rules of a `CiliumClusterwideNetworkPolicy`.
pub fn clusterwide(
    policy: &CiliumClusterwideNetworkPolicy,
    config: &Config,
) -> Result<Parsed, Error> {
    rules(policy.spec.as_ref(), policy.specs.as_deref(), None, config)
}

fn rules(
    spec: Option<&PolicyRule>,
    specs: Option<&[PolicyRule]>,
    namespace: Option<&str>,
    config: &Config,
) -> Result<Parsed, Error> {
    let specs = specs.unwrap_or_default();
    if spec.is_none() && specs.is_empty() {
        return Err(Error::new(
            "spec",
            "the policy has no rule: give one in spec, or several in specs",
        ));
    }
    let mut parsed = Parsed::default();
    let numbered = specs.iter().enumerate().map(|(index, rule)| (format!("specs[{index}]"), rule));
    for (field, written) in spec.map(|rule| ("spec".to_owned(), rule)).into_iter().chain(numbered) {
        parsed.rules.push(rule(written, namespace, config, &field, &mut parsed.notes)?);
    }
    Ok(parsed)
}

fn rule(
    written: &PolicyRule,
    namespace: Option<&str>,
    config: &Config,
    field: &str,
    notes: &mut Vec<Note>,
) -> Result<Rule, Error> {
    let (selector, name) = match (&written.endpoint_selector, &written.node_selector) {
        (Some(selector), None) => (selector, "endpointSelector"),
        (None, Some(_)) if namespace.is_some() => {
            return Err(Error::new(
                format_args!("{field}.nodeSelector"),
                "only a CiliumClusterwideNetworkPolicy may select nodes",
            ));
        }
        (None, Some(selector)) => (selector, "nodeSelector"),
        (Some(_), Some(_)) => {
            let fault = "endpointSelector and nodeSelector exclude each other: write a rule for each in specs";
            return Err(Error::new(field, fault));
        }
        (None, None) => {
            let fault = "one of endpointSelector and nodeSelector is required; endpointSelector: {} is everybody";
            return Err(Error::new(field, fault));
        }
    };
    let of_nodes = name == "nodeSelector";
    let requirements = translate::requirements(selector, &format!("{field}.{name}"))?;
    let of_init = requirements.iter().any(|requirement| {
        &*requirement.key.source == RESERVED && &*requirement.key.name == "init"
    });
    let (subject, overridden) = translate::subject(requirements, namespace);
    if overridden {
        let text =
            "a CiliumNetworkPolicy concerns its own namespace only: the other one is ignored"
                .to_owned();
        notes.push(Note { field: format!("{field}.{name}"), text });
    }
    let log = written.log.as_ref().and_then(|log| log.value.as_deref()).unwrap_or_default();
    if log.chars().count() > 32 || log.chars().any(char::is_control) {
        return Err(Error::new(
            format_args!("{field}.log.value"),
            format!(
                "{log:?} is too long or not printable: at most 32 printable characters are possible"
            ),
        ));
    }
    let scope = Scope { namespace, of_init, config };
    let place = Place { scope, of_nodes };
    let ingress = written.ingress.iter().flatten().map(Written::from).collect();
    let ingress_deny = written.ingress_deny.iter().flatten().map(Written::from).collect();
    let egress = written.egress.iter().flatten().map(Written::from).collect();
    let egress_deny = written.egress_deny.iter().flatten().map(Written::from).collect();
    let wants = written.enable_default_deny.unwrap_or_default();
    let ingress =
        place.section(Direction::Ingress, &[ingress, ingress_deny], wants.ingress, field, notes)?;
    let egress =
        place.section(Direction::Egress, &[egress, egress_deny], wants.egress, field, notes)?;
    if ingress.1 + egress.1 == 0 {
        return Err(Error::new(
            field,
            "at least one of ingress, ingressDeny, egress and egressDeny must have an item; \
             an empty one, as in ingress: [{}], closes its direction",
        ));
    }
    if of_nodes && !config.host_firewall {
        notes.push(Note {
            field: format!("{field}.{name}"),
            text: "rules for nodes have no effect: enable-host-firewall is off".to_owned(),
        });
    }
    let log = (!log.is_empty()).then(|| log.into());
    let (ingress, egress) = (ingress.0, egress.0);
    Ok(Rule { subject, of_nodes, tier: Tier::Network, log, ingress, egress })
}

/// Where a rule is, as far as the reading of its items is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) scope: Scope<'a>,
    /// The rule is for nodes.
    pub(crate) of_nodes: bool,
}

impl Place<'_> {
    /// One direction of a rule, and how many items it has.
    fn section(
        self,
        direction: Direction,
        written: &[Vec<Written<'_>>; 2],
        wants: Option<bool>,
        field: &str,
        notes: &mut Vec<Note>,
    ) -> Result<(Option<Section>, usize), Error> {
        let count = written[0].len() + written[1].len();
        let names = match direction {
            Direction::Ingress => ["ingress", "ingressDeny"],
            Direction::Egress => ["egress", "egressDeny"],
        };
        let wants = wants.filter(|_| self.scope.config.non_default_deny);
        // As with Cilium only what has items can close.
        if count == 0 {
            if wants == Some(true) {
                let [allows, denies] = names;
                let text = format!(
                    "it has no effect without {allows} and {denies}: write {allows}: [{{}}] to close the direction"
                );
                notes.push(Note { field: format!("{field}.enableDefaultDeny.{allows}"), text });
            }
            return Ok((None, 0));
        }
        let mut section = Section { default_deny: wants.unwrap_or(true), ..Section::default() };
        for (items, name) in written.iter().zip(names) {
            for (index, item) in items.iter().enumerate() {
                read(
                    self,
                    direction,
                    item,
                    &format!("{field}.{name}[{index}]"),
                    &mut section,
                    notes,
                )?;
            }
        }
        Ok((Some(section), count))
    }
}

/// A prefix; an address alone is none.
pub(crate) fn prefix(text: &str, field: &str) -> Result<IpNet, Error> {
    match (address_range(text, field)?, text.contains('/')) {
        (prefix, true) => Ok(prefix),
        (address, false) => {
            Err(Error::new(field, format!("{text:?} is not a prefix: write {address}")))
        }
    }
}

/// A prefix, or an address that stands for itself alone.
pub(crate) fn address_range(text: &str, field: &str) -> Result<IpNet, Error> {
    let prefix = text.parse::<IpNet>().map(|prefix| prefix.trunc());
    prefix.or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from)).map_err(|_| {
        Error::new(
            field,
            format!("{text:?} is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address"),
        )
    })
}
