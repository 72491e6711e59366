//! Gives every set of rules that a map entry comes from a number: the entry's cookie.
//!
//! The kernel gives it back in verdict events, and counts by it. Numbers are hashes of what the
//! rules are called, so that a restarted agent writes the same entries; only where two sets have
//! the same hash the order of their coming counts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::rule::PolicyId;

/// An item of a rule, as somebody would look for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// The object.
    pub policy: PolicyId,
    /// The place in it: a path such as `spec.ingress[0]`.
    pub field: Arc<str>,
    /// What the rule wants to be logged (`log.value`).
    pub log: Option<Arc<str>>,
}

/// What no rule says, but the defaults: that an endpoint is open, or that its node may reach it.
pub(crate) const NOBODY: u32 = 0;

/// Origins and their numbers: about 100 bytes for each set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins {
    by_cookie: HashMap<u32, Arc<[Arc<Origin>]>>,
    singles: HashMap<Arc<Origin>, u32>,
    unions: HashMap<Box<[u32]>, u32>,
}

impl Origins {
    /// The number of one origin.
    pub(crate) fn single(&mut self, origin: Origin) -> u32 {
        if let Some(cookie) = self.singles.get(&origin) {
            return *cookie;
        }
        let log = origin.log.as_deref().unwrap_or_default();
        let name = format!("{}\0{}\0{log}", origin.policy, origin.field);
        let cookie = self.free(hash(name.bytes()));
        let origin = Arc::new(origin);
        self.by_cookie.insert(cookie, [origin.clone()].into());
        self.singles.insert(origin, cookie);
        cookie
    }

    /// The number of several origins together, by their numbers.
    pub(crate) fn union(&mut self, mut cookies: Vec<u32>) -> u32 {
        cookies.retain(|cookie| *cookie != NOBODY);
        cookies.sort_unstable();
        cookies.dedup();
        match cookies.as_slice() {
            [] => return NOBODY,
            [one] => return *one,
            _ => {}
        }
        if let Some(cookie) = self.unions.get(cookies.as_slice()) {
            return *cookie;
        }
        let mut members: Vec<Arc<Origin>> = cookies
            .iter()
            .filter_map(|cookie| self.by_cookie.get(cookie))
            .flat_map(|origins| origins.iter().cloned())
            .collect();
        members.sort_unstable();
        let cookie = self.free(hash(cookies.iter().flat_map(|cookie| cookie.to_be_bytes())));
        self.by_cookie.insert(cookie, members.into());
        self.unions.insert(cookies.into(), cookie);
        cookie
    }

    /// What a cookie stands for.
    pub(crate) fn get(&self, cookie: u32) -> Option<&Arc<[Arc<Origin>]>> {
        self.by_cookie.get(&cookie)
    }

    /// How many sets there are.
    pub(crate) fn len(&self) -> usize {
        self.by_cookie.len()
    }

    /// Forgets sets that are not used; and keeps what those consist of that are.
    pub(crate) fn retain(&mut self, used: &HashSet<u32>) {
        self.unions.retain(|_, cookie| used.contains(cookie));
        let parts: HashSet<u32> = self.unions.keys().flatten().copied().collect();
        self.singles.retain(|_, cookie| used.contains(cookie) || parts.contains(cookie));
        self.by_cookie.retain(|cookie, _| used.contains(cookie) || parts.contains(cookie));
    }

    /// The first number from `wanted` on that is nobody's.
    fn free(&self, wanted: u32) -> u32 {
        let numbers = std::iter::successors(Some(wanted), |number| Some(number.wrapping_add(1)));
        numbers
            .into_iter()
            .find(|number| *number != NOBODY && !self.by_cookie.contains_key(number))
            .unwrap_or(NOBODY)
    }
}

/// FNV-1a, folded to 32 bits: it must not change between versions.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let all = bytes.into_iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    #[expect(clippy::cast_possible_truncation, reason = "both halves are folded into one")]
    let folded = (all ^ (all >> 32)) as u32;
    folded
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{NOBODY, Origin, Origins};
    use crate::rule::{Kind, PolicyId};

    fn origin(name: &str, field: &str) -> Origin {
        let policy = PolicyId { kind: Kind::Cilium, namespace: "shop".into(), name: name.into() };
        Origin { policy, field: field.into(), log: None }
    }

    #[test]
    fn numbers_do_not_depend_on_the_order() {
        let names = ["a", "b", "c"].map(|name| origin(name, "spec.ingress[0]"));
        let mut one = Origins::default();
        let cookies = names.clone().map(|origin| one.single(origin));
        let mut other = Origins::default();
        let mut turned = names.clone();
        turned.reverse();
        let mut again = turned.map(|origin| other.single(origin));
        again.reverse();
        assert_eq!(cookies, again);
        assert_eq!(
            one.union(vec![cookies[0], NOBODY, cookies[2]]),
            other.union(vec![cookies[2], cookies[0]])
        );
        assert_eq!(one.union(vec![NOBODY, cookies[1], cookies[1]]), cookies[1]);
        assert_eq!(one.union(vec![NOBODY]), NOBODY);
    }

    #[test]
    fn what_is_used_keeps_its_parts() {
        let mut origins = Origins::default();
        let cookies = ["a", "b", "c"].map(|name| origins.single(origin(name, "spec.egress[1]")));
        let both = origins.union(vec![cookies[0], cookies[1]]);
        origins.retain(&HashSet::from([both]));
        assert_eq!(origins.len(), 3);
        assert!(origins.get(cookies[2]).is_none());
        let names: Vec<_> = origins
            .get(both)
            .expect("kept")
            .iter()
            .map(|one| one.policy.name.to_string())
            .collect();
        assert_eq!(names, ["a", "b"]);
    }
}
