//! What was written to the API server, from its audit log.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

/// Metadata of every write, except what the API server does on its own behalf.
pub(super) const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:apiserver]
- level: None
  verbs: [get, list, watch]
- level: Metadata
";

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The plural, with the subresource after a slash.
    pub resource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name, as far as the request told it.
    pub name: String,
    /// The user agent of who wrote.
    pub agent: String,
    /// The HTTP status of the answer.
    pub code: u16,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<Object>,
    response_status: Option<Status>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Status {
    code: u16,
}

pub(super) async fn writes(log: &Path) -> Vec<Write> {
    // The log is written just after the answer goes out; the last line may be incomplete.
    loop {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(50)).await;
        if std::fs::metadata(log).map_or(0, |file| file.len()) == text.len() as u64 {
            return text.lines().filter_map(parse).collect();
        }
    }
}

fn parse(line: &str) -> Option<Write> {
    let entry: Entry = serde_json::from_str(line).expect("read a line of the audit log");
    let object = entry.object_ref?;
    let subresource = if object.subresource.is_empty() {
        String::new()
    } else {
        format!("/{}", object.subresource)
    };
    Some(Write {
        verb: entry.verb,
        resource: object.resource + &subresource,
        namespace: object.namespace,
        name: object.name,
        agent: entry.user_agent,
        code: entry.response_status.map_or(0, |status| status.code),
    })
}
