//! Takes over what a former agent left: endpoints that still have their device live on under the
//! same number, addresses and identity; everything else is removed.
//!
//! It happens in two steps. The first needs nothing but the node, touches no traffic, makes sure
//! that no address is given twice, and removes what belongs to no endpoint; it has to be done
//! before pods are connected. The second needs the API server: it drops endpoints whose pod is gone.

use std::collections::HashSet;
use std::sync::Arc;

use super::state_files::Found;
use super::{Error, Lifecycle, LocalEndpoint};
use crate::device::name::is_pod_device;
use crate::device::{Link, pod};
use crate::node::LocalNode;

impl Lifecycle {
    /// Finds the endpoints that are written down, takes over those that still have a device, and
    /// removes everything else.
    pub async fn restore(&self) -> Result<(), Error> {
        let parts = &self.0.parts;
        let node = parts
            .nodes
            .local()
            .ok_or_else(|| Error::NotReady("it does not know its own node yet".to_owned()))?;
        let links = parts.netlink.links().await?;
        let (mut restored, mut dropped) = (0, 0);
        for found in parts.files.read_all()? {
            let endpoint = match found {
                Found::Endpoint(endpoint) => *endpoint,
                Found::Broken(directory, reason) => {
                    let Some(endpoint) = self.salvage(&directory, &reason, &links)? else {
                        continue;
                    };
                    endpoint
                }
            };
            if parts.endpoints.of_attachment(&endpoint.attachment()).is_some() {
                tracing::warn!(id = endpoint.id, "an endpoint is written down twice");
                parts.files.remove(endpoint.id)?;
                continue;
            }
            // The device goes when its other end's namespace goes: it stands for both.
            let link = links.iter().find(|link| link.name == endpoint.host_device);
            let Some(link) = link else {
                self.drop_former(&endpoint, "its device is gone").await;
                dropped += 1;
                continue;
            };
            if let Err(reason) = self.reserve(&endpoint) {
                self.drop_former(&endpoint, &reason).await;
                dropped += 1;
                continue;
            }
            // A failure from here on is the node's, not the endpoint's: it must not cost a pod
            // its network. The agent gives up, and the pod goes on as it was.
            self.take_over(endpoint, link, &node).await?;
            restored += 1;
        }
        tracing::info!(restored, dropped, "endpoints restored");
        parts.ipam.restored();
        parts.enforcer.restored();
        self.collect_garbage().await
    }

    /// Sets an endpoint's addresses aside, or says why it can't live on.
    fn reserve(&self, endpoint: &LocalEndpoint) -> Result<(), String> {
        let parts = &self.0.parts;
        if endpoint.identity.is_none() {
            return Err("it was never ready".to_owned());
        }
        let owner = endpoint.owner();
        let mut addresses = endpoint.addresses();
        let reserved = addresses.try_for_each(|address| parts.ipam.restore(address, &owner));
        reserved.map_err(|error| error.to_string())
    }

    async fn drop_former(&self, endpoint: &LocalEndpoint, reason: &str) {
        tracing::info!(id = endpoint.id, pod = %endpoint.key(), reason, "not restoring an endpoint");
        self.0.publisher.restore(endpoint);
        if let Err(error) = self.erase(endpoint).await {
            // The others must not wait for it; the garbage collection tries again.
            tracing::warn!(id = endpoint.id, %error, "could not remove all of an endpoint");
        }
        self.0.queue.add(endpoint.key());
    }

    async fn take_over(
        &self,
        endpoint: LocalEndpoint,
        link: &Link,
        node: &LocalNode,
    ) -> Result<(), Error> {
        let parts = &self.0.parts;
        let endpoint = LocalEndpoint { ifindex: link.index, ..endpoint };
        let device = self.device(&endpoint, node, Some(link.mtu));
        pod::configure_node_end(&parts.netlink, &parts.sysctl, &device, endpoint.mac).await?;
        self.attach_programs(&endpoint).await?;
        parts.map.put(&endpoint)?;
        parts.files.write(&endpoint)?;
        parts.enforcer.restore(&endpoint)?;
        parts.endpoints.put(endpoint);
        Ok(())
    }

    /// Drops endpoints whose pod is gone, and looks at all others.
    pub async fn settle(&self) -> Result<(), Error> {
        let parts = &self.0.parts;
        parts.pods.wait_synced().await;
        for endpoint in parts.endpoints.list() {
            if endpoint.pod.is_empty() {
                self.realize(&endpoint).await?;
                continue;
            }
            let pod = parts.pods.get(&endpoint.key());
            if pod.is_none_or(|pod| pod.uid != endpoint.pod_uid) {
                tracing::info!(id = endpoint.id, pod = %endpoint.key(), "the pod of an endpoint is gone");
                self.detach(&endpoint.container_id, &endpoint.ifname).await?;
            }
        }
        self.look_at(|_| true);
        Ok(())
    }

    /// Removes what belongs to no endpoint: devices, programs, policies, addresses.
    async fn collect_garbage(&self) -> Result<(), Error> {
        let parts = &self.0.parts;
        let endpoints: Vec<Arc<LocalEndpoint>> = parts.endpoints.list();
        let devices: HashSet<&str> =
            endpoints.iter().map(|endpoint| endpoint.host_device.as_str()).collect();
        for link in parts.netlink.links().await? {
            if is_pod_device(&link.name) && !devices.contains(link.name.as_str()) {
                tracing::info!(device = link.name, "removing a device of no endpoint");
                pod::detach(&parts.netlink, &link.name).await?;
            }
        }
        let failed = |operation| {
            move |cause: cilia_loader::Error| Error::Datapath {
                operation,
                id: 0,
                cause: cause.to_string(),
            }
        };
        for name in parts.datapath.attached().map_err(failed("list programs"))? {
            if is_pod_device(&name) && !devices.contains(name.as_str()) {
                parts.datapath.detach_endpoint(&name).map_err(failed("detach programs"))?;
            }
        }
        let mut ids: HashSet<u16> = endpoints.iter().map(|endpoint| endpoint.id).collect();
        ids.extend(parts.enforcer.host());
        for id in parts.datapath.policies().map_err(failed("list policies"))? {
            if !ids.contains(&id) {
                parts.datapath.remove_policy(id).map_err(failed("remove policy"))?;
            }
        }
        parts.map.converge(&endpoints)
    }
}
