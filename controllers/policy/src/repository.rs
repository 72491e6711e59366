//! All policies and identities, and the policy map of every local endpoint that follows from them.
//!
//! Changes go in one by one; [`Repository::policy`] answers with the map as it must be now. What a
//! change doesn't touch stays the very same allocation, so a caller sees at once that there is
//! nothing to write. Whatever the order of changes, the maps equal those of a fresh computation.

mod numbers;
mod referred;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};

use crate::blocks;
use crate::cidr::{self, Cidrs};
use crate::compile::Subject;
use crate::config::{Config, Mode};
use crate::directory::Directory;
use crate::map::EndpointPolicy;
use crate::names::{ClusterPorts, NamedPorts};
use crate::nodes::Nodes;
use crate::origin::{Origin, Origins};
use crate::plan::{Context, Plan, Whose};
use crate::rule::{Direction, Peer, PolicyId, Rule};
use crate::selector::{Interned, K8S, NAMESPACE};
use crate::selectors::{Families, Member, SelectorId, Selectors, matches};

pub use referred::References;

/// Policies, identities, and what follows.
#[derive(Debug, Clone)]
pub struct Repository {
    config: Config,
    revision: u64,
    policies: BTreeMap<PolicyId, Vec<Rule>>,
    interned: Interned,
    by_namespace: HashMap<Arc<str>, BTreeSet<PolicyId>>,
    selectors: Selectors,
    directory: Directory,
    nodes: Nodes,
    origins: Origins,
    /// How many origins there were when the unused ones were last forgotten.
    origins_kept: usize,
    cidrs: Cidrs,
    blocks: Cidrs,
    api_servers: BTreeSet<std::net::IpAddr>,
    names: Arc<ClusterPorts>,
    subjects: HashMap<NumericIdentity, Subject>,
}

impl Repository {
    /// No policies yet, and the reserved identities.
    pub fn new(config: Config) -> Self {
        let mut selectors = Selectors::new(Families::of(&config));
        for (identity, _) in
            NumericIdentity::RESERVED.iter().filter(|(id, _)| *id != NumericIdentity::UNKNOWN)
        {
            if let Some(labels) = identity.reserved_labels() {
                selectors.insert(*identity, Member::new(Arc::new(labels)));
            }
        }
        Self {
            config,
            revision: 1,
            policies: BTreeMap::new(),
            interned: Interned::default(),
            by_namespace: HashMap::new(),
            selectors,
            directory: Directory::default(),
            nodes: Nodes::default(),
            origins: Origins::default(),
            origins_kept: 0,
            cidrs: Cidrs::new(cidr::SCOPE),
            blocks: Cidrs::new(blocks::SCOPE),
            api_servers: BTreeSet::new(),
            names: Arc::default(),
            subjects: HashMap::new(),
        }
    }

    /// Counts the changes of policies; 1 is none.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The policies and their rules.
    pub fn policies(&self) -> &BTreeMap<PolicyId, Vec<Rule>> {
        &self.policies
    }

    /// Puts a policy in the place of the one with the same name. True if it says something else.
    #[expect(clippy::needless_pass_by_value, reason = "the pair goes into the store")]
    pub fn set_policy(&mut self, id: PolicyId, mut rules: Vec<Rule>) -> bool {
        if self.policies.get(&id) == Some(&rules) {
            return false;
        }
        rules.shrink_to_fit();
        for selector in rules.iter_mut().flat_map(Rule::selectors_mut) {
            self.interned.share(selector);
        }
        self.forget_subjects_of(&id.namespace, &rules);
        self.by_namespace.entry(id.namespace.clone()).or_default().insert(id.clone());
        if let Some(old) = self.policies.insert(id.clone(), rules) {
            self.forget_subjects_of(&id.namespace, &old);
        }
        self.revision += 1;
        true
    }

