//! Decides whether a `CiliumEndpoint` has outlived its pod.

use std::time::Duration;

/// A `CiliumEndpoint`, as far as this duty cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) age: Duration,
    /// In the order of its owner references.
    pub(super) owners: Vec<Owner>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    Pod(String),
    Other,
}

/// The pod of a name, in the endpoint's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pod {
    /// Neither `Failed` nor `Succeeded`.
    Running,
    Finished,
    Missing,
}

impl Endpoint {
    /// The pods whose state decides, in the order in which they do.
    pub(super) fn pods(&self) -> Vec<&str> {
        let owners = self.owners.iter().filter_map(|owner| match owner {
            Owner::Pod(name) => Some(name.as_str()),
            Owner::Other => None,
        });
        let owners: Vec<&str> = owners.collect();
        if owners.is_empty() { vec![&self.name] } else { owners }
    }

    /// Whether nobody needs the endpoint any more.
    pub(super) fn is_garbage(&self, interval: Duration, pod: impl Fn(&str) -> Pod) -> bool {
        if self.age < interval {
            return false;
        }
        for owner in &self.owners {
            let Owner::Pod(name) = owner else { return false };
            match pod(name) {
                Pod::Running => return false,
                Pod::Finished => return true,
                Pod::Missing => {}
            }
        }
        // An endpoint without an owner may have been made by hand, for the pod of its name.
        !self.owners.is_empty() || pod(&self.name) != Pod::Running
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Endpoint, Owner, Pod};

    #[test]
    fn follows_the_pod() {
        let interval = Duration::from_secs(10);
        let owned = |name: &str| Owner::Pod(name.to_owned());
        // EPGC-01 and what follows from the rules.
        let cases: &[(&str, u64, Vec<Owner>, bool)] = &[
            ("nobody", 60, vec![], true),
            ("cep2", 60, vec![owned("running")], false),
            ("cep3", 60, vec![owned("finished")], true),
            ("running", 60, vec![], false),
            ("finished", 60, vec![], true),
            ("cep6", 60, vec![owned("missing")], true),
            ("nobody", 3, vec![], false),
            ("running", 60, vec![owned("missing")], true),
            ("nobody", 60, vec![Owner::Other], false),
            ("nobody", 60, vec![owned("missing"), owned("running")], false),
            ("nobody", 60, vec![owned("missing"), Owner::Other], false),
            ("nobody", 60, vec![owned("finished"), Owner::Other], true),
        ];
        for (name, age, owners, want) in cases {
            let endpoint = Endpoint {
                namespace: "ns".to_owned(),
                name: (*name).to_owned(),
                uid: "uid".to_owned(),
                resource_version: "1".to_owned(),
                age: Duration::from_secs(*age),
                owners: owners.clone(),
            };
            let pod = |name: &str| match name {
                "running" => Pod::Running,
                "finished" => Pod::Finished,
                _ => Pod::Missing,
            };
            assert_eq!(endpoint.is_garbage(interval, pod), *want, "{name} of {owners:?}");
        }
    }
}
