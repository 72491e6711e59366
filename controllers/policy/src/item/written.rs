//! The items of the four sections of a rule, in one shape.

use cilia_crds::LabelSelector;
use cilia_crds::policy::{
    Authentication, CidrRule, EgressDenyRule, EgressRule, Entity, FqdnSelector, IcmpRule,
    IngressDenyRule, IngressRule, PeerGroup, ServiceRef,
};

use crate::rule::Action;
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
    pub(super) groups: Option<&'a Vec<PeerGroup>>,
    pub(super) services: Option<&'a Vec<ServiceRef>>,
    pub(super) fqdns: Option<&'a Vec<FqdnSelector>>,
    pub(super) ports: Option<PortsOf<'a>>,
    pub(super) icmps: Option<&'a Vec<IcmpRule>>,
    pub(super) authentication: Option<&'a Authentication>,
}

/// Items of the sections of one direction, whose kinds of peer have the same names; and what a kind
/// of item has beyond them.
macro_rules! written {
    ($peers:tt $($rule:ident is $action:ident with [$($more:ident: $name:ident),*];)+) => {
        $(written!(@from $rule $action $peers [$($more: $name),*]);)+
    };
    (@from $rule:ident $action:ident [$($peer:ident: $of:ident),*] [$($more:ident: $name:ident),*]) => {
        impl<'a> From<&'a $rule> for Written<'a> {
            fn from(rule: &'a $rule) -> Self {
                let of_all = Self {
                    deny: matches!(Action::$action, Action::Deny),
                    ports: rule.to_ports.as_deref().map(PortsOf::$action),
                    icmps: rule.icmps.as_ref(),
                    ..Self::default()
                };
                Self {
                    $($peer: rule.$of.as_ref(),)*
                    $($more: rule.$name.as_ref(),)*
                    ..of_all
                }
            }
        }
    };
}

written! {
    [endpoints: from_endpoints, requires: from_requires, cidr: from_cidr, cidr_set: from_cidr_set,
     entities: from_entities, nodes: from_nodes, groups: from_groups]
    IngressRule is Allow with [authentication: authentication];
    IngressDenyRule is Deny with [];
}

written! {
    [endpoints: to_endpoints, requires: to_requires, cidr: to_cidr, cidr_set: to_cidr_set,
     entities: to_entities, nodes: to_nodes, groups: to_groups]
    EgressRule is Allow with [services: to_services, fqdns: to_fqdns, authentication: authentication];
    EgressDenyRule is Deny with [services: to_services];
}
