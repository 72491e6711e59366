//! Decides in which order the entries of a policy map are written, and which of them if not all fit.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cilia_loader::{PolicyEntry, PolicyKey};
use cilia_policy::{VIEW_SHIFT, WEAK};

/// As much of a policy as fits: every denial, also those that the block of an address may make, and of
/// what is allowed the broadest first; nothing at all if the denials alone don't fit, for without one of
/// them too much would be allowed.
pub(super) fn fitting(
    wanted: BTreeMap<PolicyKey, PolicyEntry>,
    most: usize,
) -> BTreeMap<PolicyKey, PolicyEntry> {
    let denials = wanted.values().filter(|entry| narrows(**entry)).count();
    if denials > most {
        return BTreeMap::new();
    }
    let mut ranked: Vec<_> = wanted.into_iter().collect();
    ranked.sort_by_key(|(key, entry)| {
        (!narrows(*entry), key.identity != 0, key.proto != 0, key.port_prefix)
    });
    ranked.truncate(most);
    ranked.into_iter().collect()
}

/// When an entry is written: views before those who are sent on to them, the narrow before the broad
/// that it is cut out of, and denials first. So nothing passes meanwhile that neither the old policy lets
/// through nor the new one.
pub(super) fn order(key: &PolicyKey, entry: PolicyEntry) -> (bool, Reverse<(bool, u8)>, bool) {
    (!is_view(key.identity), Reverse((key.proto != 0, key.port_prefix)), !narrows(entry))
}

/// Whether without an entry more might pass.
fn narrows(entry: PolicyEntry) -> bool {
    entry.deny || entry.view > 0
}

/// Whether a key's identity is a block, as others see it than those who are not sent on.
pub(super) fn is_view(identity: u32) -> bool {
    (identity & !WEAK) >> VIEW_SHIFT != 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_loader::{PolicyEntry, PolicyKey};

    use super::fitting;

    #[test]
    fn what_fits_never_lets_through_more() {
        let allow = PolicyEntry::default();
        let deny = PolicyEntry { deny: true, ..PolicyEntry::default() };
        let port = |identity, port| PolicyKey::port(identity, false, 6, port);
        let wanted = BTreeMap::from([
            (port(300, 80), allow),
            (PolicyKey::all(0, false), allow),
            (PolicyKey::all(301, false), allow),
            (port(302, 80), deny),
            (port(303, 80), deny),
        ]);
        let kept = |most| fitting(wanted.clone(), most).into_keys().collect::<Vec<_>>();
        assert_eq!(kept(1), [], "one denial would be missing");
        assert_eq!(kept(2), [port(302, 80), port(303, 80)]);
        assert_eq!(kept(3), [PolicyKey::all(0, false), port(302, 80), port(303, 80)]);
        assert!(!kept(4).contains(&port(300, 80)), "the narrowest goes first");
        assert_eq!(kept(5).len(), 5);
        // Without what sends on to blocks, everybody's allow would count.
        let sent_on = PolicyEntry { view: 1, ..PolicyEntry::default() };
        let wanted = BTreeMap::from([(PolicyKey::all(0, false), allow), (port(300, 80), sent_on)]);
        assert_eq!(fitting(wanted, 1).into_keys().collect::<Vec<_>>(), [port(300, 80)]);
    }
}
