//! All policies and identities, and the policy map of every local endpoint that follows from them.
//!
//! Changes go in one by one; [`Repository::policy`] answers with the map as it must be now. What a
//! change doesn't touch stays the very same allocation, so a caller sees at once that there is
//! nothing to write. Whatever the order of changes, the maps equal those of a fresh computation.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

use crate::cidr::{self, Cidrs};
use crate::compile::{self, Subject};
use crate::config::Config;
use crate::map::EndpointPolicy;
use crate::names::{ClusterPorts, NamedPorts};
use crate::rule::{Peer, PolicyId, Rule};
use crate::selector::{K8S, NAMESPACE};
use crate::selectors::{Member, SelectorId, Selectors};

/// Policies, identities, and what follows.
#[derive(Debug)]
pub struct Repository {
    config: Config,
    revision: u64,
    policies: BTreeMap<PolicyId, Vec<Rule>>,
    by_namespace: HashMap<Arc<str>, BTreeSet<PolicyId>>,
    selectors: Selectors,
    cidrs: Cidrs,
    names: Arc<ClusterPorts>,
    subjects: HashMap<NumericIdentity, Subject>,
}

impl Repository {
    /// No policies yet, and the reserved identities.
    pub fn new(config: Config) -> Self {
        let mut selectors = Selectors::new(config.dual_stack);
        for (identity, _) in
            NumericIdentity::RESERVED.iter().filter(|(id, _)| *id != NumericIdentity::UNKNOWN)
        {
            if let Some(labels) = identity.reserved_labels() {
                selectors.insert(*identity, Member { labels: Arc::new(labels), prefix: None });
            }
        }
        Self {
            config,
            revision: 1,
            policies: BTreeMap::new(),
            by_namespace: HashMap::new(),
            selectors,
            cidrs: Cidrs::default(),
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
    pub fn set_policy(&mut self, id: PolicyId, rules: Vec<Rule>) -> bool {
        if self.policies.get(&id) == Some(&rules) {
            return false;
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

    /// Adds an identity, or gives it other labels.
    pub fn set_identity(&mut self, identity: NumericIdentity, labels: Arc<Labels>) {
        let member = Member { labels, prefix: None };
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
        if !self.selectors.remove(identity).is_empty() {
            self.update(identity, &[]);
        }
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

    /// The policy map of an endpoint; `None` if its identity isn't known.
    pub fn policy(
        &mut self,
        identity: NumericIdentity,
        ports: &NamedPorts,
    ) -> Option<Arc<EndpointPolicy>> {
        if !self.subjects.contains_key(&identity) {
            self.compile(identity)?;
        }
        let subject = self.subjects.get_mut(&identity)?;
        Some(subject.map(ports, &self.names, &self.selectors))
    }

    /// The names and rules of the policies that select an identity.
    pub fn rules_for(&self, labels: &Labels) -> Vec<(&PolicyId, &Rule)> {
        let namespace = labels.get(K8S, NAMESPACE).filter(|namespace| !namespace.is_empty());
        let of = |namespace: &str| self.by_namespace.get(namespace).into_iter().flatten();
        let ids = of("").chain(namespace.into_iter().flat_map(of));
        let rules = ids.flat_map(|id| self.policies[id].iter().map(move |rule| (id, rule)));
        rules.filter(|(_, rule)| rule.subject.matches(labels)).collect()
    }

    /// Forgets what was computed for identities that no local endpoint has.
    pub fn retain_subjects(&mut self, local: impl Fn(NumericIdentity) -> bool) {
        let gone: Vec<NumericIdentity> =
            self.subjects.keys().copied().filter(|id| !local(*id)).collect();
        for identity in gone {
            self.forget_subject(identity);
        }
    }

    /// The prefixes that local endpoints' rules name, with their identities: for the ipcache, once
    /// the policy maps know these identities.
    pub fn prefixes(&self) -> Vec<(IpNet, NumericIdentity)> {
        self.cidrs.in_use().collect()
    }

    /// Takes over the identity of a prefix from before the restart.
    pub fn restore_prefix(&mut self, prefix: IpNet, identity: NumericIdentity) {
        if self.cidrs.restore(prefix, identity.0) {
            self.set_prefix(prefix, identity);
        }
    }

    /// Forgets the prefixes that no rule names any more: once the ipcache doesn't have them. True
    /// if there were any.
    pub fn retire_prefixes(&mut self) -> bool {
        let gone = self.cidrs.retire();
        for identity in &gone {
            self.remove_identity(*identity);
        }
        !gone.is_empty()
    }

    /// The labels of an identity, those of prefixes included.
    pub fn labels(&self, identity: NumericIdentity) -> Option<&Arc<Labels>> {
        self.selectors.member(identity).map(|member| &member.labels)
    }

    /// The peer selectors in use, each with its number of users and the identities it selects.
    pub fn selectors(&self) -> impl Iterator<Item = (&Peer, u32, &BTreeSet<NumericIdentity>)> {
        self.selectors.iter()
    }

    /// How many peer selectors are in use.
    pub fn selector_count(&self) -> usize {
        self.selectors.len()
    }

    fn compile(&mut self, identity: NumericIdentity) -> Option<()> {
        let labels = self.selectors.member(identity)?.labels.clone();
        let rules = self.rules_for(&labels);
        let prefixes = compile::prefixes(rules.iter().map(|(_, rule)| *rule));
        for prefix in prefixes {
            if let Some((number, true)) = self.cidrs.acquire(prefix) {
                self.set_prefix(prefix, number);
            }
        }
        let mut selectors = std::mem::take(&mut self.selectors);
        let rules: Vec<&Rule> = self.rules_for(&labels).into_iter().map(|(_, rule)| rule).collect();
        let subject = Subject::new(&self.config, &labels, &rules, &mut selectors);
        self.selectors = selectors;
        self.subjects.insert(identity, subject);
        Some(())
    }

    fn set_prefix(&mut self, prefix: IpNet, identity: NumericIdentity) {
        if self.selectors.member(identity).is_none() {
            let labels = Arc::new(cidr::labels(&prefix, self.config.dual_stack));
            self.insert(identity, Member { labels, prefix: Some(prefix) });
        }
    }

    fn insert(&mut self, identity: NumericIdentity, member: Member) {
        let selecting = self.selectors.insert(identity, member);
        self.update(identity, &selecting);
    }

    fn update(&mut self, identity: NumericIdentity, selecting: &[SelectorId]) {
        for subject in self.subjects.values_mut() {
            subject.update(identity, selecting, &self.names);
        }
    }

    fn forget_subjects_of(&mut self, namespace: &str, rules: &[Rule]) {
        let concerned = |identity: &NumericIdentity| {
            self.selectors.member(*identity).is_some_and(|member| {
                let there =
                    namespace.is_empty() || member.labels.get(K8S, NAMESPACE) == Some(namespace);
                there && rules.iter().any(|rule| rule.subject.matches(&member.labels))
            })
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
        }
    }
}
