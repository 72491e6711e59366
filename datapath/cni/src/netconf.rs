//! Decides whether a network configuration can be served, and says which field is at fault.

use serde_json::{Map, Value};

use crate::environment::{container_id_fault, ifname_fault};
use crate::error::Error;
use crate::version::Version;

/// The largest MTU of a device that can be asked for.
const MAX_MTU: u64 = 65520;

/// A network configuration whose every known field has the right form.
#[derive(Debug, Clone)]
pub(crate) struct NetConf {
    pub(crate) version: Version,
    pub(crate) log_file: String,
    pub(crate) log_json: bool,
    pub(crate) debug: bool,
    /// The whole configuration, for the agent.
    pub(crate) raw: Map<String, Value>,
}

impl NetConf {
    /// Reads the configuration of a request.
    pub(crate) fn parse(input: &[u8]) -> Result<Self, Error> {
        let raw = object(input)?;
        let version = version(&raw)?;
        let fields = Fields(&raw);
        let name = fields.string("name")?;
        if name.is_empty() {
            return Err(fault("name", "is missing"));
        }
        if let Some(reason) = container_id_fault(name) {
            return Err(fault("name", format!("{reason}, is {name:?}")));
        }
        fields.string("type")?;
        for field in [
            "args",
            "ipam",
            "eni",
            "azure",
            "alibaba-cloud",
            "capabilities",
            "runtimeConfig",
            "prevResult",
        ] {
            fields.object(field)?;
        }
        fields.bool("enable-route-mtu")?;
        fields.unsigned("mtu", MAX_MTU)?;
        if !matches!(fields.string("chaining-mode")?, "" | "none") {
            let reason = "chaining is not supported; allowed is \"none\"".to_owned();
            return Err(Error::Unsupported { field: "chaining-mode", reason });
        }
        if let Some(Value::Object(ipam)) = raw.get("ipam")
            && !Fields(ipam).string("type")?.is_empty()
        {
            let reason = "a delegated plugin is not supported; leave the field out".to_owned();
            return Err(Error::Unsupported { field: "ipam.type", reason });
        }
        let log_json = match fields.string("log-format")? {
            "" | "text" => false,
            "json" => true,
            other => {
                return Err(fault(
                    "log-format",
                    format!("must be \"text\" or \"json\", is {other:?}"),
                ));
            }
        };
        valid_attachments(&raw)?;
        let log_file = fields.string("log-file")?.to_owned();
        let debug = fields.bool("enable-debug")?;
        Ok(Self { version, log_file, log_json, debug, raw })
    }
}

/// The version that a request asks for, if it can be told at all.
pub(crate) fn version_of(input: &[u8]) -> Result<Version, Error> {
    version(&object(input)?)
}

fn object(input: &[u8]) -> Result<Map<String, Value>, Error> {
    serde_json::from_slice(input).map_err(|cause| Error::Decode(cause.to_string()))
}

fn version(raw: &Map<String, Value>) -> Result<Version, Error> {
    Version::parse(Fields(raw).string("cniVersion")?)
}

/// `cni.dev/valid-attachments` and its older spelling are lists of container and interface.
fn valid_attachments(raw: &Map<String, Value>) -> Result<(), Error> {
    for field in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        let list = match raw.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(list)) => list,
            Some(other) => return Err(fault(field, format!("must be a list, is {other}"))),
        };
        for (place, item) in list.iter().enumerate() {
            let at = |key: &str| format!("{field}[{place}].{key}");
            for (key, check) in [
                ("containerID", container_id_fault as fn(&str) -> Option<&str>),
                ("ifname", ifname_fault),
            ] {
                let value = item.get(key).and_then(Value::as_str).unwrap_or("");
                if value.is_empty() {
                    return Err(fault(at(key), "must be a string that is not empty"));
                }
                if let Some(reason) = check(value) {
                    return Err(fault(at(key), format!("{reason}, is {value:?}")));
                }
            }
        }
    }
    Ok(())
}

fn fault(field: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::Field { field: field.into(), reason: reason.into() }
}

