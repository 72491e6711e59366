//! Decides how `monitor -j` tells an event: the objects of Cilium's monitor, so that what reads those goes on.
//!
//! Left out are the dumps of each head that Cilium has in `summary`: `l2`, `l3` and `l4` say who sends to whom.
//! Verdicts, which Cilium's monitor writes as plain lines here, are objects, too.

use serde_json::{Map, Value, json};

use crate::output::text;

/// The event as Cilium's monitor has it; `bytes` are the packet's first.
pub(super) fn object(event: &Value, bytes: &[u8]) -> Value {
    let mut object = json!({
        // The ring doesn't tell the CPU.
        "cpu": "CPU 00:",
        "type": event["type"],
        "mark": format!("{:#x}", event["hash"].as_u64().unwrap_or(0)),
        "source": event["source"],
        "bytes": event["length"],
    });
    let more = match text(&event["type"]).as_str() {
        "drop" => json!({
            "reason": event["reasonText"],
            "srcLabel": event["sourceIdentity"],
            "dstLabel": event["destinationIdentity"],
            "dstID": event["destination"],
            "Line": 0,
            "File": 0,
            "ExtError": event["extError"],
            "Ifindex": event["ifindex"],
        }),
        "trace" => json!({
            "ifindex": event["device"],
            "state": event["state"],
            "observationPoint": event["point"],
            "traceSummary": text(&event["line"]).split(" flow 0x").next(),
            "srcLabel": event["sourceIdentity"],
            "dstLabel": event["destinationIdentity"],
            "dstID": event["destination"],
            "IpTraceID": 0,
        }),
        _ => {
            let names =
                ["remoteIdentity", "direction", "action", "proto", "port", "match", "rules"];
            names.iter().map(|name| ((*name).to_owned(), event[*name].clone())).collect()
        }
    };
    let summary = summary(&event["packet"], bytes);
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
        if !summary.is_empty() {
            object.insert("summary".into(), summary.into());
        }
    }
    object
}

/// Who sends to whom on each layer.
fn summary(packet: &Value, bytes: &[u8]) -> Map<String, Value> {
    let mut layers = Map::new();
    let mut layer = |name: &str, from: String, to: String| {
        layers.insert(name.into(), json!({"src": from, "dst": to}));
    };
    if let Some(macs) = bytes.get(..12) {
        let mac = |bytes: &[u8]| {
            let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            digits.join(":")
        };
        layer("l2", mac(&macs[6..]), mac(&macs[..6]));
    }
    if !packet.is_null() {
        layer("l3", text(&packet["source"]), text(&packet["destination"]));
        let ports = matches!(packet["protocol"].as_u64(), Some(6 | 17 | 132));
        if ports && packet["fragment"] != true {
            layer("l4", text(&packet["source_port"]), text(&packet["destination_port"]));
        }
    }
    layers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::object;

    #[test]
    fn the_keys_are_those_of_cilium_s_monitor() {
        let packet = json!({"source": "10.0.0.1", "source_port": 4711, "destination": "10.0.0.2",
            "destination_port": 80, "protocol": 6, "flags": 2, "fragment": false});
        let drop = json!({"type": "drop", "reason": 133, "reasonText": "Policy denied", "source": 7,
            "destination": 8, "sourceIdentity": 300, "destinationIdentity": 2, "ifindex": 12, "extError": 0,
            "hash": 255, "length": 74, "packet": packet, "line": "xx drop"});
        let want = json!({"cpu": "CPU 00:", "type": "drop", "mark": "0xff", "reason": "Policy denied", "source": 7,
            "bytes": 74, "srcLabel": 300, "dstLabel": 2, "dstID": 8, "Line": 0, "File": 0, "ExtError": 0,
            "Ifindex": 12, "summary": {"l2": {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"},
            "l3": {"src": "10.0.0.1", "dst": "10.0.0.2"}, "l4": {"src": "4711", "dst": "80"}}});
        assert_eq!(object(&drop, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]), want);
        let trace = json!({"type": "trace", "point": "to-endpoint", "source": 7, "destination": 8, "state": "new",
            "sourceIdentity": 300, "destinationIdentity": 2, "ifindex": 12, "device": "lxc1", "hash": 0, "length": 60,
            "packet": null, "line": "-> endpoint 8 flow 0x0 , identity 300->2"});
        let want = json!({"cpu": "CPU 00:", "type": "trace", "mark": "0x0", "ifindex": "lxc1", "state": "new",
            "observationPoint": "to-endpoint", "traceSummary": "-> endpoint 8", "source": 7, "bytes": 60,
            "srcLabel": 300, "dstLabel": 2, "dstID": 8, "IpTraceID": 0});
        assert_eq!(object(&trace, &[]), want);
    }
}
