//! Decides whose policy is recorded instead of enforced: that of all endpoints, or of single ones.
//!
//! As with Cilium a change for all overrides what single endpoints had.

use cilia_loader::EndpointOptions;

use super::Worker;
use crate::policy::Error;

impl Worker {
    /// Changes the setting of one endpoint.
    pub(super) fn set_audit(&mut self, id: u16, audit: bool) -> Result<(), Error> {
        let of_all = self.datapath.policy_audit();
        let Some(realized) = self.endpoints.get_mut(&id) else {
            return Err(Error::Unknown { id });
        };
        let own = (audit != of_all).then_some(audit);
        let options = self.datapath.options();
        let written = match own {
            Some(policy_audit) => options.upsert(&id, &EndpointOptions { policy_audit }),
            None => options.remove(&id).map(drop),
        };
        written.map_err(|error| Error::Map { id, cause: error.to_string() })?;
        realized.audit = own;
        match own {
            Some(audit) => self.audit.insert(id, audit),
            None => self.audit.remove(&id),
        };
        tracing::info!(endpoint = id, audit, "policy audit mode changed");
        Ok(())
    }

    /// Changes the setting of all endpoints, those included that had their own.
    pub(super) fn set_audit_of_all(&mut self, audit: bool) -> Result<(), Error> {
        let failed = |error: cilia_loader::Error| Error::Audit { cause: error.to_string() };
        self.datapath.set_policy_audit(audit).map_err(failed)?;
        let options = self.datapath.options();
        while let Some((id, _)) = self.audit.first_key_value() {
            let id = *id;
            options.remove(&id).map_err(failed)?;
            self.audit.remove(&id);
            if let Some(realized) = self.endpoints.get_mut(&id) {
                realized.audit = None;
            }
        }
        tracing::info!(audit, "policy audit mode of all endpoints changed");
        Ok(())
    }
}