/// Typed access to fields that may be absent.
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn given(&self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn string(&self, field: &str) -> Result<&'a str, Error> {
        match self.given(field) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(fault(field, format!("must be a string, is {other}"))),
        }
    }

    fn bool(&self, field: &str) -> Result<bool, Error> {
        match self.given(field) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(fault(field, format!("must be true or false, is {other}"))),
        }
    }

    fn object(&self, field: &str) -> Result<(), Error> {
        match self.given(field) {
            None | Some(Value::Object(_)) => Ok(()),
            Some(other) => Err(fault(field, format!("must be an object, is {other}"))),
        }
    }

    fn unsigned(&self, field: &str, max: u64) -> Result<(), Error> {
        match self.given(field) {
            None => Ok(()),
            Some(value) if value.as_u64().is_some_and(|number| number <= max) => Ok(()),
            Some(other) => {
                Err(fault(field, format!("must be a number from 0 to {max}, is {other}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::NetConf;

    #[test]
    fn accepts_what_the_agent_writes() {
        let text = json!({
            "cniVersion": "0.3.1", "name": "cilium", "type": "cilium-cni",
            "enable-debug": false, "log-file": "/var/run/cilium/cilium-cni.log", "unknown": [1],
        });
        let config = NetConf::parse(text.to_string().as_bytes()).unwrap();
        assert_eq!((config.version.text(), config.debug, config.log_json), ("0.3.1", false, false));
    }

    #[test]
    fn names_the_field_at_fault() {
        let cases = [
            (json!({}), "name", 7),
            (json!({"name": 3}), "name", 7),
            (json!({"name": "a/b"}), "name", 7),
            (json!({"name": "n", "cniVersion": "7.0.0"}), "cniVersion", 1),
            (json!({"name": "n", "cniVersion": 1}), "cniVersion", 7),
            (json!({"name": "n", "mtu": "1500"}), "mtu", 7),
            (json!({"name": "n", "mtu": -1}), "mtu", 7),
            (json!({"name": "n", "mtu": 70000}), "mtu", 7),
            (json!({"name": "n", "enable-debug": "yes"}), "enable-debug", 7),
            (json!({"name": "n", "log-file": true}), "log-file", 7),
            (json!({"name": "n", "log-format": "xml"}), "log-format", 7),
            (json!({"name": "n", "ipam": []}), "ipam", 7),
            (json!({"name": "n", "ipam": {"type": "host-local"}}), "ipam.type", 2),
            (json!({"name": "n", "chaining-mode": "aws-cni"}), "chaining-mode", 2),
            (json!({"name": "n", "prevResult": "x"}), "prevResult", 7),
            (json!({"name": "n", "cni.dev/valid-attachments": {}}), "cni.dev/valid-attachments", 7),
            (
                json!({"name": "n", "cni.dev/valid-attachments": [{"containerID": "c"}]}),
                "[0].ifname",
                7,
            ),
            (json!({"name": "n", "cni.dev/valid-attachments": [3]}), "[0].containerID", 7),
        ];
        for (config, field, code) in cases {
            let error = NetConf::parse(config.to_string().as_bytes()).unwrap_err();
            assert!(error.to_string().contains(field), "{config}: {error}");
            assert_eq!(error.code(), code, "{config}: {error}");
        }
    }

    #[test]
    fn malformed_input_is_an_error() {
        let good = br#"{"cniVersion":"1.0.0","name":"cilium","mtu":1500,"ipam":{}}"#;
        for cut in 0..good.len() {
            assert!(NetConf::parse(&good[..cut]).is_err(), "cut at {cut}");
            let mut broken = good.to_vec();
            broken[cut] ^= 0x95;
            // Some flips land in the name and are fine; none may panic.
            let _ = NetConf::parse(&broken);
        }
        for text in [&b"[]"[..], b"null", b"3", b"\xff\xfe", b"{\"name\":\"a\"} trailing"] {
            assert_eq!(NetConf::parse(text).unwrap_err().code(), 6);
        }
    }
}
