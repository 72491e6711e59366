//! Decides what is wrong with a cluster, and what to do about it.

use serde_json::{Value, json};

use super::fault;
use crate::output::text;

/// What was found out about a cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) namespace: String,
    /// Nodes that could run an agent.
    pub(super) nodes: Vec<String>,
    pub(super) agents: Vec<Agent>,
    /// Pods of the operator: wanted, ready, and the names of those that are not.
    pub(super) operator: Option<Workload>,
    pub(super) daemon_set: Option<Workload>,
    /// Pods that are on the pod network, and those of them that have a `CiliumEndpoint`.
    pub(super) pods: Option<(usize, usize)>,
    /// Nodes whose taint keeps pods away.
    pub(super) tainted: Vec<String>,
    /// What could not be found out, with the reason.
    pub(super) unknown: Vec<(&'static str, String)>,
}

/// A daemon set or a deployment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) wanted: i32,
    pub(super) ready: i32,
    pub(super) updated: i32,
}

/// An agent's pod, and what the agent says.
#[derive(Debug, Clone, Default)]
pub(super) struct Agent {
    pub(super) node: String,
    pub(super) pod: String,
    /// What Kubernetes says of its containers, such as `CrashLoopBackOff`.
    pub(super) trouble: Option<String>,
    pub(super) restarts: i32,
    /// The agent's answer, or why there is none.
    pub(super) status: Option<Result<Value, String>>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) todo: String,
}

impl Problem {
    pub(super) fn show(&self) -> Value {
        json!({"problem": self.what, "todo": self.todo})
    }
}

/// Everything that is wrong, in the order in which to look at it.
pub(super) fn problems(facts: &Facts) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut note = |what: String, todo: String| found.push(Problem { what, todo });
    let namespace = &facts.namespace;
    match facts.daemon_set {
        None => note(
            "there is no daemon set cilium".into(),
            format!("install Cilia in namespace {namespace}, or name another one with --namespace"),
        ),
        Some(set) if set.wanted == 0 => note(
            "the daemon set cilium wants no pod".into(),
            "see whether nodes have the label kubernetes.io/os=linux: kubectl get nodes --show-labels"
                .into(),
        ),
        Some(set) if set.updated < set.wanted => note(
            format!("only {} of {} agents are of the newest version", set.updated, set.wanted),
            format!("kubectl -n {namespace} rollout status daemonset/cilium"),
        ),
        Some(_) => {}
    }
    match facts.operator {
        None => note(
            "there is no deployment cilium-operator".into(),
            format!("install Cilia in namespace {namespace}, or name another one with --namespace"),
        ),
        Some(operator) if operator.ready < operator.wanted || operator.ready == 0 => note(
            format!("{} of {} operators are ready", operator.ready, operator.wanted),
            format!(
                "kubectl -n {namespace} describe pods -l io.cilium/app=operator; \
                 kubectl -n {namespace} logs deployment/cilium-operator --tail=50"
            ),
        ),
        Some(_) => {}
    }
    for node in &facts.nodes {
        if !facts.agents.iter().any(|agent| agent.node == *node) {
            note(
                format!("node {node} has no agent"),
                format!(
                    "kubectl -n {namespace} describe daemonset cilium; kubectl describe node {node}"
                ),
            );
        }
    }
    for agent in &facts.agents {
        if let Some((what, todo)) = of_agent(agent, namespace) {
            note(format!("agent on {}: {what}", agent.node), todo);
        }
    }
    for node in &facts.tainted {
        note(
            format!("node {node} still has the taint node.cilium.io/agent-not-ready"),
            "the operator removes it once the agent there is ready: see its log if the agent is"
                .into(),
        );
    }
    if let Some((pods, with)) = facts.pods
        && with < pods
    {
        note(
            format!("{} of {pods} pods have no CiliumEndpoint", pods - with),
            "they may be older than Cilia: delete them so that they are made again; new ones have it \
             within seconds"
                .into(),
        );
    }
    found
}

fn of_agent(agent: &Agent, namespace: &str) -> Option<(String, String)> {
    let Agent { node, pod, .. } = agent;
    if let Some(trouble) = &agent.trouble {
        let todo = match trouble.as_str() {
            "ImagePullBackOff" | "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName" => {
                format!("the node can't get the image: kubectl -n {namespace} describe pod {pod}")
            }
            "Pending" | "CreateContainerConfigError" | "CreateContainerError" => {
                format!("kubectl -n {namespace} describe pod {pod}")
            }
            _ => format!(
                "kubectl -n {namespace} logs {pod} --all-containers --tail=50 (--previous if it restarts)"
            ),
        };
        return Some((trouble.clone(), todo));
    }
    match agent.status.as_ref()? {
        Err(error) => Some((
            format!("does not answer: {error}"),
            format!("kubectl -n {namespace} logs {pod} --tail=50"),
        )),
        Ok(status) => {
            let fault = fault(status)?;
            let todo = if fault.starts_with("error in kubernetes") {
                "the node can't reach the API server: see KUBERNETES_SERVICE_HOST of the agent's pod, \
                 and routes and firewalls of the node"
                    .to_owned()
            } else if fault.starts_with("error in kvstore") {
                format!(
                    "cilia troubleshoot kvstore --node {node} tells which step fails; see whether etcd is well"
                )
            } else if fault.contains("node: ") {
                "the node has no pod CIDR yet: the operator gives it; see its log and the CiliumNode"
                    .to_owned()
            } else {
                format!("kubectl -n {namespace} logs {pod} --tail=50")
            };
            Some((fault, todo))
        }
    }
}

