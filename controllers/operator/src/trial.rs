//! A duty on a real API server: its context, its start and its stop.

use std::sync::Arc;
use std::time::Duration;

use cilia_identity::Space;
use cilia_runtime::config::Config;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::leader::Leadership;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{ApiServer, Write, eventually};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clustermesh::Remotes;
use crate::crd_registration;
use crate::identity_gc::Collections;
use crate::wiring::{Context, Duty, Leading, duties};

/// The user agent of the duty under test.
const DUTY: &str = "duty";
/// The user as whom duties run: with the rights that the chart gives the operator, and no others.
const USER: &str = "operator";
const RIGHTS: &str = include_str!("../../../config/rbac/operator.yaml");

/// An API server with the CRDs, on which duties are run.
pub(crate) struct Trial {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
    /// The numbers that identities have, where that is not what the settings say.
    pub(crate) space: Option<Space>,
    arguments: Vec<String>,
}

/// A duty that runs.
pub(crate) struct Running {
    pub(crate) metrics: Metrics,
    pub(crate) remotes: Remotes,
    stop: CancellationToken,
    ended: JoinHandle<anyhow::Result<()>>,
}

impl Trial {
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let server = ApiServer::start().await;
        let client = server.client();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let config = config(&arguments);
        crd_registration::run(client.clone(), &config).await.expect("register the CRDs");
        let trial = Self { server, client, space: None, arguments };
        let is_role = |text: &&str| text.contains("\nkind: ClusterRole\n");
        let role = RIGHTS.split("\n---").find(is_role).expect("the operator's role");
        trial.allow(serde_saphyr::from_str(role).expect("a role")).await;
        let duty = trial.server.client_of_user(DUTY, USER);
        eventually(|| async {
            let nodes: Api<Node> = Api::all(duty.clone());
            nodes.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        trial
    }

    /// Gives duties the rights of this role, too.
    pub(crate) async fn allow(&self, role: ClusterRole) {
        let name = role.name_any();
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        roles.create(&PostParams::default(), &role).await.expect("create a role");
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER }],
        });
        let binding: ClusterRoleBinding = serde_json::from_value(binding).expect("a binding");
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        bindings.create(&PostParams::default(), &binding).await.expect("bind a role");
    }

    /// The same server with other settings.
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// Starts the duty of this name.
    pub(crate) fn run(&self, name: &str) -> Running {
        self.run_as(name, false)
    }

    /// Starts it as if a leader before had lost its lease without giving it up.
    pub(crate) fn run_after_one_cut_off(&self, name: &str) -> Running {
        self.run_as(name, true)
    }

    fn run_as(&self, name: &str, cut_off: bool) -> Running {
        let duty = duties().into_iter().find(|duty| duty.name == name);
        let Duty { run, .. } = duty.expect("a duty of this name");
        let client = self.server.client_of_user(DUTY, USER);
        let (metrics, remotes) = (Metrics::new("cilium_operator"), Remotes::default());
        let stop = CancellationToken::new();
        let (begin, leading) = Leading::not_yet();
        begin.send_replace(true);
        let leadership = Leadership::until(Instant::now() + Duration::from_hours(1));
        leadership.set_cut_off(cut_off);
        let config = config(&self.arguments);
        let space = self.space.unwrap_or_else(|| crate::identity::space(&config).expect("numbers"));
        let context = Context {
            space,
            events: Recorder::new(self.server.client_of_user("events", USER), "test"),
            bulk: client.clone(),
            slices: client.clone(),
            client,
            leadership,
            config: Arc::new(config),
            collections: Collections::register(&metrics),
            remotes: remotes.clone(),
            workqueues: Workqueues::register(&metrics),
            metrics: metrics.clone(),
            leading,
            stop: stop.clone(),
        };
        Running { metrics, remotes, stop, ended: tokio::spawn(run(context)) }
    }

    /// What duties have written since the first `from` of their writes.
    pub(crate) async fn writes(&self, from: usize) -> Vec<Write> {
        let writes = self.server.writes().await.into_iter();
        writes.filter(|write| write.agent == DUTY).skip(from).collect()
    }
}

impl Running {
    /// Whether it has ended by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_finished()
    }

    /// Ends the duty in the middle of whatever it does.
    pub(crate) async fn kill(self) {
        self.ended.abort();
        let ended = self.ended.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()), "the duty had ended before");
    }

    /// Stops the duty and waits until it has.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended.await.expect("the duty does not panic").expect("the duty does not fail");
    }
}

fn config(arguments: &[String]) -> Config {
    Config::load(crate::config::flags(), arguments.to_vec(), []).expect("valid settings")
}
