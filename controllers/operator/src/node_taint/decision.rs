//! Decides a node's `agent-not-ready` taint and its `NetworkUnavailable` condition.
//!
//! Level-triggered: the answer depends on the node and its agent pods as they are now, not on
//! which event arrived. The reconciler asks after every event of a node or an agent pod.

/// A node, as far as this duty cares.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) tainted: bool,
    /// `NetworkUnavailable` is `False` with reason `CiliumIsUp`.
    pub(super) network_condition_set: bool,
    pub(super) agents: &'a [AgentPod],
    /// Other nodes have agent pods.
    pub(super) agents_elsewhere: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AgentPod {
    pub(super) ready: bool,
    pub(super) terminating: bool,
}

/// Which of the duty's effects the user has switched on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Duties {
    pub(super) remove_taint: bool,
    pub(super) set_taint: bool,
    pub(super) set_condition: bool,
}

/// What to write; nothing when the node is right already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    AddTaint,
    RemoveTaint,
    SetNetworkCondition,
}

/// The writes that make `node` right, in the order in which to do them.
///
/// The condition follows the taint: pods land on a node only once both say that they can start.
pub(super) fn decide(node: Node<'_>, duties: Duties) -> Vec<Effect> {
    let serving = node.agents.iter().any(|pod| pod.ready && !pod.terminating);
    // It had an agent once, and the others still have theirs: so it is neither a node that shall have
    // none, nor are the agents where nobody looks for them.
    let vanished = node.agents.is_empty() && node.network_condition_set && node.agents_elsewhere;
    let not_serving = !node.agents.is_empty() || vanished;
    let mut effects = Vec::new();
    if serving {
        if duties.remove_taint && node.tainted {
            effects.push(Effect::RemoveTaint);
        }
        if duties.set_condition && !node.network_condition_set {
            effects.push(Effect::SetNetworkCondition);
        }
    } else if duties.set_taint && !node.tainted && not_serving {
        effects.push(Effect::AddTaint);
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::{AgentPod, Duties, Effect::*, Node, decide};

    const ALL: Duties = Duties { remove_taint: true, set_taint: true, set_condition: true };
    const READY: AgentPod = AgentPod { ready: true, terminating: false };
    const STARTING: AgentPod = AgentPod { ready: false, terminating: false };
    const LEAVING: AgentPod = AgentPod { ready: true, terminating: true };

    #[test]
    fn follows_the_agent() {
        type Case = (&'static str, bool, bool, &'static [AgentPod], &'static [super::Effect]);
        let cases: &[Case] = &[
            ("agent ready", true, false, &[READY], &[RemoveTaint, SetNetworkCondition]),
            ("all well", false, true, &[READY], &[]),
            ("agent not ready", false, true, &[STARTING], &[AddTaint]),
            ("agent not ready, tainted", true, true, &[STARTING], &[]),
            ("TAINT-09: a terminating agent is not ready", false, true, &[LEAVING], &[AddTaint]),
            ("replacement already ready", false, true, &[LEAVING, READY], &[]),
            ("no agent scheduled: not ours to judge", false, true, &[], &[]),
        ];
        for &(name, tainted, network_condition_set, agents, want) in cases {
            let node = Node { tainted, network_condition_set, agents, agents_elsewhere: false };
            assert_eq!(decide(node, ALL), want, "{name}");
        }
    }

    #[test]
    fn an_agent_that_vanished_is_told_from_one_that_never_was() {
        let cases: &[(&str, bool, bool, &[super::Effect])] = &[
            ("it vanished without a trace", true, true, &[AddTaint]),
            ("the node never had one", false, true, &[]),
            ("nobody has one: Cilium goes, or is elsewhere", true, false, &[]),
        ];
        for &(name, network_condition_set, agents_elsewhere, want) in cases {
            let (tainted, agents) = (false, &[][..]);
            let node = Node { tainted, network_condition_set, agents, agents_elsewhere };
            assert_eq!(decide(node, ALL), want, "{name}");
            assert_eq!(decide(Node { tainted: true, ..node }, ALL), [], "{name}, tainted");
            assert_eq!(decide(node, Duties { set_taint: false, ..ALL }), [], "{name}, off");
        }
    }

    #[test]
    fn does_only_what_is_switched_on() {
        let (agents, agents_elsewhere) = (&[READY][..], true);
        let node = Node { tainted: true, network_condition_set: false, agents, agents_elsewhere };
        let only = Duties { remove_taint: false, set_taint: false, set_condition: true };
        assert_eq!(decide(node, only), [SetNetworkCondition], "TAINT-02");
        let only = Duties { remove_taint: true, set_taint: false, set_condition: false };
        assert_eq!(decide(node, only), [RemoveTaint], "TAINT-01");
        let agents = &[STARTING][..];
        let node = Node { tainted: false, network_condition_set: true, agents, agents_elsewhere };
        let off = Duties { set_taint: false, ..ALL };
        assert_eq!(decide(node, off), [], "TAINT-05");
    }

    #[test]
    fn settles() {
        // Doing what it says leaves nothing more to do, whatever the start.
        for bits in 0..32u8 {
            let agents = [&[READY][..], &[LEAVING][..], &[][..], &[LEAVING, READY][..]];
            let (agents, agents_elsewhere) = (agents[usize::from(bits >> 3)], bits & 4 != 0);
            let (tainted, network_condition_set) = (bits & 1 != 0, bits & 2 != 0);
            let mut node = Node { tainted, network_condition_set, agents, agents_elsewhere };
            for effect in decide(node, ALL) {
                match effect {
                    AddTaint => node.tainted = true,
                    RemoveTaint => node.tainted = false,
                    SetNetworkCondition => node.network_condition_set = true,
                }
            }
            assert_eq!(decide(node, ALL), [], "{node:?}");
        }
    }
}
