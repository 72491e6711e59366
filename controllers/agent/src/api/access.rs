//! Decides which operations of the API are allowed: those that `enable-cilium-api-server-access` names.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, on};
use cilia_runtime::config::{Config, Error};

use super::form::{Form, checked};
use super::limit::{Counters, Gate, Limits, call_of, limited, limits};

const FLAG: &str = "enable-cilium-api-server-access";

/// The answer to an operation that is not allowed, with status 403.
const DENIED: &str =
    "This API is administratively disabled. Contact your administrator for more details.";

/// Every operation by its name in the list of allowed ones.
const OPERATIONS: [&str; 50] = [
    "DeleteEndpoint",
    "DeleteEndpointID",
    "DeleteFqdnCache",
    "DeleteIPAMIP",
    "DeleteMapName",
    "DeletePrefilter",
    "GetBGPPeers",
    "GetBGPRoutePolicies",
    "GetBGPRoutes",
    "GetCgroupDumpMetadata",
    "GetClusterNodes",
    "GetConfig",
    "GetDebuginfo",
    "GetEndpoint",
    "GetEndpointID",
    "GetEndpointIDConfig",
    "GetEndpointIDHealthz",
    "GetEndpointIDLabels",
    "GetEndpointIDLog",
    "GetFlows",
    "GetFqdnCache",
    "GetFqdnCacheID",
    "GetFqdnNames",
    "GetHealthz",
    "GetIP",
    "GetIdentity",
    "GetIdentityEndpoints",
    "GetIdentityID",
    "GetLRP",
    "GetMap",
    "GetMapName",
    "GetMapNameEvents",
    "GetMetrics",
    "GetMonitor",
    "GetNodeIds",
    "GetPolicy",
    "GetPolicyExplain",
    "GetPolicySelectors",
    "GetPolicySubjectSelectors",
    "GetPrefilter",
    "GetService",
    "PatchConfig",
    "PatchEndpointID",
    "PatchEndpointIDConfig",
    "PatchEndpointIDLabels",
    "PatchPrefilter",
    "PostIPAM",
    "PostIPAMIP",
    "PostPolicyDiff",
    "PutEndpointID",
];

/// The names that the configuration allows; an error names one that there is not, or a star that is not at the end.
pub fn allowed(config: &Config) -> Result<Vec<&'static str>, Error> {
    let mut allowed = Vec::new();
    for pattern in config.strings(FLAG) {
        allowed.extend(OPERATIONS.iter().copied().filter(|name| fits(pattern, name)));
        let beginning = pattern.strip_suffix('*').is_some_and(|start| !start.contains('*'));
        if !beginning && !OPERATIONS.contains(&pattern.as_str()) {
            let choice =
                format!("of {}, or a beginning of them followed by *", OPERATIONS.join(", "));
            return Err(config.reject(FLAG, &choice));
        }
    }
    Ok(allowed)
}

/// Whether a name is the pattern, or begins as one with a star at its end does.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// The name of an operation: its method and its path, as Cilium makes a word of them.
fn named(method: MethodFilter, path: &str) -> String {
    let verb = [
        (MethodFilter::GET, "Get"),
        (MethodFilter::PUT, "Put"),
        (MethodFilter::POST, "Post"),
        (MethodFilter::PATCH, "Patch"),
        (MethodFilter::DELETE, "Delete"),
    ];
    let verb = verb.iter().find(|(one, _)| *one == method).map_or("", |(_, verb)| verb);
    let words = path.trim_start_matches("/v1").split(['/', '-']);
    let words = words.map(|word| word.trim_matches(['{', '}'])).map(|word| match word {
        "bgp" | "id" | "ip" | "ipam" | "lrp" => word.to_uppercase(),
        word => {
            let (first, rest) = word.split_at(word.len().min(1));
            first.to_uppercase() + rest
        }
    });
    words.fold(verb.to_owned(), |name, word| name + &word)
}

/// A router that refuses what is not allowed, what is asked for too often, and what has not the form of a request.
pub(super) struct Guarded<S> {
    router: Router<S>,
    allowed: Vec<&'static str>,
    limits: Limits,
    counters: Counters,
    gates: BTreeMap<&'static str, Arc<Gate>>,
}

impl<S: Clone + Send + Sync + 'static> Guarded<S> {
    pub(super) fn new(config: &Config, counters: &Counters) -> Self {
        // The settings have been checked; without them nothing is allowed.
        let allowed = allowed(config).unwrap_or_default();
        let limits = limits(config).unwrap_or_default();
        let (router, gates, counters) = (Router::new(), BTreeMap::new(), counters.clone());
        Self { router, allowed, limits, counters, gates }
    }

    /// Adds an operation.
    pub(super) fn operation<H: Handler<T, S>, T: 'static>(
        mut self,
        name: &'static str,
        method: MethodFilter,
        path: &str,
        handler: H,
    ) -> Self {
        debug_assert!(OPERATIONS.contains(&name), "{name}");
        debug_assert_eq!(name, named(method, path));
        let limit = call_of(name).and_then(|call| Some((call, *self.limits.get(call)?)));
        let form = from_fn_with_state(Form::of(name), checked);
        let route = match limit {
            _ if !self.allowed.contains(&name) => {
                on(method, async || (StatusCode::FORBIDDEN, DENIED))
            }
            None => on(method, handler).route_layer(form),
            Some((call, limit)) => {
                let counters = &self.counters;
                let gate = self.gates.entry(call);
                let gate = gate.or_insert_with(|| Gate::new(call, limit, counters.clone()));
                let limited = from_fn_with_state(Arc::clone(gate), limited);
                on(method, handler).route_layer(limited).route_layer(form)
            }
        };
        self.router = self.router.route(path, route);
        self
    }

    /// Adds an operation that reads.
    pub(super) fn get<H: Handler<T, S>, T: 'static>(
        self,
        name: &'static str,
        path: &str,
        handler: H,
    ) -> Self {
        self.operation(name, MethodFilter::GET, path, handler)
    }

    pub(super) fn router(self) -> Router<S> {
        self.router
    }
}

#[cfg(test)]
mod tests {
    use cilia_runtime::config::{Config, Flags};

    use super::{OPERATIONS, allowed};

    #[test]
    fn operations_are_allowed_by_name_or_beginning() {
        let of = |list: &str| {
            let args = [format!("--enable-cilium-api-server-access={list}")];
            let config = Config::load(Flags::agent(), args, []).expect("settings");
            allowed(&config).map_err(|error| error.to_string())
        };
        assert_eq!(of("*").expect("all").len(), OPERATIONS.len());
        assert_eq!(
            of("GetHealthz,GetFqdn*").expect("some"),
            ["GetHealthz", "GetFqdnCache", "GetFqdnCacheID", "GetFqdnNames"]
        );
        assert_eq!(of("").expect("none").len(), 0);
        let error = of("GetHealth").expect_err("no such operation");
        assert!(error.contains("GetHealthz"), "{error}");
        assert_eq!(of("PostIPAM*").expect("two"), ["PostIPAM", "PostIPAMIP"]);
        assert_eq!(of("GetNothing*").expect("none, as in Cilium").len(), 0);
        for wrong in ["Get*ID", "*Get", "GetHealthz*x", "PutPolicy"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(OPERATIONS.is_sorted());
    }
}