    /// Removes a policy. True if it was there.
    pub fn remove_policy(&mut self, id: &PolicyId) -> bool {
        let Some(old) = self.policies.remove(id) else { return false };
        if let Some(ids) = self.by_namespace.get_mut(&id.namespace) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_namespace.remove(&id.namespace);
            }
        }
        self.forget_subjects_of(&id.namespace, &old);
        self.revision += 1;
        true
    }

    /// Changes when endpoints' traffic is restricted (`enable-policy`). True if it was otherwise before.
    pub fn set_mode(&mut self, mode: Mode) -> bool {
        if std::mem::replace(&mut self.config.mode, mode) == mode {
            return false;
        }
        self.retain_subjects(|_| false);
        self.revision += 1;
        true
    }

    /// Adds an identity, or gives it other labels.
    pub fn set_identity(&mut self, identity: NumericIdentity, labels: Arc<Labels>) {
        self.put(identity, Member::new(labels));
    }

    /// Gives an identity labels and a place; nothing happens if it has them.
    fn put(&mut self, identity: NumericIdentity, member: Member) {
        match self.selectors.member(identity) {
            Some(known) if *known == member => return,
            Some(_) => {
                self.selectors.remove(identity);
                self.forget_subject(identity);
            }
            None => {}
        }
        self.insert(identity, member);
    }

    /// Removes an identity that nobody has any more.
    pub fn remove_identity(&mut self, identity: NumericIdentity) {
        self.forget_subject(identity);
        self.selectors.remove(identity);
        self.update(identity, &[]);
    }

    /// The names that pods of the cluster give their ports.
    pub fn set_named_ports(&mut self, names: Arc<ClusterPorts>) {
        if self.names != names {
            self.names = names;
            self.subjects.values_mut().for_each(|subject| {
                subject.forget_names();
            });
        }
    }

    /// Computes what the rules say of an identity, if that has not been done yet. True if they name prefixes that no rule
    /// of this node named before: maps of others, which name more than those, are others by that.
    pub fn prepare(&mut self, identity: NumericIdentity) -> bool {
        !self.subjects.contains_key(&identity) && self.compile(identity).unwrap_or_default()
    }

    /// The policy map of an endpoint; `None` if its identity isn't known.
    ///
    /// That of [`NumericIdentity::HOST`] is the policy of this node (`nodeSelector`).
    pub fn policy(
        &mut self,
        identity: NumericIdentity,
        ports: &NamedPorts,
    ) -> Option<Arc<EndpointPolicy>> {
        self.prepare(identity);
        let subject = self.subjects.get_mut(&identity)?;
        Some(subject.map(ports, &self.names, &self.selectors, &mut self.origins))
    }

    /// The rules that an entry with this cookie comes from; several, if they say the same. None for
    /// cookie 0, and for those of maps that are long gone.
    pub fn origins(&self, cookie: u32) -> &[Arc<Origin>] {
        self.origins.get(cookie).map_or(&[], |origins| origins)
    }

    /// The names and rules of the policies that select an endpoint.
    pub fn rules_for(&self, labels: &Labels) -> Vec<(&PolicyId, &Rule)> {
        let namespace = labels.get(K8S, NAMESPACE).filter(|namespace| !namespace.is_empty());
        let of = |namespace: &str| self.by_namespace.get(namespace).into_iter().flatten();
        let ids = of("").chain(namespace.into_iter().flat_map(of));
        let rules = ids.flat_map(|id| self.policies[id].iter().map(move |rule| (id, rule)));
        rules.filter(|(_, rule)| !rule.of_nodes && rule.subject.matches(labels)).collect()
    }

    /// The names and rules of the policies that select this node.
    fn rules_for_host(&self) -> Vec<(&PolicyId, &Rule)> {
        let labels = self.nodes.own_labels();
        let ids = self.by_namespace.get("").into_iter().flatten();
        let rules = ids.flat_map(|id| self.policies[id].iter().map(move |rule| (id, rule)));
        rules.filter(|(_, rule)| rule.of_nodes && rule.subject.matches(labels)).collect()
    }

    /// The names and rules of the policies that select an identity.
    pub(crate) fn rules_of(
        &self,
        identity: NumericIdentity,
        labels: &Labels,
    ) -> Vec<(&PolicyId, &Rule)> {
        if identity == NumericIdentity::HOST {
            self.rules_for_host()
        } else {
            self.rules_for(labels)
        }
    }

    /// Forgets what was computed for identities that no local endpoint has.
    pub fn retain_subjects(&mut self, local: impl Fn(NumericIdentity) -> bool) {
        let gone: Vec<NumericIdentity> =
            self.subjects.keys().copied().filter(|id| !local(*id)).collect();
        for identity in gone {
            self.forget_subject(identity);
        }
        if self.origins.len() > 1024 + 2 * self.origins_kept {
            let mut used = HashSet::new();
            self.subjects.values().for_each(|subject| subject.cookies(&mut used));
            self.origins.retain(&used);
            self.origins_kept = self.origins.len();
        }
    }

    /// The labels of an identity, those of prefixes included.
    pub fn labels(&self, identity: NumericIdentity) -> Option<&Arc<Labels>> {
        self.selectors.member(identity).map(|member| &member.labels)
    }

    /// Whether a peer selects an identity.
    pub(crate) fn selects(&self, peer: &Peer, identity: NumericIdentity) -> bool {
        let member = self.selectors.member(identity);
        member.is_some_and(|member| matches(peer, identity, member, Families::of(&self.config)))
    }

    /// How pods of the cluster name their ports.
    pub(crate) fn names(&self) -> &ClusterPorts {
        &self.names
    }

    /// The peer selectors in use, each with its number of users and the identities it selects.
    pub fn selectors(&self) -> impl Iterator<Item = (&Peer, u32, &BTreeSet<NumericIdentity>)> {
        self.selectors.iter()
    }

    /// Whether that gave prefixes or blocks a number; nothing for an identity that isn't known.
    fn compile(&mut self, identity: NumericIdentity) -> Option<bool> {
        let mut fresh = false;
        let labels = self.selectors.member(identity)?.labels.clone();
        let mut origins = std::mem::take(&mut self.origins);
        let context = Context { config: &self.config, directory: &self.directory };
        let whose = Whose { labels: &labels, host: identity == NumericIdentity::HOST };
        let rules = self.rules_of(identity, &labels);
        let plans = Direction::BOTH
            .map(|direction| Plan::new(context, whose, &rules, direction, &mut origins));
        self.origins = origins;
        for prefix in plans.iter().flat_map(Plan::prefixes) {
            if let Some((number, true)) = self.cidrs.acquire(prefix) {
                self.set_prefix(prefix, number);
                fresh = true;
            }
        }
        for prefix in plans.iter().flat_map(Plan::blocks) {
            if let Some((number, true)) = self.blocks.acquire(prefix) {
                self.set_block(prefix, number);
                fresh = true;
            }
        }
        let subject = Subject::new(plans, &mut self.selectors);
        self.subjects.insert(identity, subject);
        Some(fresh)
    }

    fn insert(&mut self, identity: NumericIdentity, member: Member) {
        let selecting = self.selectors.insert(identity, member);
        self.update(identity, &selecting);
    }

    fn update(&mut self, identity: NumericIdentity, selecting: &[SelectorId]) {
        let there = self.selectors.member(identity).is_some();
        for subject in self.subjects.values_mut() {
            subject.update(identity, there, selecting, &self.names, &mut self.origins);
        }
    }

    fn forget_subjects_of(&mut self, namespace: &str, rules: &[Rule]) {
        let concerned = |identity: &NumericIdentity| {
            let Some(Member { labels, .. }) = self.selectors.member(*identity) else {
                return false;
            };
            let host = *identity == NumericIdentity::HOST;
            let labels = if host { self.nodes.own_labels() } else { labels };
            let there = namespace.is_empty() || labels.get(K8S, NAMESPACE) == Some(namespace);
            there && rules.iter().any(|rule| rule.of_nodes == host && rule.subject.matches(labels))
        };
        let gone: Vec<NumericIdentity> = self.subjects.keys().copied().filter(concerned).collect();
        for identity in gone {
            self.forget_subject(identity);
        }
    }

    fn forget_subject(&mut self, identity: NumericIdentity) {
        if let Some(subject) = self.subjects.remove(&identity) {
            subject.release(&mut self.selectors);
            subject.prefixes().iter().for_each(|prefix| self.cidrs.release(prefix));
            subject.blocks().iter().for_each(|prefix| self.blocks.release(prefix));
        }
    }
}
