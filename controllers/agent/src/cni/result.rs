//! What the runtime is told about a connected pod, in the form of CNI 1.1.0.
//!
//! The plugin turns it into the form of older versions.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::device::pod::{Attachment, any};
use crate::endpoint::LocalEndpoint;

/// The result of an ADD.
pub(super) fn of(endpoint: &LocalEndpoint, device: &Attachment) -> Value {
    let router = |address: &IpAddr| {
        device.routers.iter().find(|router| router.is_ipv4() == address.is_ipv4())
    };
    let ips: Vec<Value> = device
        .addresses
        .iter()
        .map(|address| {
            let length = if address.is_ipv4() { 32 } else { 128 };
            json!({"address": format!("{address}/{length}"), "gateway": router(address), "interface": 1})
        })
        .collect();
    let ways: Vec<Value> = device
        .routers
        .iter()
        .map(|router| json!({"dst": any(*router), "gw": router, "mtu": device.route_mtu}))
        .collect();
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": endpoint.host_device, "mac": endpoint.node_mac.to_string(), "mtu": device.mtu},
            {"name": endpoint.ifname, "mac": endpoint.mac.to_string(), "mtu": device.mtu, "sandbox": endpoint.netns},
        ],
        "ips": ips,
        "routes": ways,
        "dns": {},
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::of;
    use crate::device::pod::Attachment;
    use crate::endpoint::testing::endpoint;

    #[test]
    fn the_result_says_all_there_is() {
        let endpoint = endpoint(7, "c1", "web");
        let device = Attachment {
            host_device: endpoint.host_device.clone(),
            ifname: "eth0".into(),
            mtu: 1500,
            route_mtu: 1450,
            addresses: endpoint.addresses().collect(),
            routers: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        };
        let result = of(&endpoint, &device);
        assert_eq!(
            result["ips"][1],
            json!({"address": "fd00::2/128", "gateway": "fd00::1", "interface": 1})
        );
        assert_eq!(result["routes"][0], json!({"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1450}));
        assert_eq!(result["routes"][1]["dst"], "::/0");
        assert_eq!(result["interfaces"][1]["sandbox"], "/run/netns/x");
    }
}