/// An agent in a row: node, pod, state, endpoints, restarts, version.
pub(super) fn row(agent: &Agent) -> [String; 6] {
    let (state, endpoints, version) = match (&agent.trouble, &agent.status) {
        (Some(trouble), _) => (trouble.clone(), String::new(), String::new()),
        (None, Some(Ok(status))) => {
            let cilium = &status["cilium"];
            let well = fault(status).is_none();
            (
                if well { "OK" } else { "error" }.to_owned(),
                text(&status["endpoints"]["total"]),
                if text(&cilium["state"]) == "Ok" { text(&cilium["msg"]) } else { String::new() },
            )
        }
        (None, Some(Err(_))) => ("no answer".into(), String::new(), String::new()),
        (None, None) => ("not asked".into(), String::new(), String::new()),
    };
    [agent.node.clone(), agent.pod.clone(), state, endpoints, agent.restarts.to_string(), version]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Agent, Facts, Workload, problems};

    fn healthy() -> Facts {
        let ok = json!({"cilium": {"state": "Ok", "msg": "0.1.0"}, "kubernetes": {"state": "Ok"}});
        Facts {
            namespace: "kube-system".into(),
            nodes: vec!["n1".into()],
            agents: vec![Agent {
                node: "n1".into(),
                pod: "cilium-x".into(),
                status: Some(Ok(ok)),
                ..Agent::default()
            }],
            operator: Some(Workload { wanted: 2, ready: 2, updated: 2 }),
            daemon_set: Some(Workload { wanted: 1, ready: 1, updated: 1 }),
            pods: Some((3, 3)),
            ..Facts::default()
        }
    }

    #[test]
    fn all_well() {
        assert_eq!(problems(&healthy()), []);
    }

    type Change = fn(&mut Facts);

    #[test]
    fn says_what_is_wrong_and_what_to_do() {
        let cases: &[(&str, Change, &str, &str)] = &[
            ("nothing installed", |f| f.daemon_set = None, "no daemon set", "--namespace"),
            ("no operator", |f| f.operator = None, "no deployment", "install"),
            (
                "operator down",
                |f| f.operator = Some(Workload { wanted: 2, ready: 0, updated: 2 }),
                "0 of 2 operators",
                "logs deployment/cilium-operator",
            ),
            (
                "rollout",
                |f| f.daemon_set = Some(Workload { wanted: 1, ready: 1, updated: 0 }),
                "only 0 of 1",
                "rollout status",
            ),
            (
                "node without agent",
                |f| f.nodes.push("n2".into()),
                "node n2 has no agent",
                "describe node n2",
            ),
            (
                "image",
                |f| f.agents[0].trouble = Some("ImagePullBackOff".into()),
                "agent on n1: ImagePullBackOff",
                "can't get the image",
            ),
            (
                "crash",
                |f| f.agents[0].trouble = Some("CrashLoopBackOff".into()),
                "CrashLoopBackOff",
                "--previous",
            ),
            (
                "no answer",
                |f| f.agents[0].status = Some(Err("forbidden".into())),
                "does not answer: forbidden",
                "logs cilium-x",
            ),
            (
                "kubernetes",
                |f| {
                    f.agents[0].status =
                        Some(Ok(json!({"kubernetes": {"state": "Failure", "msg": "timeout"}})));
                },
                "error in kubernetes: timeout",
                "API server",
            ),
            (
                "etcd",
                |f| {
                    f.agents[0].status =
                        Some(Ok(json!({"kvstore": {"state": "Failure", "msg": "quorum"}})));
                },
                "error in kvstore: quorum",
                "troubleshoot kvstore --node n1",
            ),
            (
                "no range yet",
                |f| {
                    f.agents[0].status =
                        Some(Ok(json!({"cilium": {"state": "Failure", "msg": "node: starting"}})));
                },
                "error in cilium: node: starting",
                "pod CIDR",
            ),
            (
                "taint",
                |f| f.tainted.push("n1".into()),
                "still has the taint",
                "operator removes it",
            ),
            (
                "old pods",
                |f| f.pods = Some((3, 1)),
                "2 of 3 pods have no CiliumEndpoint",
                "delete them",
            ),
        ];
        for (name, change, what, todo) in cases {
            let mut facts = healthy();
            change(&mut facts);
            let found = problems(&facts);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].what.contains(what), "{name}: {found:?}");
            assert!(found[0].todo.contains(todo), "{name}: {found:?}");
        }
    }
}
