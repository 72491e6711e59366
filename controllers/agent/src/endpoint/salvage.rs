//! Decides what becomes of an endpoint whose file is damaged: what the datapath still knows of it
//! is enough to go on, so that its pod keeps its network until the runtime ends it.
//!
//! Which pod it was stays unknown. Its `CiliumEndpoint` stays as it is, and goes with the pod.

use std::net::IpAddr;
use std::path::Path;

use cilia_crds::{Labels, NumericIdentity};

use super::state_files::number;
use super::{EndpointState, Error, Lifecycle, LocalEndpoint, OwnLabels};
use crate::device::Link;
use crate::device::name::{Mac, is_pod_device};

impl Lifecycle {
    /// The endpoint, as far as it is known; nothing, and no directory either, if the datapath does
    /// not know it or its device is gone.
    pub(super) fn salvage(
        &self,
        directory: &Path,
        reason: &str,
        links: &[Link],
    ) -> Result<Option<LocalEndpoint>, Error> {
        let parts = &self.0.parts;
        let place = directory.display();
        let id = number(directory).unwrap_or_default();
        let known = parts.map.of_endpoint(id)?;
        let link = known.first().and_then(|(_, info)| {
            links.iter().find(|link| link.index == info.ifindex && is_pod_device(&link.name))
        });
        let (Some((_, info)), Some(link)) = (known.first(), link) else {
            tracing::warn!(directory = %place, reason, "removing what is no endpoint");
            if let Err(error) = parts.files.discard(directory) {
                tracing::warn!(%error, "could not remove what is no endpoint");
            }
            return Ok(None);
        };
        tracing::error!(
            directory = %place, reason, device = link.name,
            "the file of an endpoint is damaged: it goes on as the datapath knows it"
        );
        parts.files.set_aside(directory)?;
        let mut endpoint = LocalEndpoint {
            id,
            namespace: String::new(),
            pod: String::new(),
            pod_uid: String::new(),
            object_uid: String::new(),
            // Its own is hidden in the device's name.
            container_id: link.name.clone(),
            ifname: "eth0".to_owned(),
            netns: String::new(),
            host_device: link.name.clone(),
            ifindex: link.index,
            mac: Mac(info.mac),
            node_mac: Mac(info.node_mac),
            ipv4: None,
            ipv6: None,
            identity: Some(NumericIdentity(info.identity)),
            labels: Labels::new(),
            own: OwnLabels::default(),
            pod_labels: std::collections::BTreeMap::new(),
            service_account: String::new(),
            named_ports: Vec::new(),
            sequence: 0,
            state: EndpointState::Restoring,
            published_uid: None,
        };
        for (address, _) in known {
            match address {
                IpAddr::V4(address) => endpoint.ipv4 = Some(address),
                IpAddr::V6(address) => endpoint.ipv6 = Some(address),
            }
        }
        Ok(Some(endpoint))
    }
}
