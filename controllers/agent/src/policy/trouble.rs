//! Decides what others are told of an endpoint whose policy isn't in place, or soon will not fit.

use super::{EndpointView, NEARLY, View};

/// What is wrong with an endpoint's policy. It says no figures that change with every identity: each
/// change is a write for everybody who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// At most a tenth of the map is left, which holds so many entries.
    NearlyFull(usize),
    /// It does not fit into the map, which holds so many entries.
    Overflow(usize),
    /// It is not in place for another reason.
    Failed,
}

impl Trouble {
    /// Cilium's word for how well the endpoint is.
    pub fn health(self) -> &'static str {
        match self {
            Self::NearlyFull(_) => "Warning",
            Self::Overflow(_) | Self::Failed => "Failure",
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NearlyFull(most) => {
                write!(f, "policy map is nearly full: it holds {most} entries (bpf-policy-map-max)")
            }
            Self::Overflow(most) => {
                write!(f, "policy does not fit into its map of {most} entries (bpf-policy-map-max)")
            }
            Self::Failed => f.write_str("policy is not in place: see the agent's log"),
        }
    }
}

impl View {
    /// What is wrong with the policy of the endpoint of this number, if anything is.
    pub fn trouble(&self, id: u16) -> Option<Trouble> {
        let at = self.endpoints.binary_search_by_key(&id, |endpoint| endpoint.id).ok()?;
        self.endpoints[at].trouble()
    }
}

impl EndpointView {
    /// What is wrong, if anything is.
    pub fn trouble(&self) -> Option<Trouble> {
        if self.needed > self.most {
            return Some(Trouble::Overflow(self.most));
        }
        if self.error.is_some() {
            return Some(Trouble::Failed);
        }
        let nearly = self.most > 0 && self.needed * NEARLY.1 >= self.most * NEARLY.0;
        nearly.then_some(Trouble::NearlyFull(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::Trouble;
    use crate::policy::EndpointView;

    #[test]
    fn a_map_is_in_trouble_before_it_is_full() {
        let of = |needed, error: Option<&str>| EndpointView {
            id: 7,
            identity: cilia_crds::NumericIdentity(300),
            revision: 1,
            ingress: true,
            egress: false,
            entries: needed,
            needed,
            most: 100,
            audit: false,
            error: error.map(str::to_owned),
        };
        assert_eq!(of(89, None).trouble(), None);
        assert_eq!(of(90, None).trouble(), Some(Trouble::NearlyFull(100)));
        assert_eq!(of(101, Some("full")).trouble(), Some(Trouble::Overflow(100)));
        assert_eq!(of(5, Some("the kernel refuses")).trouble(), Some(Trouble::Failed));
        let fresh = EndpointView { most: 0, ..of(0, None) };
        assert_eq!(fresh.trouble(), None, "nothing has been measured");
    }
}
