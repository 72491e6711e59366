//! Turns the agent's result into the form of the CNI version that was asked for.
//!
//! The agent answers in the form of 1.1.0, which says the most.

use serde_json::{Map, Value, json};

use crate::version::Version;

/// The result as `version` knows it.
pub(crate) fn convert(result: &Value, version: Version) -> Value {
    let mut converted = Map::new();
    converted.insert("cniVersion".to_owned(), version.text().into());
    if version.has_lists() {
        for list in ["interfaces", "ips", "routes"] {
            let items =
                items(result, list).map(|item| item_of(list, item, version)).collect::<Vec<_>>();
            if !items.is_empty() {
                converted.insert(list.to_owned(), Value::Array(items));
            }
        }
    } else {
        for (family, is_v6) in [("ip4", false), ("ip6", true)] {
            if let Some(config) = single(result, is_v6) {
                converted.insert(family.to_owned(), config);
            }
        }
    }
    converted.insert("dns".to_owned(), result.get("dns").cloned().unwrap_or_else(|| json!({})));
    Value::Object(converted)
}

/// One entry of a list; MTUs belong to 1.1.0, versions of addresses to what came before 1.0.0.
fn item_of(list: &str, item: &Value, version: Version) -> Value {
    let mut item = item.clone();
    if let Value::Object(fields) = &mut item {
        if !version.has_status() {
            fields.remove("mtu");
        }
        if list == "ips" && version.has_address_version() {
            let is_v6 = text(fields.get("address")).contains(':');
            fields.insert("version".to_owned(), if is_v6 { "6" } else { "4" }.into());
        }
    }
    item
}

/// `ip4` or `ip6` of the first versions: one address, and the routes of its family.
fn single(result: &Value, is_v6: bool) -> Option<Value> {
    let address =
        items(result, "ips").find(|item| text(item.get("address")).contains(':') == is_v6)?;
    let routes: Vec<Value> = items(result, "routes")
        .filter(|route| text(route.get("dst")).contains(':') == is_v6)
        .map(|route| {
            item_of("routes", route, Version::parse("").unwrap_or_else(|_| unreachable!()))
        })
        .collect();
    let mut config = json!({"ip": address.get("address")});
    if let Some(gateway) = address.get("gateway") {
        config["gateway"] = gateway.clone();
    }
    if !routes.is_empty() {
        config["routes"] = Value::Array(routes);
    }
    Some(config)
}

fn items<'a>(result: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    result.get(list).and_then(Value::as_array).into_iter().flatten()
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::convert;
    use crate::version::{SUPPORTED, Version};

    fn result() -> Value {
        json!({
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "lxc1", "mac": "aa"}, {"name": "eth0", "mac": "bb", "sandbox": "/ns", "mtu": 1500}],
            "ips": [
                {"address": "10.0.0.2/32", "gateway": "10.0.0.1", "interface": 1},
                {"address": "fd00::2/128", "gateway": "fd00::1", "interface": 1},
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1450}, {"dst": "::/0", "gw": "fd00::1"}],
        })
    }

    #[test]
    fn each_version_gets_its_form() {
        let got = |text: &str| convert(&result(), Version::parse(text).unwrap());
        assert_eq!(
            got("0.2.0"),
            json!({
                "cniVersion": "0.2.0",
                "ip4": {"ip": "10.0.0.2/32", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]},
                "ip6": {"ip": "fd00::2/128", "gateway": "fd00::1", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
                "dns": {},
            })
        );
        let middle = got("0.3.1");
        assert_eq!(
            (&middle["ips"][0]["version"], &middle["ips"][1]["version"]),
            (&json!("4"), &json!("6"))
        );
        assert_eq!(
            (middle["interfaces"][1].get("mtu"), middle["routes"][0].get("mtu")),
            (None, None)
        );
        let newest = got("1.1.0");
        assert_eq!(
            (newest["ips"][0].get("version"), &newest["routes"][0]["mtu"]),
            (None, &json!(1450))
        );
    }

    #[test]
    fn survives_what_is_no_result() {
        for version in SUPPORTED {
            for result in
                [json!(null), json!([]), json!({"ips": 3}), json!({"ips": [3], "routes": [{}]})]
            {
                let converted = convert(&result, Version::parse(version).unwrap());
                assert_eq!(converted["cniVersion"], *version);
            }
        }
    }
}
