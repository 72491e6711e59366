//! Disconnects pods: every trace of an endpoint goes, in the order in which nobody is cut off who
//! should not be.

use super::{EndpointState, Error, Lifecycle, LocalEndpoint};
use crate::device::name::pod_device;
use crate::device::pod;

impl Lifecycle {
    /// Disconnects a pod; one that is not connected is fine.
    pub async fn detach(&self, container_id: &str, ifname: &str) -> Result<(), Error> {
        let attachment = format!("{container_id}:{ifname}");
        let _turn = self.0.turns.take(attachment.clone()).await;
        let parts = &self.0.parts;
        let device = pod_device(container_id, ifname);
        // What was salvaged of a damaged file doesn't know its container.
        let known = parts.endpoints.of_attachment(&attachment);
        let Some(endpoint) = known.or_else(|| parts.endpoints.of_device(&device)) else {
            pod::detach(&parts.netlink, &device).await?;
            return Ok(());
        };
        parts.endpoints.mark(&endpoint, EndpointState::Disconnecting);
        self.erase(&endpoint).await?;
        parts.endpoints.remove(endpoint.id);
        self.0.publisher.restore(&endpoint);
        tracing::info!(id = endpoint.id, pod = %endpoint.key(), "endpoint disconnected");
        self.0.queue.add(endpoint.key());
        Ok(())
    }

    /// Removes every trace of an endpoint but its entry in the registry and its object. Each step
    /// is fine with having been done before; all are tried, and the first failure is told. What
    /// is written down stays until all else is gone, and so does the claim to the addresses: the
    /// next one that has them must not meet what is left of this one.
    pub(super) async fn erase(&self, endpoint: &LocalEndpoint) -> Result<(), Error> {
        let parts = &self.0.parts;
        let id = endpoint.id;
        let mut outcome = parts.map.remove(endpoint);
        let mut note = |step: Result<(), Error>| {
            if outcome.is_ok() {
                outcome = step;
            }
        };
        note(pod::detach(&parts.netlink, &endpoint.host_device).await.map_err(Error::from));
        let name = endpoint.host_device.clone();
        note(
            self.on_datapath("detach programs", id, move |datapath| {
                datapath.detach_endpoint(&name)
            })
            .await,
        );
        parts.enforcer.remove(id).await;
        let addresses: Vec<_> = endpoint.addresses().collect();
        note(
            self.on_datapath("forget", id, move |datapath| {
                datapath.remove_policy(id)?;
                addresses
                    .iter()
                    .try_for_each(|address| datapath.conntrack().purge(*address).map(drop))
            })
            .await,
        );
        outcome?;
        parts.files.remove(id)?;
        parts.ipam.release(&endpoint.owner());
        Ok(())
    }
}
