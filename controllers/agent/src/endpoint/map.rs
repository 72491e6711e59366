//! The datapath's table of local addresses: the endpoints' and the node's own. This is its only
//! writer.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cilia_crds::NumericIdentity;
use cilia_loader::{EndpointInfo, Endpoints as Addresses, Table, converge};

use super::{Error, LocalEndpoint};

/// The table; clones share it.
#[derive(Debug, Clone)]
pub struct EndpointMap {
    table: Table<Addresses>,
    hosts: Arc<Mutex<BTreeMap<IpAddr, EndpointInfo>>>,
}

impl EndpointMap {
    /// The datapath's table.
    pub fn new(table: Table<Addresses>) -> Self {
        Self { table, hosts: Arc::default() }
    }

    /// Makes an endpoint reachable, under its identity.
    pub fn put(&self, endpoint: &LocalEndpoint) -> Result<(), Error> {
        for (address, info) in entries(endpoint) {
            let written = self.table.upsert(&address, &info);
            written.map_err(|cause| failed("add address", endpoint.id, &cause))?;
        }
        Ok(())
    }

    /// Makes an endpoint unreachable; addresses that another one has by now are left alone.
    pub fn remove(&self, endpoint: &LocalEndpoint) -> Result<(), Error> {
        for address in endpoint.addresses() {
            let failed = |cause: cilia_loader::Error| failed("remove address", endpoint.id, &cause);
            let present = self.table.get(&address).map_err(failed)?;
            if present.is_some_and(|info| info.id == endpoint.id && !info.host) {
                self.table.remove(&address).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// What the datapath knows of the endpoint of this number.
    pub fn of_endpoint(&self, id: u16) -> Result<Vec<(IpAddr, EndpointInfo)>, Error> {
        let entries = self.table.entries().map_err(|cause| failed("list addresses", id, &cause))?;
        Ok(entries.into_iter().filter(|(_, info)| info.id == id && !info.host).collect())
    }

    /// Whether the datapath knows an endpoint as it is.
    pub fn holds(&self, endpoint: &LocalEndpoint) -> Result<bool, Error> {
        for (address, info) in entries(endpoint) {
            let present = self
                .table
                .get(&address)
                .map_err(|cause| failed("read address", endpoint.id, &cause))?;
            if present != Some(info) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes `addresses` those of the node itself, behind the device of this number.
    pub fn set_hosts(
        &self,
        addresses: impl IntoIterator<Item = IpAddr>,
        ifindex: u32,
    ) -> Result<(), Error> {
        let info = EndpointInfo {
            ifindex,
            identity: NumericIdentity::HOST.0,
            host: true,
            ..EndpointInfo::default()
        };
        let wanted: BTreeMap<_, _> = addresses.into_iter().map(|address| (address, info)).collect();
        // Whoever comes meanwhile waits; what could not be written is tried again the next time.
        let mut former = self.hosts();
        for (address, info) in
            wanted.iter().filter(|(address, info)| former.get(*address) != Some(*info))
        {
            self.table.upsert(address, info).map_err(|cause| failed("add address", 0, &cause))?;
        }
        for address in former.keys().filter(|address| !wanted.contains_key(*address)) {
            self.table.remove(address).map_err(|cause| failed("remove address", 0, &cause))?;
        }
        *former = wanted;
        Ok(())
    }

    /// Makes the table hold these endpoints and the node's addresses, and nothing else.
    pub fn converge(&self, endpoints: &[Arc<LocalEndpoint>]) -> Result<(), Error> {
        let hosts = self.hosts();
        let mut wanted = hosts.clone();
        wanted.extend(endpoints.iter().flat_map(|endpoint| entries(endpoint)));
        let changes = converge(&self.table, &wanted)
            .map_err(|cause| failed("converge addresses", 0, &cause))?;
        drop(hosts);
        if !changes.is_empty() {
            tracing::info!(?changes, "repaired the table of local addresses");
        }
        Ok(())
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<IpAddr, EndpointInfo>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entries(endpoint: &LocalEndpoint) -> impl Iterator<Item = (IpAddr, EndpointInfo)> + use<> {
    let info = EndpointInfo {
        id: endpoint.id,
        ifindex: endpoint.ifindex,
        mac: endpoint.mac.0,
        node_mac: endpoint.node_mac.0,
        identity: endpoint.identity.unwrap_or(NumericIdentity::INIT).0,
        host: false,
    };
    endpoint.addresses().map(move |address| (address, info))
}

fn failed(operation: &'static str, id: u16, cause: &cilia_loader::Error) -> Error {
    Error::Datapath { operation, id, cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use cilia_loader::MapSizes;
    use cilia_loader::testing::{BpfFs, small_maps};

    use super::EndpointMap;
    use crate::device::testing::in_private_node;
    use crate::endpoint::testing::endpoint;

    #[test]
    fn a_node_s_address_that_could_not_be_written_is_written_the_next_time() {
        in_private_node(|| async {
            let bpf = BpfFs::mount();
            let datapath = bpf.load_sized(MapSizes { endpoints: 2, ..small_maps() });
            let map = EndpointMap::new(datapath.endpoints());
            let (pod, own) = (endpoint(7, "c1", "web"), "192.0.2.1".parse::<IpAddr>().unwrap());
            map.put(&pod).unwrap();
            assert!(map.set_hosts([own], 3).is_err(), "the map is full");
            map.remove(&pod).unwrap();
            map.set_hosts([own], 3).unwrap();
            assert!(datapath.endpoints().get(&own).unwrap().is_some_and(|info| info.host));
        });
    }
}
