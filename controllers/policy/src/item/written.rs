//! The items of the four sections of a rule, in one shape.

use cilia_crds::LabelSelector;
use cilia_crds::policy::{
    Authentication, CidrRule, EgressDenyRule, EgressRule, Entity, FqdnSelector, IcmpRule,
    IngressDenyRule, IngressRule, ServiceRef,
};

use crate::toports::PortsOf;

/// An item of one of the four sections, in one shape.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Written<'a> {
    pub(super) deny: bool,
    pub(super) endpoints: Option<&'a Vec<LabelSelector>>,
    pub(super) requires: Option<&'a Vec<LabelSelector>>,
    pub(super) cidr: Option<&'a Vec<String>>,
    pub(super) cidr_set: Option<&'a Vec<CidrRule>>,
    pub(super) entities: Option<&'a Vec<Entity>>,
    pub(super) nodes: Option<&'a Vec<LabelSelector>>,
    pub(super) groups: Option<usize>,
    pub(super) services: Option<&'a Vec<ServiceRef>>,
    pub(super) fqdns: Option<&'a Vec<FqdnSelector>>,
    pub(super) ports: Option<PortsOf<'a>>,
    pub(super) icmps: Option<&'a Vec<IcmpRule>>,
    pub(super) authentication: Option<Authentication>,
}

/// The parts that have the same name up to `from` or `to`.
macro_rules! written {
    ($rule:ident, $deny:literal, $ports:path, $endpoints:ident, $requires:ident, $cidr:ident, $set:ident, $entities:ident, $nodes:ident, $groups:ident) => {
        Written {
            deny: $deny,
            endpoints: $rule.$endpoints.as_ref(),
            requires: $rule.$requires.as_ref(),
            cidr: $rule.$cidr.as_ref(),
            cidr_set: $rule.$set.as_ref(),
            entities: $rule.$entities.as_ref(),
            nodes: $rule.$nodes.as_ref(),
            groups: $rule.$groups.as_ref().map(Vec::len),
            ports: $rule.to_ports.as_ref().map(|ports| $ports(ports)),
            icmps: $rule.icmps.as_ref(),
            ..Written::default()
        }
    };
}

impl<'a> From<&'a IngressRule> for Written<'a> {
    fn from(rule: &'a IngressRule) -> Self {
        let written = written!(
            rule,
            false,
            PortsOf::Allow,
            from_endpoints,
            from_requires,
            from_cidr,
            from_cidr_set,
            from_entities,
            from_nodes,
            from_groups
        );
        Self { authentication: rule.authentication, ..written }
    }
}

impl<'a> From<&'a IngressDenyRule> for Written<'a> {
    fn from(rule: &'a IngressDenyRule) -> Self {
        written!(
            rule,
            true,
            PortsOf::Deny,
            from_endpoints,
            from_requires,
            from_cidr,
            from_cidr_set,
            from_entities,
            from_nodes,
            from_groups
        )
    }
}

impl<'a> From<&'a EgressRule> for Written<'a> {
    fn from(rule: &'a EgressRule) -> Self {
        let written = written!(
            rule,
            false,
            PortsOf::Allow,
            to_endpoints,
            to_requires,
            to_cidr,
            to_cidr_set,
            to_entities,
            to_nodes,
            to_groups
        );
        Self {
            services: rule.to_services.as_ref(),
            fqdns: rule.to_fqdns.as_ref(),
            authentication: rule.authentication,
            ..written
        }
    }
}

impl<'a> From<&'a EgressDenyRule> for Written<'a> {
    fn from(rule: &'a EgressDenyRule) -> Self {
        let written = written!(
            rule,
            true,
            PortsOf::Deny,
            to_endpoints,
            to_requires,
            to_cidr,
            to_cidr_set,
            to_entities,
            to_nodes,
            to_groups
        );
        Self { services: rule.to_services.as_ref(), ..written }
    }
}
