//! Decides whom a command asks: the agent of this node, or agents of a cluster.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use serde_json::{Map, Value};

use crate::agent::{Agent, SOCKET};
use crate::cluster::{Cluster, Place};
use crate::output::{Format, Kept, captured};
use crate::settings::Settings;

/// Agents that are asked at the same time.
pub(crate) const AT_ONCE: usize = 16;

/// Whom to ask.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Whom to ask")]
pub(crate) struct Access {
    /// The socket of this node's agent [default: /var/run/cilium/cilium.sock]
    #[arg(short = 'H', long, global = true, env = "CILIUM_SOCK")]
    pub(crate) host: Option<String>,
    /// Only the agent of this node, by way of the Kubernetes API
    #[arg(long, global = true, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// The cluster that this kubeconfig means [default: KUBECONFIG, ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, global = true, value_name = "CONTEXT")]
    pub(crate) context: Option<String>,
    /// Where the agents' pods are [default: kube-system]
    #[arg(long, global = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Tell what is asked of agents
    #[arg(short = 'D', long, global = true)]
    pub(crate) debug: bool,
    /// A YAML file with values of these options, for those that are not given [default: ~/.cilium.yaml,
    /// if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Where agents' pods are, if nothing else is said.
const NAMESPACE: &str = "kube-system";

/// Who answers.
#[derive(Clone)]
pub(crate) enum Reach {
    /// The agent of this node.
    Here(Agent),
    /// Agents of a cluster.
    There(Cluster),
}

#[derive(Debug, PartialEq, Eq)]
enum Way {
    Socket(String),
    Cluster,
}

impl Access {
    /// With what the file of settings says of options that were not given.
    pub(crate) fn settled(mut self) -> anyhow::Result<Self> {
        // An empty variable is none.
        self.host = self.host.filter(|host| !host.is_empty());
        let settings = Settings::read(self.config.as_deref())?;
        Ok(self.or(settings))
    }

    /// What was typed names whom to ask, or else the file does: never half of each.
    fn or(mut self, settings: Settings) -> Self {
        let Settings { host, node, kubeconfig, context, namespace, debug, .. } = settings;
        if !(self.host.is_some() || self.names_cluster()) {
            (self.host, self.node) = (host, node);
            (self.kubeconfig, self.context) = (kubeconfig, context);
        }
        self.namespace = self.namespace.or(namespace);
        self.debug |= debug.unwrap_or(false);
        self
    }

    /// Where the agents' pods are.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(NAMESPACE)
    }

    fn names_cluster(&self) -> bool {
        self.node.is_some() || self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Finds out who answers.
    pub(crate) async fn reach(&self) -> anyhow::Result<Reach> {
        Ok(match self.way(Path::new(SOCKET).exists(), kubeconfig_exists()) {
            Way::Socket(host) => Reach::Here(Agent::new(&host)?.debug(self.debug)),
            Way::Cluster => Reach::There(self.cluster().await?),
        })
    }

    /// The cluster, whether or not there is an agent here.
    pub(crate) async fn cluster(&self) -> anyhow::Result<Cluster> {
        let place = Place {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            namespace: self.namespace().to_owned(),
        };
        Cluster::connect(&place).await
    }

    /// The agents to ask.
    pub(crate) async fn agents(&self, reach: &Reach) -> anyhow::Result<Vec<Agent>> {
        Ok(match reach {
            Reach::Here(agent) => vec![agent.clone()],
            Reach::There(cluster) => {
                let agents = cluster.agents(self.node.as_deref()).await?;
                agents.into_iter().map(|agent| agent.debug(self.debug)).collect()
            }
        })
    }

    /// What was asked for first, then what is here: a socket before a kubeconfig.
    fn way(&self, socket: bool, kubeconfig: bool) -> Way {
        let local = || Way::Socket(self.host.clone().unwrap_or_else(|| SOCKET.to_owned()));
        match (&self.host, self.names_cluster()) {
            (Some(_), false) => local(),
            (None, false) if socket || !kubeconfig => local(),
            // An environment variable of the agent's pod must not hide what was typed.
            (_, true) | (None, false) => Way::Cluster,
        }
    }
}

fn kubeconfig_exists() -> bool {
    std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty())
        || std::env::home_dir().is_some_and(|home| home.join(".kube/config").is_file())
}

