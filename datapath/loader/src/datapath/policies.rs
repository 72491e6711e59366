//! The policies of endpoints: a map for each, the outer map by which programs find it, and what its entries
//! have decided.

use std::sync::PoisonError;

use cilia_maps::{Plain, names};

use super::Datapath;
use crate::error::Error;
use crate::pins;
use crate::policy::{self, Policy, PolicyKey, PolicyStats};
use crate::table::Table;

impl Datapath {
    /// Endpoints that have a policy.
    pub fn policies(&self) -> Result<Vec<u16>, Error> {
        self.pins.policies()
    }

    /// An endpoint's policy; made empty, which denies everything, if it is not there.
    pub fn policy(&self, endpoint: u16) -> Result<Table<Policy>, Error> {
        let _guard = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let map = self.pins.policy_map(endpoint, &self.sizes)?;
        let key = u32::from(endpoint).to_ne_bytes();
        let failed = |operation| {
            move |source| Error::Map { operation, map: names::POLICY_MAPS.into(), source }
        };
        let present = self.policy_maps.lookup(&key).map_err(failed("read"))?;
        if present != Some(map.shape.id.to_ne_bytes().to_vec()) {
            self.policy_maps.update(&key, &map.descriptor()).map_err(failed("write"))?;
        }
        Ok(Table::new(&pins::policy_name(endpoint), vec![map]))
    }

    /// Forgets an endpoint's policy; its packets are dropped from then on.
    pub fn remove_policy(&self, endpoint: u16) -> Result<(), Error> {
        let _guard = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        self.policy_maps.delete(&u32::from(endpoint).to_ne_bytes()).map_err(|source| {
            Error::Map { operation: "remove", map: names::POLICY_MAPS.into(), source }
        })?;
        self.pins.remove(&pins::policy_name(endpoint))?;
        self.options.remove(&endpoint)?;
        self.forget_stats(endpoint)
    }

    /// Forgets what was counted for an endpoint whose number another may get.
    fn forget_stats(&self, endpoint: u16) -> Result<(), Error> {
        let failed = |operation| {
            move |source| Error::Map { operation, map: names::POLICY_STATS.into(), source }
        };
        let mut doomed = Vec::new();
        self.policy_stats
            .for_each(|key, _| {
                if cilia_maps::policy::PolicyStatsKey::from_bytes(key)
                    .is_some_and(|key| key.endpoint_id == endpoint)
                {
                    doomed.push(key.to_vec());
                }
            })
            .map_err(failed("list"))?;
        for key in doomed {
            self.policy_stats.delete(&key).map_err(failed("remove"))?;
        }
        Ok(())
    }

    /// What each entry of the policy maps has decided so far, by endpoint and key.
    pub fn policy_stats(&self) -> Result<Vec<(u16, PolicyKey, PolicyStats)>, Error> {
        let mut counters = Vec::new();
        self.policy_stats
            .for_each(|key, value| counters.extend(policy::decode_stats(key, value)))
            .map_err(|source| Error::Map {
                operation: "list",
                map: names::POLICY_STATS.into(),
                source,
            })?;
        Ok(counters)
    }
}
