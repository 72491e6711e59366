//! What is written down of each endpoint, so that the next agent finds it again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use cilia_crds::{Labels, NumericIdentity};
use serde::{Deserialize, Serialize};

use super::{EndpointState, Error, LocalEndpoint, NamedPort, OwnLabels};
use crate::device::name::Mac;

/// The directories `<id>/ep.json` below the agent's state directory.
#[derive(Debug, Clone)]
pub struct StateFiles {
    root: PathBuf,
}

/// An endpoint on disk.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    id: u16,
    namespace: String,
    pod: String,
    pod_uid: String,
    /// Nothing in files of agents that knew no difference.
    #[serde(default)]
    object_uid: Option<String>,
    container_id: String,
    ifname: String,
    netns: String,
    host_device: String,
    ifindex: u32,
    mac: String,
    node_mac: String,
    ipv4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Addr>,
    identity: Option<u32>,
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "OwnLabels::is_empty")]
    own: OwnLabels,
    #[serde(default)]
    pod_labels: BTreeMap<String, String>,
    #[serde(default)]
    service_account: String,
    #[serde(default)]
    named_ports: Vec<NamedPort>,
    #[serde(default)]
    sequence: u64,
    #[serde(default)]
    published_uid: Option<String>,
}

/// What lies in a directory.
#[derive(Debug)]
pub enum Found {
    /// An endpoint.
    Endpoint(Box<LocalEndpoint>),
    /// Something that can't be one, with the reason.
    Broken(PathBuf, String),
}

impl StateFiles {
    /// The files below `<state-dir>/state`.
    pub fn new(state_dir: &Path) -> Self {
        Self { root: state_dir.join("state") }
    }

    /// Writes an endpoint down; a reader sees the former state or the new one, whole.
    pub fn write(&self, endpoint: &LocalEndpoint) -> Result<(), Error> {
        let directory = self.directory(endpoint.id);
        let path = directory.join("ep.json");
        let draft = directory.join("ep.json.draft");
        let failed = |cause| Error::File { operation: "write", path: path.clone(), cause };
        let text = serde_json::to_vec_pretty(&Record::of(endpoint))
            .map_err(|cause| failed(cause.into()))?;
        fs::create_dir_all(&directory).map_err(failed)?;
        fs::write(&draft, text).map_err(failed)?;
        fs::rename(&draft, &path).map_err(failed)
    }

    /// Forgets an endpoint; one that is not there is fine.
    pub fn remove(&self, id: u16) -> Result<(), Error> {
        self.discard(&self.directory(id))
    }

    /// Removes a directory that holds no endpoint.
    #[expect(clippy::unused_self, reason = "reads like the other verbs of the files")]
    pub fn discard(&self, directory: &Path) -> Result<(), Error> {
        match fs::remove_dir_all(directory) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(Error::File { operation: "remove", path: directory.to_owned(), cause })
            }
            _ => Ok(()),
        }
    }

    /// Keeps a damaged file for whoever wants to know what happened to it.
    #[expect(clippy::unused_self, reason = "reads like the other verbs of the files")]
    pub fn set_aside(&self, directory: &Path) -> Result<(), Error> {
        let path = directory.join("ep.json");
        match fs::rename(&path, directory.join("ep.json.broken")) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(Error::File { operation: "set aside", path, cause })
            }
            _ => Ok(()),
        }
    }

    /// Everything that is written down.
    pub fn read_all(&self) -> Result<Vec<Found>, Error> {
        let failed = |cause| Error::File { operation: "list", path: self.root.clone(), cause };
        let entries = match fs::read_dir(&self.root) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| Ok(entry?.path())).collect();
        let mut paths = paths.map_err(failed)?;
        // Other parts keep files of their own here; endpoints have directories named by number.
        paths.retain(|path| number(path).is_some());
        paths.sort();
        Ok(paths
            .into_iter()
            .map(|path| read(&path).unwrap_or_else(|reason| Found::Broken(path, reason)))
            .collect())
    }

    fn directory(&self, id: u16) -> PathBuf {
        self.root.join(id.to_string())
    }
}