/// Asks one agent, or each of several: then every answer has its node's name above it or, in a
/// format for programs, is a member under that name. Fails with `failure` if one has no answer, else
/// as one of them does.
pub(crate) async fn each(
    agents: &[Agent],
    one: bool,
    format: Option<&Format>,
    failure: ExitCode,
    ask: impl AsyncFn(&Agent, Option<&Format>) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    if let ([agent], true) = (agents, one) {
        return ask(agent, format).await;
    }
    let answers = agents.iter().map(|agent| {
        let ask = &ask;
        async move {
            let kept = Kept::default();
            let keep = format.map(|_| Format::Keep(kept.clone()));
            let (outcome, text) = captured(ask(agent, keep.as_ref())).await;
            (agent.name(), outcome, text, kept.take())
        }
    });
    let mut answers = stream::iter(answers).buffered(AT_ONCE);
    let (mut together, mut code) = (Map::new(), ExitCode::SUCCESS);
    let mut first = true;
    while let Some((node, outcome, text, value)) = answers.next().await {
        match outcome {
            Ok(outcome) if outcome == ExitCode::SUCCESS => {}
            Ok(outcome) if code == ExitCode::SUCCESS => code = outcome,
            Ok(_) => {}
            Err(error) => {
                eprintln!("{node}: {error:#}");
                code = failure;
                continue;
            }
        }
        if format.is_some() {
            together.insert(node, value);
        } else {
            print!("{}==> {node} <==\n{text}", if first { "" } else { "\n" });
            first = false;
        }
    }
    if let Some(format) = format {
        format.print(&Value::Object(together))?;
    }
    Ok(code)
}

/// A duration as Go writes it, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    cilia_runtime::config::duration::parse(text)
        .ok_or_else(|| "use a duration such as 30s or 5m".to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use clap::Parser as _;

    use super::{Way, each};
    use crate::Arguments;
    use crate::agent::Agent;
    use crate::output::captured;
    use crate::settings::Settings;

    #[test]
    fn what_is_asked_for_comes_before_what_is_here() {
        let socket = |path: &str| Way::Socket(path.into());
        let cases = [
            ("a node", &[][..], true, true, socket(super::SOCKET)),
            ("a workstation", &[], false, true, Way::Cluster),
            ("neither: the message says what to do", &[], false, false, socket(super::SOCKET)),
            ("a socket is named", &["--host", "unix:///x"], false, true, socket("unix:///x")),
            ("a node is named", &["--node", "n1"], true, true, Way::Cluster),
            ("a context is named", &["--context", "c"], true, false, Way::Cluster),
        ];
        for (name, words, has_socket, has_kubeconfig, want) in cases {
            let words = ["cilia", "version"].iter().chain(words.iter());
            let arguments = Arguments::try_parse_from(words).expect(name);
            assert_eq!(arguments.access.way(has_socket, has_kubeconfig), want, "{name}");
        }
    }

    #[test]
    fn a_file_says_what_was_not_typed() {
        let file =
            || Settings::parse("node: n1\nnamespace: cilium\ndebug: true").expect("settings");
        let access = |words: &[&str]| {
            let words = ["cilia", "version"].iter().chain(words.iter());
            Arguments::try_parse_from(words).expect("a command line").access.or(file())
        };
        let plain = access(&[]);
        assert_eq!(
            (plain.node.as_deref(), plain.namespace(), plain.debug),
            (Some("n1"), "cilium", true)
        );
        let typed = access(&["--host", "unix:///x", "--namespace", "other"]);
        assert_eq!((typed.node.as_deref(), typed.namespace()), (None, "other"));
        assert_eq!(typed.way(true, true), Way::Socket("unix:///x".into()));
    }

    #[tokio::test]
    async fn several_answers_have_their_names() {
        let agents = ["/a", "/b"].map(|path| Agent::new(path).expect("a socket"));
        let ask = async |agent: &Agent, _: Option<&crate::output::Format>| {
            println!("I am {}", agent.name());
            Ok(if agent.name() == "/b" { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        };
        let (code, text) = captured(each(&agents, false, None, ExitCode::FAILURE, ask)).await;
        assert_eq!(text, "==> /a <==\nI am /a\n\n==> /b <==\nI am /b\n");
        assert_eq!(code.expect("both answered"), ExitCode::FAILURE);
        let (code, text) = captured(each(&agents[..1], true, None, ExitCode::FAILURE, ask)).await;
        assert_eq!(text, "I am /a\n");
        assert_eq!(code.expect("it answered"), ExitCode::SUCCESS);
    }
}
