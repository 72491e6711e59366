//! Decides what Cilia has written to the API server, by the server's own record.

use std::fs;

use serde_json::Value;

use super::Stage;
use crate::Error;
use crate::error::io;

/// A place in the record, to look at what comes after it.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    offset: usize,
}

/// The place where the record ends now.
pub fn mark(stage: &Stage) -> Result<Mark, Error> {
    Ok(Mark { offset: read(stage)?.len() })
}

/// The writes of Cilia's service accounts since `mark`, each as `user verb resource/name`.
///
/// Leases are left out: holding one is writing to it. So are events, which are for people.
pub fn writes_since(stage: &Stage, mark: Mark) -> Result<Vec<String>, Error> {
    let text = read(stage)?;
    let new = text.get(mark.offset..).unwrap_or(&text);
    Ok(new.lines().filter_map(|line| cilias(&serde_json::from_str(line).ok()?)).collect())
}

fn read(stage: &Stage) -> Result<String, Error> {
    let path = stage.cluster.layout.log("audit");
    fs::read_to_string(&path).map_err(io("read", &path))
}

fn cilias(entry: &Value) -> Option<String> {
    let user = entry["user"]["username"].as_str()?;
    let user = user.strip_prefix("system:serviceaccount:kube-system:cilium")?;
    let object = &entry["objectRef"];
    let resource = object["resource"].as_str()?;
    if matches!(resource, "leases" | "events") {
        return None;
    }
    let verb = entry["verb"].as_str().unwrap_or_default();
    let name = object["name"].as_str().unwrap_or_default();
    let part = object["subresource"].as_str().map(|part| format!("/{part}")).unwrap_or_default();
    Some(format!("cilium{user} {verb} {resource}{part} {name}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::cilias;

    #[test]
    fn keeps_what_cilia_wrote() {
        let entry = |user: &str, resource: &str| {
            json!({
                "verb": "patch",
                "user": {"username": format!("system:serviceaccount:kube-system:{user}")},
                "objectRef": {"resource": resource, "name": "a", "subresource": "status"},
            })
        };
        let want = "cilium-operator patch ciliumnodes/status a";
        assert_eq!(cilias(&entry("cilium-operator", "ciliumnodes")).as_deref(), Some(want));
        assert_eq!(cilias(&entry("cilium-operator", "leases")), None);
        assert_eq!(cilias(&entry("coredns", "ciliumnodes")), None);
    }
}
