//! The command that builds, uses and removes local clusters.
#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use cilia_e2e::{Cluster, Layout, Options, Progress, Tools, catalog};
use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// Real Kubernetes clusters on one machine: nodes are network namespaces.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// The cluster; all its names and addresses derive from this one.
    #[arg(long, global = true, default_value = "cilia", env = "CILIA_CLUSTER")]
    name: String,
    #[command(subcommand)]
    command: Sub,
}

#[derive(Debug, Subcommand)]
enum Sub {
    /// Build the cluster; a former one of this name is removed first.
    Up(Up),
    /// Remove the cluster and every trace of it.
    Down,
    /// Run a command on a node, in its namespaces, or take its power away and give it back.
    Node(NodeArgs),
    /// Run a command of this machine in a pod's network namespace.
    Pod {
        /// NAMESPACE/NAME
        pod: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Give every node an image.
    Load {
        /// Archives as `docker save` or `cilia-cluster image build` writes them.
        #[arg(required = true)]
        images: Vec<PathBuf>,
    },
    /// Print the path of the administrator's kubeconfig.
    Kubeconfig,
    /// Run kubectl as the administrator.
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run helm as the administrator.
    Helm {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Print the cluster's daemons and their processes.
    Status,
    /// Find or build the programs that clusters are made of, and print where they are.
    Tools,
    /// Container images, made from local files.
    #[command(subcommand)]
    Image(ImageCommand),
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct NodeArgs {
    #[command(subcommand)]
    power: Option<Power>,
    /// The node: 1, 2, …, or its name
    #[arg(required = true, value_parser = node_index)]
    node: Option<u8>,
    /// The command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Power {
    /// Take a node's power away: its processes end, its devices, eBPF maps and /run are gone, its disk stays.
    Stop {
        /// The node: 1, 2, …, or its name
        #[arg(value_parser = node_index)]
        node: u8,
    },
    /// Give a node its power back.
    Start {
        /// The node: 1, 2, …, or its name
        #[arg(value_parser = node_index)]
        node: u8,
    },
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
struct Up {
    /// How many nodes.
    #[arg(long, default_value_t = 2)]
    nodes: u8,
    /// IPv4 alone.
    #[arg(long)]
    no_ipv6: bool,
    /// Without kube-proxy.
    #[arg(long)]
    no_kube_proxy: bool,
    /// Without cluster DNS.
    #[arg(long)]
    no_dns: bool,
    /// Give every node the image in this archive.
    #[arg(long = "image", value_name = "ARCHIVE")]
    images: Vec<PathBuf>,
    /// Kubernetes gives each node a pod CIDR.
    #[arg(long)]
    node_cidrs: bool,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Make the images of Cilia and print the paths of their archives.
    Build {
        /// Where cargo has put the programs.
        #[arg(long, default_value = "target/debug")]
        target: PathBuf,
        /// Give them to every node of the cluster, too.
        #[arg(long)]
        load: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cilia-cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let layout = Layout::new(&cli.name)?;
    match cli.command {
        Sub::Up(up) => return self::up(layout, &up).await,
        Sub::Down => {
            let found = Cluster::down(&layout).await?;
            let name = layout.name();
            eprintln!(
                "{}",
                if found {
                    format!("cluster {name} removed")
                } else {
                    format!("there is no cluster {name}")
                }
            );
        }
        Sub::Node(args) => return self::node(layout, args).await,
        Sub::Pod { pod, command } => {
            let cluster = Cluster::open(layout).await?;
            let pid = pod_process(&cluster, &pod).await?;
            let mut words = vec!["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net")];
            words.push("--".to_owned());
            words.extend(command);
            bail!(replace_by(&words));
        }
        Sub::Load { images } => {
            let cluster = Cluster::open(layout).await?;
            for image in images {
                cluster.load(&image).await?;
            }
        }
        Sub::Kubeconfig => println!("{}", layout.kubeconfig().display()),
        Sub::Kubectl { args } => bail!(client(layout, "kubectl", args).await?),
        Sub::Helm { args } => bail!(client(layout, "helm", args).await?),
        Sub::Status => {
            let cluster = Cluster::open(layout).await?;
            for daemon in cluster.status() {
                let pids: Vec<_> = daemon.pids.iter().map(ToString::to_string).collect();
                let pids = if pids.is_empty() { "not running".to_owned() } else { pids.join(" ") };
                println!("{:<14} {:<24} {pids}", daemon.place, daemon.daemon);
            }
        }
        Sub::Tools => {
            for (name, path) in Tools::ensure(&Progress::new()).await?.iter() {
                println!("{name:<24} {}", path.display());
            }
        }
        Sub::Image(ImageCommand::Build { target, load }) => {
            let mut archives = Vec::new();
            for image in catalog::cilia(&target).await? {
                archives.push(image.archive()?);
            }
            if load {
                let cluster = Cluster::open(layout).await?;
                for archive in &archives {
                    cluster.load(archive).await?;
                }
            }
            for archive in archives {
                println!("{}", archive.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn node(layout: Layout, args: NodeArgs) -> Result<ExitCode> {
    let cluster = Cluster::open(layout).await?;
    let node = |index: u8| cluster.node(&format!("n{index}"));
    match (args.power, args.node) {
        (Some(Power::Stop { node: index }), _) => {
            let node = node(index)?;
            node.power_off(cluster.cgroups()).await?;
            eprintln!("node {} has no power", node.name());
        }
        (Some(Power::Start { node: index }), _) => {
            let node = node(index)?;
            node.power_on(cluster.cgroups(), &cluster.tools, &cluster.options).await?;
            eprintln!("node {} runs", node.name());
        }
        (None, Some(index)) => {
            let words = node(index)?.place.words(cluster.cgroups(), "exec", args.command)?;
            bail!(replace_by(&words));
        }
        // The command line is not read so.
        (None, None) => bail!("which node?"),
    }
    Ok(ExitCode::SUCCESS)
}

/// `1` or `n1`.
fn node_index(text: &str) -> Result<u8, String> {
    let digits = text.strip_prefix('n').unwrap_or(text);
    digits.parse().map_err(|_| format!("{text:?} is no node: write 1 or n1"))
}

async fn up(layout: Layout, up: &Up) -> Result<ExitCode> {
    let options = Options {
        nodes: up.nodes,
        ipv6: !up.no_ipv6,
        node_cidrs: up.node_cidrs,
        kube_proxy: !up.no_kube_proxy,
        dns: !up.no_dns,
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let result = tokio::select! {
        result = Cluster::up(layout.clone(), options, &up.images, Progress::new()) => result.map(drop),
        _ = interrupt.recv() => { return interrupted(&layout).await; }
        _ = terminate.recv() => { return interrupted(&layout).await; }
    };
    if result.is_ok() {
        println!("export KUBECONFIG={}", layout.kubeconfig().display());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("logs of what was started are in {}", layout.state().join("log").display());
    result.map(|()| ExitCode::SUCCESS).with_context(|| {
        format!("cluster {} (`cilia-cluster down --name {0}` removes it)", layout.name())
    })
}

/// Leaves nothing behind.
async fn interrupted(layout: &Layout) -> Result<ExitCode> {
    eprintln!("interrupted: removing what was built");
    Cluster::down(layout).await?;
    Ok(ExitCode::FAILURE)
}

async fn pod_process(cluster: &Cluster, pod: &str) -> Result<i32> {
    let Some((namespace, name)) = pod.split_once('/') else {
        bail!("pod {pod:?}: write NAMESPACE/NAME");
    };
    let format = "--output=jsonpath={.spec.nodeName} {.metadata.uid}";
    let found = cluster.kubectl(&["--namespace", namespace, "get", "pod", name, format]).await?;
    let (node, uid) = found.split_once(' ').context("the pod is on no node yet")?;
    let pid = cluster.node(node)?.pod_process(cluster.cgroups(), uid);
    pid.with_context(|| format!("pod {pod} has no process on {node} yet"))
}

async fn client(layout: Layout, tool: &str, args: Vec<String>) -> Result<anyhow::Error> {
    let config = layout.kubeconfig().display().to_string();
    let cluster = Cluster::open(layout).await?;
    let mut words = vec!["env".to_owned(), format!("KUBECONFIG={config}")];
    words.push(cluster.tools.path(tool).display().to_string());
    words.extend(args);
    Ok(replace_by(&words))
}

/// Becomes another program; returns only if that fails.
fn replace_by(words: &[String]) -> anyhow::Error {
    let error = Command::new(&words[0]).args(&words[1..]).exec();
    anyhow::Error::new(error).context(format!("cannot run {}", words.join(" ")))
}
