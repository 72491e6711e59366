//! Explains verdicts: which rules make them, which would have allowed, and what to add.
//!
//! The verdict is the map's, so it is what the kernel would do; the reasons are found by asking the
//! rules themselves.

mod reasons;
mod sides;

use std::fmt;
use std::net::IpAddr;

use cilia_crds::NumericIdentity;
use serde::Serialize;
use serde_json::Value;

use crate::l4::protocol;
use crate::map::Verdict;
use crate::names::NamedPorts;
use crate::repository::Repository;
use crate::rule::{Action, Direction};

pub use sides::{entity, port};

/// One side of a flow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Party {
    /// Its identity; without, it is whoever has the address outside of what the cluster manages.
    pub identity: Option<NumericIdentity>,
    /// Its address, if it is known. Rules about addresses ask for it.
    pub address: Option<IpAddr>,
    /// How it names its ports.
    pub ports: NamedPorts,
}

/// Packets of one kind from one side to another; replies don't need to be allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Who sends.
    pub from: Party,
    /// Who receives.
    pub to: Party,
    /// The protocol's number.
    pub proto: u8,
    /// The receiver's port, or the type of an ICMP message.
    pub port: u16,
}

/// What becomes of a flow, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Both directions let it pass.
    pub allowed: bool,
    /// What the sender's policy says.
    pub egress: Part,
    /// What the receiver's policy says.
    pub ingress: Part,
}

/// What the policy of one side says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The side has a policy: it is an endpoint, or this node.
    pub subject: bool,
    /// A rule restricts this direction.
    pub enforced: bool,
    /// What becomes of the flow.
    pub verdict: Verdict,
    /// The rules that make it so; none, if it is the default.
    pub by: Vec<Reason>,
    /// Rules that would have allowed it, were something else; the nearest first.
    pub near: Vec<Near>,
    /// What to add or change to let it pass.
    pub advice: Option<Advice>,
}

/// A rule that speaks about the flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The object, such as `CiliumNetworkPolicy shop/web`.
    pub policy: String,
    /// The place in it: a path such as `spec.ingress[0]`.
    pub field: String,
    /// What it does.
    pub action: Action,
    /// The peers and ports that it means, in words.
    pub says: String,
}

/// A rule that would have allowed the flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Near {
    /// The rule.
    pub rule: Reason,
    /// What doesn't fit.
    pub misses: Vec<String>,
}

/// How to let a flow pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// In a sentence.
    pub text: String,
    /// The `spec` of a `CiliumNetworkPolicy` in the subject's namespace that allows it, if adding one
    /// is enough.
    pub spec: Option<Value>,
}

/// A flow that passed before a change of policies, and would not any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// Its place among the flows.
    pub flow: usize,
    /// What becomes of it after the change, and why.
    pub after: Explanation,
}

/// Says what becomes of a flow and why.
///
/// Sides whose identity the repository doesn't know have no policy here, and no labels.
pub fn explain(repository: &mut Repository, flow: &Flow) -> Explanation {
    let part = |repository: &mut Repository, direction| {
        let (own, other) = match direction {
            Direction::Egress => (&flow.from, &flow.to),
            Direction::Ingress => (&flow.to, &flow.from),
        };
        reasons::part(repository, direction, own, other, (flow.proto, flow.port))
    };
    let egress = part(repository, Direction::Egress);
    let ingress = part(repository, Direction::Ingress);
    let allowed = [&egress, &ingress].iter().all(|part| part.verdict == Verdict::Allowed);
    Explanation { allowed, egress, ingress }
}

/// The flows that pass by the policies before, and not by those after.
pub fn cuts(before: &mut Repository, after: &mut Repository, flows: &[Flow]) -> Vec<Cut> {
    let mut cut = Vec::new();
    for (index, flow) in flows.iter().enumerate() {
        if explain(before, flow).allowed {
            let after = explain(after, flow);
            if !after.allowed {
                cut.push(Cut { flow: index, after });
            }
        }
    }
    cut
}

impl Verdict {
    /// The verdict in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NotAllowed => "not allowed",
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, part) in [("egress", &self.egress), ("ingress", &self.ingress)] {
            writeln!(f, "{name}: {part}")?;
        }
        write!(f, "{}", if self.allowed { "It passes." } else { "It is dropped." })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.subject {
            return write!(f, "allowed: this side has no policy here");
        }
        write!(f, "{}", self.verdict.name())?;
        if self.by.is_empty() {
            write!(
                f,
                "{}",
                match self.verdict {
                    Verdict::Allowed if !self.enforced => ": no policy restricts this direction",
                    Verdict::Allowed => ": by default",
                    _ => ": policies restrict this direction, and none allows it",
                }
            )?;
        }
        for reason in &self.by {
            write!(f, "\n  by {reason}")?;
        }
        for near in &self.near {
            write!(f, "\n  not by {}: {}", near.rule, near.misses.join("; "))?;
        }
        if let Some(advice) = &self.advice {
            write!(f, "\n  to let it pass: {}", advice.text)?;
        }
        Ok(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, which {} {}", self.policy, self.field, self.action.name(), self.says)
    }
}

/// A port or an ICMP type as people write it.
pub(crate) fn shown((proto, port): (u8, u16)) -> String {
    let name = protocol::name(proto).map_or_else(|| proto.to_string(), str::to_owned);
    match proto {
        protocol::ICMP | protocol::ICMPV6 => format!("{name} type {port}"),
        _ => format!("{port}/{name}"),
    }
}
