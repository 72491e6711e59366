//! `cilia build-config`: puts an agent's settings together from several sources, into a folder.

mod folder;
mod merge;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, Config, ResourceExt as _};

use crate::access::Access;
use crate::cluster::said;
use merge::{Filter, Found, Kind, Source};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The folder to write
    #[arg(long, default_value = "/tmp/cilium/config-map")]
    dest: PathBuf,
    /// The node that the settings are for
    #[arg(long, env = "K8S_NODE_NAME")]
    node_name: Option<String>,
    /// Where settings come from, later ones win [default: config-map:cilium-config and
    /// cilium-node-config:NAMESPACE]
    #[arg(long, value_delimiter = ',', value_name = "KIND:[NAMESPACE/]NAME")]
    source: Vec<String>,
    /// The only settings that sources after the first may change
    #[arg(long, value_delimiter = ',', value_name = "SETTING")]
    allow_config_keys: Vec<String>,
    /// Settings that sources after the first may not change
    #[arg(long, value_delimiter = ',', value_name = "SETTING")]
    deny_config_keys: Vec<String>,
    /// How to reach the API server from outside of the cluster
    #[arg(long)]
    k8s_kubeconfig_path: Option<PathBuf>,
    /// Where the API server is, if not where the pod is told
    #[arg(long, value_delimiter = ',')]
    k8s_api_server_urls: Vec<String>,
}

/// Annotations and labels of nodes that are settings begin so.
const PREFIX: &str = "config.cilium.io/";

pub(crate) async fn run(access: &Access, arguments: &Arguments) -> anyhow::Result<()> {
    let namespace =
        std::env::var("CILIUM_K8S_NAMESPACE").unwrap_or_else(|_| access.namespace().to_owned());
    let node = arguments.node_name.clone().unwrap_or_default();
    let names = if arguments.source.is_empty() {
        vec!["config-map:cilium-config".to_owned(), format!("cilium-node-config:{namespace}")]
    } else {
        arguments.source.clone()
    };
    let parse = |text: &String| Source::parse(text, &namespace, &node).map_err(anyhow::Error::msg);
    let sources: Vec<Source> =
        names.iter().map(parse).collect::<anyhow::Result<_>>().context("--source")?;
    let client = client(access, arguments).await?;
    let mut found = Vec::new();
    for source in &sources {
        let of = read(&client, source, &node).await;
        found.extend(of.with_context(|| format!("read {source}"))?);
    }
    let filter = Filter {
        allow: arguments.allow_config_keys.clone(),
        deny: arguments.deny_config_keys.clone(),
    };
    let (settings, warnings) = merge::merge(found, &filter);
    for warning in &warnings {
        eprintln!("{warning}");
    }
    let count = folder::write(&arguments.dest, &settings)
        .with_context(|| format!("write {}", arguments.dest.display()))?;
    println!("{count} settings written to {}", arguments.dest.display());
    Ok(())
}

async fn client(access: &Access, arguments: &Arguments) -> anyhow::Result<Client> {
    let file = arguments.k8s_kubeconfig_path.as_ref().or(access.kubeconfig.as_ref());
    let mut config = match file {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path)
                .with_context(|| format!("read {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
                .await?
        }
        None => Config::infer().await.context("find out where the API server is")?,
    };
    if let Some(url) = arguments.k8s_api_server_urls.first() {
        config.cluster_url = url.parse().with_context(|| format!("--k8s-api-server-urls {url}"))?;
    }
    Client::try_from(config).context("prepare to talk to the API server")
}

/// What a source says; a kind of which there may be several has each by itself.
async fn read(client: &Client, source: &Source, node: &str) -> anyhow::Result<Vec<Found>> {
    let Source { kind, namespace, name } = source;
    match kind {
        Kind::ConfigMap => {
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let map = maps.get(name).await.map_err(said)?;
            Ok(vec![Found { source: source.clone(), settings: map.data.unwrap_or_default() }])
        }
        Kind::Node => {
            let node = Api::<Node>::all(client.clone()).get(name).await.map_err(said)?;
            let mut settings = BTreeMap::new();
            for (key, value) in node.labels().iter().chain(node.annotations()) {
                if let Some(setting) = key.strip_prefix(PREFIX) {
                    settings.insert(setting.to_owned(), value.clone());
                }
            }
            Ok(vec![Found { source: source.clone(), settings }])
        }
        Kind::NodeConfig => node_configs(client, source, node).await,
    }
}

async fn node_configs(client: &Client, source: &Source, node: &str) -> anyhow::Result<Vec<Found>> {
    if node.is_empty() {
        bail!("--node-name is needed to find the settings of this node");
    }
    let labels =
        Api::<Node>::all(client.clone()).get(node).await.map_err(said).context("read the node")?;
    let labels = labels.labels();
    let mut by_name: BTreeMap<String, DynamicObject> = BTreeMap::new();
    // The newer version's objects win.
    for version in ["v2alpha1", "v2"] {
        let kind = GroupVersionKind::gvk("cilium.io", version, "CiliumNodeConfig");
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &source.namespace, &resource);
        match api.list(&ListParams::default()).await {
            Ok(list) => by_name.extend(list.items.into_iter().map(|one| (one.name_any(), one))),
            // The kind is not there: so are no settings of it.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(said(error)),
        }
    }
    let mut found = Vec::new();
    for (name, object) in by_name {
        if !source.name.is_empty() && name != source.name {
            continue;
        }
        let spec = &object.data["spec"];
        let selector: LabelSelector = serde_json::from_value(spec["nodeSelector"].clone())
            .with_context(|| format!("spec.nodeSelector of {name}"))?;
        if !merge::selects(&selector, labels) {
            continue;
        }
        let settings = serde_json::from_value(spec["defaults"].clone())
            .with_context(|| format!("spec.defaults of {name}"))?;
        found.push(Found { source: Source { name, ..source.clone() }, settings });
    }
    Ok(found)
}
