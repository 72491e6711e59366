//! What the agent is told about a request: the attachment and the network configuration.

use serde_json::{Map, Value, json};

use crate::environment::Attachment;

/// The body of a request to the agent.
pub(crate) fn body(attachment: &Attachment, config: &Map<String, Value>) -> Vec<u8> {
    let mut config = config.clone();
    let previous = config.remove("prevResult").unwrap_or(Value::Null);
    json!({
        "container_id": attachment.container_id,
        "netns": attachment.netns,
        "ifname": attachment.ifname,
        "args": attachment.args,
        "config": config,
        "prev_result": previous,
    })
    .to_string()
    .into_bytes()
}
