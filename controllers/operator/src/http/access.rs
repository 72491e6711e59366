//! Decides which operations of the API are allowed: those that `enable-cilium-operator-server-access` names.

use cilia_runtime::config::{Config, Error};

const FLAG: &str = "enable-cilium-operator-server-access";

/// The answer to an operation that is not allowed, with status 403.
pub(super) const DENIED: &str = "This API is administratively disabled. Contact your administrator for more details: \
     enable-cilium-operator-server-access does not name it.\n";

/// An operation of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// How the operator is.
    Healthz,
    /// All metrics as JSON.
    Metrics,
    /// The remote clusters.
    Cluster,
}

impl Operation {
    /// All there are.
    pub(super) const ALL: [Self; 3] = [Self::Healthz, Self::Metrics, Self::Cluster];

    /// Its name in the list of allowed operations.
    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "GetHealthz",
            Self::Metrics => "GetMetrics",
            Self::Cluster => "GetCluster",
        }
    }

    /// Where it is found.
    pub(super) fn paths(self) -> &'static [&'static str] {
        match self {
            Self::Healthz => &["/v1/healthz"],
            Self::Metrics => &["/v1/metrics/", "/v1/metrics"],
            Self::Cluster => &["/v1/cluster"],
        }
    }
}

/// The operations that the configuration allows.
pub(super) fn allowed(config: &Config) -> Result<Vec<Operation>, Error> {
    let mut allowed = Vec::new();
    for pattern in config.strings(FLAG) {
        let before = allowed.len();
        let fits = |operation: &Operation| fits(pattern, operation.name());
        allowed.extend(Operation::ALL.into_iter().filter(fits));
        if allowed.len() == before {
            let names = Operation::ALL.map(Operation::name).join(", ");
            let choice = format!("of {names}, or a beginning of them followed by *");
            return Err(config.reject(FLAG, &choice));
        }
    }
    Ok(allowed)
}

/// Whether a name fits a pattern, in which a star stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.get(at..).is_some_and(|name| fits(rest, name)))
        }),
    }
}

#[cfg(test)]
mod tests {
    use cilia_runtime::config::Config;

    use super::{Operation, allowed};

    #[test]
    fn operations_are_allowed_by_name_or_pattern() {
        let allowed = |list: &str| {
            let args = [format!("--enable-cilium-operator-server-access={list}")];
            let config = Config::load(crate::config::flags(), args, []).expect("valid settings");
            allowed(&config).map_err(|error| error.to_string())
        };
        let cases: &[(&str, &[Operation])] = &[
            ("*", &Operation::ALL),
            ("Get*", &Operation::ALL),
            ("*Healthz", &[Operation::Healthz]),
            ("GetMetrics,GetCluster", &[Operation::Metrics, Operation::Cluster]),
            ("", &[]),
        ];
        for (list, want) in cases {
            assert_eq!(allowed(list).as_deref(), Ok(*want), "{list:?}");
        }
        for wrong in ["GetHealth", "Put*", "gethealthz"] {
            let error = allowed(wrong).expect_err(wrong);
            assert!(error.contains("GetHealthz, GetMetrics, GetCluster"), "{error}");
        }
    }
}
