//! What the plugin says.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use super::Refusal;
use crate::device::name::pod_device;
use crate::endpoint::{self, PodKey};

const NAME: &str = "K8S_POD_NAME";
const NAMESPACE: &str = "K8S_POD_NAMESPACE";
const UID: &str = "K8S_POD_UID";

/// The body of every request.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Request {
    #[serde(default)]
    pub(super) container_id: String,
    #[serde(default)]
    pub(super) netns: String,
    #[serde(default)]
    pub(super) ifname: String,
    #[serde(default)]
    args: BTreeMap<String, String>,
    #[serde(default)]
    config: Value,
    #[serde(default)]
    prev_result: Value,
}

impl Request {
    /// Container and interface.
    pub(super) fn attachment_id(&self) -> String {
        format!("{}:{}", self.container_id, self.ifname)
    }

    /// The pod that is to be connected.
    pub(super) fn attachment(self) -> Result<endpoint::Request, endpoint::Error> {
        let given = |name: &str| self.args.get(name).cloned().filter(|value| !value.is_empty());
        let pod = match (given(NAMESPACE), given(NAME)) {
            (Some(namespace), Some(name)) => Some(PodKey { namespace, name }),
            (None, None) => None,
            (_, name) => {
                let missing = if name.is_none() { NAME } else { NAMESPACE };
                let reason =
                    format!("{missing} is missing; namespace and name of a pod belong together");
                return Err(endpoint::Error::Request { field: "CNI_ARGS", reason });
            }
        };
        let mtu =
            self.config.get("mtu").and_then(Value::as_u64).and_then(|mtu| u32::try_from(mtu).ok());
        let pod_uid = given(UID);
        for (field, value) in
            [("container_id", &self.container_id), ("netns", &self.netns), ("ifname", &self.ifname)]
        {
            if value.is_empty() {
                return Err(endpoint::Error::Request { field, reason: "is missing".to_owned() });
            }
        }
        let Self { container_id, netns, ifname, .. } = self;
        let (wired, labels) = (None, endpoint::Wanted::default());
        Ok(endpoint::Request { container_id, netns, ifname, pod, pod_uid, mtu, wired, labels })
    }

    /// The addresses that the ADD gave, as the runtime remembers them.
    pub(super) fn previous_addresses(&self) -> Vec<IpAddr> {
        let ips = self.prev_result.get("ips").and_then(Value::as_array).into_iter().flatten();
        ips.filter_map(|ip| ip.get("address")?.as_str()?.split('/').next()?.parse().ok()).collect()
    }

    /// The devices of the attachments that the runtime still knows.
    pub(super) fn valid_devices(&self) -> Result<HashSet<String>, Refusal> {
        let field = "cni.dev/valid-attachments";
        let list = self.config.get(field).or_else(|| self.config.get("cni.dev/attachments"));
        let list = list.and_then(Value::as_array).ok_or_else(|| Refusal {
            code: super::DECODE,
            msg: format!("network configuration: field {field:?}: is missing; without it every pod would be disconnected"),
            details: String::new(),
        })?;
        let text = |item: &Value, key: &str| {
            item.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let device = |item| pod_device(&text(item, "containerID"), &text(item, "ifname"));
        Ok(list.iter().map(device).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Request, pod_device};

    fn request(value: Value) -> Request {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_is_named_whole_or_not_at_all() {
        let with = |args: Value| {
            let request = json!({"container_id": "c", "netns": "/n", "ifname": "eth0", "args": args, "config": {"mtu": 1400}});
            self::request(request).attachment()
        };
        let whole =
            with(json!({"K8S_POD_NAME": "p", "K8S_POD_NAMESPACE": "n", "K8S_POD_UID": "u"}))
                .unwrap();
        assert_eq!(
            (whole.pod.unwrap().to_string(), whole.pod_uid, whole.mtu),
            ("n/p".into(), Some("u".into()), Some(1400))
        );
        assert!(with(json!({})).unwrap().pod.is_none());
        let error = with(json!({"K8S_POD_NAME": "p"})).unwrap_err();
        assert!(error.to_string().contains("K8S_POD_NAMESPACE"), "{error}");
        let error =
            request(json!({"container_id": "c", "ifname": "eth0"})).attachment().unwrap_err();
        assert!(error.to_string().starts_with("netns"), "{error}");
    }

    #[test]
    fn gc_without_a_list_is_refused() {
        assert!(request(json!({"config": {}})).valid_devices().is_err());
        let list = json!({"config": {"cni.dev/valid-attachments": [{"containerID": "c", "ifname": "eth0"}]}});
        assert!(request(list).valid_devices().unwrap().contains(&pod_device("c", "eth0")));
    }

    #[test]
    fn previous_results_may_be_anything() {
        for previous in
            [json!(null), json!([]), json!({"ips": [{"address": 3}, {"address": "x/1"}, 4]})]
        {
            assert!(request(json!({"prev_result": previous})).previous_addresses().is_empty());
        }
        let previous = json!({"prev_result": {"ips": [{"address": "10.0.0.2/32"}, {"address": "fd00::2/128"}]}});
        assert_eq!(request(previous).previous_addresses().len(), 2);
    }
}