/// The endpoint whose directory this is.
pub(super) fn number(directory: &Path) -> Option<u16> {
    directory.file_name()?.to_str()?.parse().ok()
}

fn read(directory: &Path) -> Result<Found, String> {
    let text = fs::read(directory.join("ep.json")).map_err(|cause| cause.to_string())?;
    let record: Record = serde_json::from_slice(&text).map_err(|cause| cause.to_string())?;
    if number(directory) != Some(record.id) || record.id == 0 {
        return Err(format!("it says that it is endpoint {}", record.id));
    }
    record.endpoint().map(|endpoint| Found::Endpoint(Box::new(endpoint)))
}

impl Record {
    fn of(endpoint: &LocalEndpoint) -> Self {
        let endpoint = endpoint.clone();
        Self {
            id: endpoint.id,
            namespace: endpoint.namespace,
            pod: endpoint.pod,
            pod_uid: endpoint.pod_uid,
            object_uid: Some(endpoint.object_uid),
            container_id: endpoint.container_id,
            ifname: endpoint.ifname,
            netns: endpoint.netns,
            host_device: endpoint.host_device,
            ifindex: endpoint.ifindex,
            mac: endpoint.mac.to_string(),
            node_mac: endpoint.node_mac.to_string(),
            ipv4: endpoint.ipv4,
            ipv6: endpoint.ipv6,
            identity: endpoint.identity.map(|identity| identity.0),
            labels: endpoint.labels.to_security_labels(),
            own: endpoint.own.lasting(),
            pod_labels: endpoint.pod_labels,
            service_account: endpoint.service_account,
            named_ports: endpoint.named_ports,
            sequence: endpoint.sequence,
            published_uid: endpoint.published_uid,
        }
    }

    fn endpoint(self) -> Result<LocalEndpoint, String> {
        let mac = |text: &str| {
            Mac::parse(text).ok_or_else(|| format!("{text:?} is no link-layer address"))
        };
        Ok(LocalEndpoint {
            id: self.id,
            namespace: self.namespace,
            pod: self.pod,
            object_uid: self.object_uid.unwrap_or_else(|| self.pod_uid.clone()),
            pod_uid: self.pod_uid,
            container_id: self.container_id,
            ifname: self.ifname,
            netns: self.netns,
            host_device: self.host_device,
            ifindex: self.ifindex,
            mac: mac(&self.mac)?,
            node_mac: mac(&self.node_mac)?,
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            identity: self.identity.map(NumericIdentity),
            labels: Labels::from_security_labels(&self.labels),
            own: self.own,
            pod_labels: self.pod_labels,
            service_account: self.service_account,
            named_ports: self.named_ports,
            sequence: self.sequence,
            state: EndpointState::Restoring,
            published_uid: self.published_uid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, StateFiles};
    use crate::endpoint::EndpointState;
    use crate::endpoint::testing::endpoint;

    #[test]
    fn what_is_written_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = StateFiles::new(dir.path());
        assert!(files.read_all().unwrap().is_empty());
        let mut web = endpoint(7, "c1", "web");
        files.write(&web).unwrap();
        files.write(&web).unwrap();
        web.state = EndpointState::Restoring;
        match files.read_all().unwrap().as_slice() {
            [Found::Endpoint(found)] => assert_eq!(**found, web),
            other => panic!("{other:?}"),
        }
        files.remove(7).unwrap();
        files.remove(7).unwrap();
        assert!(files.read_all().unwrap().is_empty());
    }

    #[test]
    fn what_is_broken_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let files = StateFiles::new(dir.path());
        let write = |place: &str, text: &str| {
            let directory = dir.path().join("state").join(place);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("ep.json"), text).unwrap();
        };
        write("1", "{\"id\": 1");
        write("2", "{}");
        write("templates", "not an endpoint's");
        std::fs::create_dir(dir.path().join("state/3")).unwrap();
        files.write(&endpoint(4, "c", "p")).unwrap();
        std::fs::rename(dir.path().join("state/4"), dir.path().join("state/5")).unwrap();
        let found = files.read_all().unwrap();
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|found| matches!(found, Found::Broken(..))), "{found:?}");
    }
}
