//! Decides which addresses of a node's list pods may get, and what the agent answers when one is wanted
//! back (mode crd).
//!
//! An address that is marked is not given out until the object says that it stays.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cilia_crds::ciliumnode::ipam::IpReleaseStatus;
use ipnet::IpNet;

/// The addresses of a list that pods may get, as ranges of one address each.
pub fn offered<'a>(
    pool: impl IntoIterator<Item = &'a String>,
    releases: &BTreeMap<String, IpReleaseStatus>,
) -> Vec<IpNet> {
    let stays = |text: &&String| {
        releases.get(*text).is_none_or(|state| *state == IpReleaseStatus::DoNotRelease)
    };
    let pool = pool.into_iter().filter(stays);
    pool.filter_map(|text| text.trim().parse::<IpAddr>().ok()).map(IpNet::from).collect()
}

/// What to change about `releases`: a new state, or nothing for an entry that is done with.
pub fn answers(
    releases: &BTreeMap<String, IpReleaseStatus>,
    used: impl Fn(IpAddr) -> bool,
) -> BTreeMap<String, Option<IpReleaseStatus>> {
    let answer = |(text, state): (&String, &IpReleaseStatus)| {
        let in_use = text.parse::<IpAddr>().is_ok_and(&used);
        let answer = match state {
            // In use although a former agent had agreed: it was restored since.
            IpReleaseStatus::MarkedForRelease | IpReleaseStatus::ReadyForRelease if in_use => {
                Some(IpReleaseStatus::DoNotRelease)
            }
            IpReleaseStatus::MarkedForRelease => Some(IpReleaseStatus::ReadyForRelease),
            IpReleaseStatus::Released => None,
            IpReleaseStatus::ReadyForRelease | IpReleaseStatus::DoNotRelease => return None,
        };
        Some((text.clone(), answer))
    };
    releases.iter().filter_map(answer).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_crds::ciliumnode::ipam::IpReleaseStatus::{
        DoNotRelease, MarkedForRelease, ReadyForRelease, Released,
    };

    use super::{answers, offered};

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let cases = [
            ("10.0.0.1", MarkedForRelease, Some(Some(DoNotRelease)), false),
            ("10.0.0.2", MarkedForRelease, Some(Some(ReadyForRelease)), false),
            ("10.0.0.3", ReadyForRelease, None, false),
            ("10.0.0.4", DoNotRelease, None, true),
            ("10.0.0.5", Released, Some(None), false),
            ("fd00::6", MarkedForRelease, Some(Some(ReadyForRelease)), false),
        ];
        let releases: BTreeMap<_, _> =
            cases.iter().map(|(text, state, _, _)| ((*text).to_owned(), *state)).collect();
        let used: std::net::IpAddr = "10.0.0.1".parse().expect("an address");
        let answered = answers(&releases, |address| address == used);
        let mut pool: Vec<String> = releases.keys().cloned().collect();
        pool.extend(["10.0.0.9".to_owned(), "nonsense".to_owned()]);
        let offered: Vec<String> =
            offered(&pool, &releases).iter().map(|net| net.addr().to_string()).collect();
        for (text, _, want, stays) in cases {
            assert_eq!(answered.get(text), want.as_ref(), "{text}");
            assert_eq!(offered.contains(&text.to_owned()), stays, "{text}");
        }
        assert!(offered.contains(&"10.0.0.9".to_owned()));
        assert_eq!(offered.len(), 2);
    }
}
