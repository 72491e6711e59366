//! Makes every map say what is wanted, additions first, and shows what is in place.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use cilia_loader::converge;
use cilia_policy::PolicyId;

use super::Worker;
use crate::policy::{Error, PolicyView, View};

impl Worker {
    /// Makes every map say what is wanted: first what is new everywhere, then the ipcache, then
    /// what is gone. So whoever both the old and the new policy let through always passes.
    pub(super) async fn settle(&mut self, ipcache: &crate::ipcache::Cache) {
        let mut failures = self.write();
        if failures.is_empty() {
            // The ipcache loses prefixes before their numbers do: meanwhile their addresses would be nobody's.
            self.repository.retain_subjects(|identity| self.bearers.has(identity));
        }
        self.failed = !self.write_blocks();
        self.tell_nodes(ipcache);
        let prefixes = self.repository.prefixes();
        if !self.prefixes_settled || prefixes != self.prefixes {
            self.prefixes_settled = ipcache.set_prefixes(prefixes.clone()).await;
            self.prefixes = prefixes;
            self.local_shown.0 = None;
        }
        failures.append(&mut self.remove());
        if self.prefixes_settled && !self.failed && self.repository.retire_prefixes() {
            self.stale.everybody();
            self.failed |= !self.write_blocks();
            failures.append(&mut self.write());
            failures.append(&mut self.remove());
        }
        self.failed |= !failures.is_empty() || !self.prefixes_settled;
        for (id, done) in self.waiting.drain(..) {
            // The one who asked may be gone: nothing to tell then.
            let _ = done.send(failures.get(&id).cloned().map_or(Ok(()), Err));
        }
        self.show();
    }

    /// Makes the table of blocks right, once the policy maps know them. False if that failed.
    pub(super) fn write_blocks(&mut self) -> bool {
        let wanted = self.repository.blocks().into_iter();
        let wanted: BTreeMap<(IpAddr, u8), u32> =
            wanted.map(|(prefix, block)| ((prefix.addr(), prefix.prefix_len()), block.0)).collect();
        if self.blocks.as_ref() == Some(&wanted) {
            return true;
        }
        let written = converge(&self.datapath.blocks(), &wanted);
        if let Err(error) = &written {
            tracing::error!(%error, "blocks of addresses not written");
        }
        self.blocks = written.is_ok().then_some(wanted);
        self.blocks.is_some()
    }

    /// Tells the ipcache which nodes have an identity of their own, or run the API server.
    pub(super) fn tell_nodes(&mut self, ipcache: &crate::ipcache::Cache) {
        let serving = self.nodes.values().filter(|node| node.api_server && !node.own);
        let serving = serving.flat_map(|node| node.addresses.iter().copied());
        let mut identities: BTreeMap<IpAddr, NumericIdentity> =
            serving.map(|address| (address, NumericIdentity::KUBE_APISERVER)).collect();
        identities.extend(self.repository.node_identities());
        if identities != self.node_identities {
            ipcache.set_node_identities(identities.clone());
            self.node_identities = identities;
        }
    }

    /// Writes what is new or different, where it may be.
    pub(super) fn write(&mut self) -> BTreeMap<u16, Error> {
        let mut stale = std::mem::take(&mut self.stale);
        for id in stale.among(&self.endpoints) {
            // What is named for the first time concerns everybody whose rules name more than that.
            if self.endpoints.get(&id).is_some_and(|one| one.prepare(&mut self.repository)) {
                stale.everybody();
            }
        }
        let mut failures = BTreeMap::new();
        for id in stale.among(&self.endpoints) {
            let Some(realized) = self.endpoints.get_mut(&id) else { continue };
            let Some(mut plan) = realized.plan(id, &mut self.repository) else { continue };
            match plan.write(realized, &self.datapath) {
                Ok(()) => self.plans.push(plan),
                Err(error) => {
                    let lockdown = self.enforcer.0.settings.lockdown;
                    plan.fail(realized, &self.datapath, lockdown, &error);
                    failures.insert(id, error);
                }
            }
        }
        for id in failures.keys() {
            self.stale.add(*id);
        }
        failures
    }

    /// Removes what is gone from the maps that have been written.
    pub(super) fn remove(&mut self) -> BTreeMap<u16, Error> {
        let mut failures = BTreeMap::new();
        for plan in std::mem::take(&mut self.plans) {
            let id = plan.id;
            let Some(realized) = self.endpoints.get_mut(&id) else { continue };
            if let Err(error) = plan.remove(realized, &self.datapath) {
                tracing::error!(%error, "policy not in place");
                realized.fail(&error);
                self.stale.add(id);
                failures.insert(id, error);
            }
        }
        failures
    }

    /// The labels of identities that only this node knows, put together anew where something changed.
    pub(super) fn local(&mut self) -> Arc<BTreeMap<NumericIdentity, Arc<Labels>>> {
        let revision = Some(self.repository.revision());
        if self.local_shown.0 != revision {
            let prefixes = self.prefixes.iter().map(|(_, identity)| *identity);
            let nodes = self.repository.node_identities().into_iter().map(|(_, identity)| identity);
            let own = self.nodes.values().any(|node| node.own).then_some(NumericIdentity::HOST);
            let all = prefixes.chain(nodes).chain(own);
            let labelled = all
                .filter_map(|identity| Some((identity, self.repository.labels(identity)?.clone())));
            self.local_shown = (revision, Arc::new(labelled.collect()));
        }
        Arc::clone(&self.local_shown.1)
    }

    pub(super) fn show(&mut self) {
        if std::mem::take(&mut self.policies_changed) {
            let policy = |(id, rules): (&PolicyId, &Vec<cilia_policy::rule::Rule>)| PolicyView {
                kind: id.kind.name(),
                namespace: id.namespace.to_string(),
                name: id.name.to_string(),
                subjects: rules.iter().map(|rule| rule.subject.to_string()).collect(),
                notes: self.notes.get(id).cloned().unwrap_or_default(),
            };
            self.policies_shown = self.repository.policies().iter().map(policy).collect();
        }
        let local = self.local();
        let audit = self.datapath.policy_audit();
        let view = View {
            local,
            revision: self.repository.revision(),
            changes: self.changes,
            endpoints: self
                .endpoints
                .iter()
                .map(|(id, realized)| realized.view(*id, audit))
                .collect(),
            policies: self.policies_shown.clone(),
            faults: self.faults.iter().map(|(id, fault)| (id.to_string(), fault.clone())).collect(),
        };
        self.enforcer.0.view.send_replace(Arc::new(view));
    }
}
