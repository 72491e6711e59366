//! Writes the load-balancing maps in an order in which every step is consistent.
//!
//! Backends and the way back come before the slots that lead to them, slots before the frontend that
//! counts them; what goes, goes in the opposite order.

use std::collections::BTreeMap;

use cilia_loader::{Backend, Datapath, Error, Frontend, Layout, ServiceEntry, ServiceKey, Table};

/// What the maps should say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Desired {
    pub(super) services: BTreeMap<ServiceKey, ServiceEntry>,
    pub(super) backends: BTreeMap<u32, Backend>,
    pub(super) rev_nat: BTreeMap<u16, Frontend>,
}

/// What the maps say.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) services: BTreeMap<ServiceKey, ServiceEntry>,
    pub(super) backends: BTreeMap<u32, Backend>,
    rev_nat: BTreeMap<u16, Frontend>,
}

impl Written {
    /// What a former agent left.
    pub(super) fn read(datapath: &Datapath) -> Result<Self, Error> {
        Ok(Self {
            services: datapath.services().entries()?.into_iter().collect(),
            backends: datapath.backends().entries()?.into_iter().collect(),
            rev_nat: datapath.rev_nat().entries()?.into_iter().collect(),
        })
    }

    /// Maps that say just that.
    #[cfg(test)]
    pub(super) fn from_desired(desired: &Desired) -> Self {
        let Desired { services, backends, rev_nat } = desired.clone();
        Self { services, backends, rev_nat }
    }

    /// Makes the maps say what is desired.
    pub(super) fn become_desired(
        self,
        desired: Desired,
        datapath: &Datapath,
    ) -> Result<Self, Error> {
        let (services, backends, rev_nat) =
            (datapath.services(), datapath.backends(), datapath.rev_nat());
        write(&rev_nat, &self.rev_nat, desired.rev_nat.iter())?;
        write(&backends, &self.backends, desired.backends.iter())?;
        let slot = |(key, _): &(&ServiceKey, &ServiceEntry)| key.slot > 0;
        write(&services, &self.services, desired.services.iter().filter(slot))?;
        write(&services, &self.services, desired.services.iter().filter(|entry| !slot(entry)))?;
        remove(&services, &self.services, &desired.services)?;
        remove(&backends, &self.backends, &desired.backends)?;
        remove(&rev_nat, &self.rev_nat, &desired.rev_nat)?;
        let Desired { services, backends, rev_nat } = desired;
        Ok(Self { services, backends, rev_nat })
    }
}

fn write<'a, T: Layout>(
    table: &Table<T>,
    old: &BTreeMap<T::Key, T::Value>,
    new: impl Iterator<Item = (&'a T::Key, &'a T::Value)>,
) -> Result<(), Error>
where
    T::Key: 'a,
    T::Value: 'a,
{
    for (key, value) in new.filter(|(key, value)| old.get(key) != Some(value)) {
        table.upsert(key, value)?;
    }
    Ok(())
}

fn remove<T: Layout>(
    table: &Table<T>,
    old: &BTreeMap<T::Key, T::Value>,
    new: &BTreeMap<T::Key, T::Value>,
) -> Result<(), Error> {
    for key in old.keys().filter(|key| !new.contains_key(key)) {
        table.remove(key)?;
    }
    Ok(())
}
