//! Decides what the tests' pods are, and when one is there or gone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde_json::{Value, json};

use super::Stage;
use super::inside;
use crate::Error;
use crate::image::catalog::AGNHOST_IMAGE;
use crate::node::PAUSE_IMAGE;
use crate::wait::{Look, until};

/// How long a pod may take to run, or to be gone, on a busy machine; the scheduler alone may take
/// a minute to see that the API server is back.
const LIMIT: Duration = Duration::from_mins(2);
/// The same for a hundred of them.
const MANY_LIMIT: Duration = Duration::from_mins(4);

/// A pod to be made.
#[derive(Debug, Clone)]
pub struct Plan {
    namespace: String,
    name: String,
    node: Option<String>,
    labels: Vec<(String, String)>,
    args: Vec<String>,
}

/// A pod that runs.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its node.
    pub node: String,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
    /// A process in it.
    pub pid: i32,
}

impl Plan {
    /// A pod that does nothing; all it takes to send and receive from its network.
    pub fn idle(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            node: None,
            labels: vec![("app".to_owned(), name.to_owned())],
            args: Vec::new(),
        }
    }

    /// The same, on this node.
    #[must_use]
    pub fn on(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    /// The same, with one more label, or another value for one.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.retain(|(other, _)| other != key);
        self.labels.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The same, running agnhost with these arguments.
    #[must_use]
    pub fn agnhost(mut self, args: &[&str]) -> Self {
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    /// The manifest.
    pub fn manifest(&self) -> Value {
        let labels: serde_json::Map<_, _> =
            self.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let image = if self.args.is_empty() { PAUSE_IMAGE } else { AGNHOST_IMAGE };
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": self.namespace, "name": self.name, "labels": labels},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "enableServiceLinks": false,
                "containers": [{"name": "main", "image": image, "imagePullPolicy": "Never"}],
            },
        });
        if !self.args.is_empty() {
            pod["spec"]["containers"][0]["args"] = json!(self.args);
        }
        if let Some(node) = &self.node {
            pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        }
        pod
    }
}

impl Pod {
    /// A node's own network, to send and receive as what runs there does.
    pub fn of_node(stage: &Stage, name: &str) -> Result<Self, Error> {
        let node = stage.cluster.node(name)?;
        let pids = node.place.pids(stage.cluster.cgroups(), "kubelet");
        let pid = pids.first().ok_or_else(|| Error::Invalid(format!("{name} does not run")))?;
        let [IpAddr::V4(ipv4), IpAddr::V6(ipv6)] = node.addresses() else {
            return Err(Error::Invalid(format!("{name} has not an address of each family")));
        };
        Ok(Self {
            namespace: String::new(),
            name: name.to_owned(),
            uid: String::new(),
            node: name.to_owned(),
            ipv4,
            ipv6,
            pid: *pid,
        })
    }

    /// Both addresses, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.ipv4.into(), self.ipv6.into()]
    }

    /// Runs `work` on a thread in the pod's network.
    pub async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        inside::process(self.pid, work).await
    }
}

/// Makes a namespace; what is in a former one of that name is removed first.
pub async fn namespace(stage: &Stage, name: &str, annotations: &Value) -> Result<(), Error> {
    stage.delete("namespace", "", name).await?;
    stage
        .apply(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "annotations": annotations},
        }))
        .await?;
    // Pods are refused until the namespace's account is there.
    until(&format!("the account of namespace {name}"), LIMIT, || async {
        match stage.get("serviceaccount", name, "default").await {
            Ok(_) => Look::Done(()),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await
}

/// Has a namespace removed, without waiting for the last of it.
pub async fn leave(stage: &Stage, name: &str) -> Result<(), Error> {
    stage.cluster.kubectl(&["delete", "namespace", name, "--wait=false"]).await.map(drop)
}

/// Makes pods and waits until all of them run.
pub async fn run(stage: &Stage, plans: &[Plan]) -> Result<Vec<Pod>, Error> {
    let items: Vec<_> = plans.iter().map(Plan::manifest).collect();
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    let limit = if plans.len() > 10 { MANY_LIMIT } else { LIMIT };
    let namespace = plans.first().map(|plan| plan.namespace.clone()).unwrap_or_default();
    until(&format!("running of {} pods", plans.len()), limit, || async {
        let objects = match stage.list("pods", Some(&namespace)).await {
            Ok(objects) => objects,
            Err(error) => return Look::Not(error.to_string()),
        };
        let (mut found, mut not) = (Vec::new(), Vec::new());
        for plan in plans {
            match objects.iter().find(|pod| pod["metadata"]["name"] == plan.name.as_str()) {
                Some(object) => match running(stage, object) {
                    Ok(pod) => found.push(pod),
                    Err(why) => not.push(format!("{}: {why}", plan.name)),
                },
                None => not.push(format!("{}: not there", plan.name)),
            }
        }
        if not.is_empty() {
            return Look::Done(found);
        }
        let examples = not[..not.len().min(3)].join("; ");
        Look::Not(format!("{} of {} do not: {examples}", not.len(), plans.len()))
    })
    .await
}

/// Deletes pods and waits until they are gone.
pub async fn delete(stage: &Stage, pods: &[Pod]) -> Result<(), Error> {
    let Some(first) = pods.first() else { return Ok(()) };
    let mut args = vec!["--namespace", &first.namespace, "delete", "pod", "--timeout=120s"];
    args.extend(pods.iter().map(|pod| pod.name.as_str()));
    stage.cluster.kubectl(&args).await.map(drop)
}

fn running(stage: &Stage, object: &Value) -> Result<Pod, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = &object["status"];
    let container = &status["containerStatuses"][0];
    if status["phase"] != "Running" || container["state"].get("running").is_none() {
        return Err(format!("{} {}", status["phase"], container["state"]));
    }
    let addresses: Vec<IpAddr> = status["podIPs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|ip| ip["ip"].as_str()?.parse().ok())
        .collect();
    let ipv4 =
        addresses.iter().find_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None });
    let ipv6 =
        addresses.iter().find_map(|ip| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None });
    let (Some(ipv4), Some(ipv6)) = (ipv4, ipv6) else {
        return Err(format!("has the addresses {addresses:?}, not one of each family"));
    };
    let (uid, node) = (text(&object["metadata"]["uid"]), text(&object["spec"]["nodeName"]));
    let home = stage.cluster.node(&node).map_err(|error| error.to_string())?;
    let pid = home.pod_process(stage.cluster.cgroups(), &uid).ok_or("has no process yet")?;
    Ok(Pod {
        namespace: text(&object["metadata"]["namespace"]),
        name: text(&object["metadata"]["name"]),
        uid,
        node,
        ipv4,
        ipv6,
        pid,
    })
}
