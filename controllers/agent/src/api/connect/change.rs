//! Decides what a request about an endpoint asks for: Cilium's `EndpointChangeRequest`.

use std::net::IpAddr;

use serde::Deserialize;

use super::super::form::{Fault, no_choice, read, required};
use super::super::query::LONGEST_NAME;
use crate::device::name::{Mac, pod_device};
use crate::endpoint::{self, LocalEndpoint, PodKey, Wanted, Wired};

/// The states that an endpoint may be said to have.
const STATES: [&str; 9] = [
    "waiting-for-identity",
    "not-ready",
    "waiting-to-regenerate",
    "regenerating",
    "restoring",
    "ready",
    "disconnecting",
    "disconnected",
    "invalid",
];

/// What an endpoint is to be. What only means something to other ways of wiring is not looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Change {
    addressing: Option<Addressing>,
    container_id: String,
    container_interface_name: String,
    container_netns_path: String,
    host_mac: String,
    interface_index: u32,
    interface_name: String,
    k8s_namespace: String,
    k8s_pod_name: String,
    k8s_uid: String,
    labels: Vec<String>,
    mac: String,
    state: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Addressing {
    ipv4: String,
    ipv6: String,
}

impl Change {
    /// Reads a body; an error says what is wrong with it.
    pub(super) fn read(body: &[u8]) -> Result<Self, Fault> {
        let change: Self = read("endpoint", body)?;
        match change.state.as_deref() {
            None => return Err(required("state", "body")),
            Some(state) if !STATES.contains(&state) => {
                return Err(no_choice("state", "body", &STATES));
            }
            Some(_) => {}
        }
        let names = [
            ("container-id", &change.container_id),
            ("container-interface-name", &change.container_interface_name),
            ("container-netns-path", &change.container_netns_path),
            ("k8s-namespace", &change.k8s_namespace),
            ("k8s-pod-name", &change.k8s_pod_name),
            ("k8s-uid", &change.k8s_uid),
        ];
        match names.iter().find(|(_, name)| name.len() > LONGEST_NAME) {
            Some((field, _)) => {
                Err(Fault::Text(format!("{field}: it has at most {LONGEST_NAME} bytes")))
            }
            None => Ok(change),
        }
    }

    /// The endpoint that is asked for under the name in the path.
    pub(super) fn request(self, id: &str) -> Result<endpoint::Request, String> {
        let (container_id, ifname) = self.attachment(id)?;
        let device = pod_device(&container_id, &ifname);
        if !self.interface_name.is_empty() && self.interface_name != device {
            return Err(format!(
                "interface-name: the node's end of {container_id}:{ifname} is to be called {device}"
            ));
        }
        let pod = match (self.k8s_namespace.is_empty(), self.k8s_pod_name.is_empty()) {
            (true, true) => None,
            (false, false) => Some(PodKey {
                namespace: self.k8s_namespace.clone(),
                name: self.k8s_pod_name.clone(),
            }),
            _ => return Err("k8s-namespace and k8s-pod-name belong together".into()),
        };
        if pod.is_none() && !self.labels.is_empty() {
            return Err("labels: they are those of a pod, and none is named".into());
        }
        let addresses: Vec<_> = self.addresses()?.into_iter().map(|one| (one, None)).collect();
        if addresses.is_empty() {
            return Err("addressing: an endpoint has an address".into());
        }
        let mac = Mac::parse(&self.mac)
            .ok_or_else(|| format!("mac: {:?} is no link-layer address", self.mac))?;
        Ok(endpoint::Request {
            container_id,
            netns: self.container_netns_path,
            ifname,
            pod,
            pod_uid: Some(self.k8s_uid).filter(|uid| !uid.is_empty()),
            mtu: None,
            wired: Some(Wired { ifindex: self.interface_index, mac, addresses }),
            labels: Wanted::read(&self.labels).map_err(|why| format!("labels: {why}"))?,
        })
    }

    /// Container and interface: of the body, or else of the path, where both may not differ.
    fn attachment(&self, id: &str) -> Result<(String, String), String> {
        let named = match id.split_once(':') {
            Some(("cni-attachment-id", rest)) => rest.split_once(':').unwrap_or((rest, "")),
            Some(("container-id", rest)) => (rest, ""),
            _ => {
                return Err(format!(
                    "{id:?}: an endpoint is made under the name of its attachment, \
                     cni-attachment-id:CONTAINER:INTERFACE; the agent gives it a number"
                ));
            }
        };
        let one = |field: &str, given: &str, named: &str| match (given, named) {
            ("", "") => Err(format!("{field}: it is required")),
            ("", one) | (one, "") => Ok(one.to_owned()),
            (given, named) if given == named => Ok(given.to_owned()),
            (given, named) => Err(format!("{field}: {given:?} is not {named:?} of the path")),
        };
        Ok((
            one("container-id", &self.container_id, named.0)?,
            one("container-interface-name", &self.container_interface_name, named.1)?,
        ))
    }

    fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        let given = self.addressing.iter();
        let given = given.flat_map(|of| [(true, &of.ipv4), (false, &of.ipv6)]);
        given
            .filter(|(_, text)| !text.is_empty())
            .map(|(v4, text)| match text.parse::<IpAddr>() {
                Ok(address) if address.is_ipv4() == v4 => Ok(address),
                _ => {
                    let family = if v4 { "ipv4" } else { "ipv6" };
                    Err(format!("addressing.{family}: {text:?} is no {family} address"))
                }
            })
            .collect()
    }

    /// A field that asks for something else than what an endpoint is.
    pub(super) fn differs(&self, endpoint: &LocalEndpoint) -> Option<&'static str> {
        let text = |address: Option<String>| address.unwrap_or_default();
        let addressing = self.addressing.iter().flat_map(|of| {
            [
                (
                    "addressing.ipv4",
                    of.ipv4.as_str(),
                    text(endpoint.ipv4.map(|one| one.to_string())),
                ),
                (
                    "addressing.ipv6",
                    of.ipv6.as_str(),
                    text(endpoint.ipv6.map(|one| one.to_string())),
                ),
            ]
        });
        let named = [
            ("container-id", self.container_id.as_str(), endpoint.container_id.clone()),
            (
                "container-interface-name",
                self.container_interface_name.as_str(),
                endpoint.ifname.clone(),
            ),
            ("host-mac", self.host_mac.as_str(), endpoint.node_mac.to_string()),
            ("interface-name", self.interface_name.as_str(), endpoint.host_device.clone()),
            ("k8s-namespace", self.k8s_namespace.as_str(), endpoint.namespace.clone()),
            ("k8s-pod-name", self.k8s_pod_name.as_str(), endpoint.pod.clone()),
            ("mac", self.mac.as_str(), endpoint.mac.to_string()),
        ];
        let mut all = addressing.chain(named);
        let odd = all.find(|(_, wanted, is)| !wanted.is_empty() && wanted != is);
        odd.map(|(field, ..)| field)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Change, Fault};
    use crate::device::name::pod_device;
    use crate::endpoint::testing::endpoint;

    fn body() -> Value {
        json!({"state": "waiting-for-identity", "container-id": "c1", "container-interface-name": "eth0",
            "interface-name": pod_device("c1", "eth0"), "interface-index": 9, "mac": "02:00:00:00:00:01",
            "k8s-namespace": "shop", "k8s-pod-name": "web", "k8s-uid": "u", "sync-build-endpoint": true,
            "addressing": {"ipv4": "10.0.0.9", "ipv4-expiration-uuid": "x"}})
    }

    #[test]
    fn a_request_says_all_that_is_needed() {
        let read = |change: &Value, id: &str| {
            let change = Change::read(change.to_string().as_bytes());
            let change = change.map_err(|fault| match fault {
                Fault::Object(code, _) => code.to_string(),
                Fault::Text(why) => why,
            });
            change.and_then(|change| change.request(id))
        };
        let id = "cni-attachment-id:c1:eth0";
        let request = read(&body(), id).expect("a request");
        let wired = request.wired.expect("a device");
        assert_eq!((request.container_id.as_str(), request.ifname.as_str()), ("c1", "eth0"));
        assert_eq!(request.pod.map(|pod| pod.to_string()), Some("shop/web".into()));
        assert_eq!(wired.addresses, [("10.0.0.9".parse().expect("an address"), None)]);
        let mut short = body();
        for field in
            ["container-id", "container-interface-name", "interface-name", "interface-index"]
        {
            short[field].take();
            short.as_object_mut().expect("fields").remove(field);
        }
        assert!(read(&short, id).is_ok(), "the path says it");
        let cases = [
            ("state", json!(null), "602"),
            ("state", json!("odd"), "606"),
            ("state", json!(7), "400"),
            ("container-id", json!("c2"), "container-id"),
            ("interface-name", json!("eth7"), "interface-name"),
            ("mac", json!("02"), "mac"),
            ("k8s-namespace", json!(""), "k8s-namespace"),
            ("addressing", json!({"ipv4": "fd00::1"}), "addressing.ipv4"),
            ("addressing", json!({}), "addressing"),
            ("k8s-uid", json!("u".repeat(600)), "k8s-uid"),
        ];
        for (field, value, said) in cases {
            let mut change = body();
            change[field] = value;
            let why = read(&change, id).expect_err(said);
            assert!(why.starts_with(said), "{field}: {why}");
        }
        for id in ["7", "cilium-local:7", "pod-name:shop/web", "cni-attachment-id:c2:eth0"] {
            assert!(read(&body(), id).is_err(), "{id}");
        }
    }

    #[test]
    fn a_change_to_what_there_is_differs_nowhere() {
        let web = endpoint(7, "c1", "web");
        let differs = |change: Value| {
            Change::read(change.to_string().as_bytes()).expect("a change").differs(&web)
        };
        assert_eq!(differs(json!({"state": "ready"})), None);
        assert_eq!(
            differs(json!({"state": "ready", "container-id": "c1", "k8s-pod-name": "web"})),
            None
        );
        assert_eq!(differs(json!({"state": "ready", "k8s-pod-name": "db"})), Some("k8s-pod-name"));
        let other = json!({"state": "ready", "addressing": {"ipv4": "10.0.0.3"}});
        assert_eq!(differs(other), Some("addressing.ipv4"));
    }
}
