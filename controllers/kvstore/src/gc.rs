//! Decides which identities and locks of the kvstore nobody needs, and
//! deletes them if that is still so then.

use std::collections::{BTreeMap, HashMap, HashSet};

use cilia_crds::NumericIdentity;
use cilia_identity::Space;
use cilia_runtime::lanes::Rate;

use crate::client::Client;
use crate::lock::Lock;
use crate::txn::Txn;
use crate::{Error, KeyValue, keys};

/// Identities that were unused in the last run: the revision of the master's last write.
pub type Unused = HashMap<u32, i64>;

/// What a run has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Masters that are still there, of any cluster.
    pub alive: usize,
    /// Masters that were deleted.
    pub deleted: Vec<u32>,
    /// What the next run needs to know.
    pub unused: Unused,
    /// Deletions that failed.
    pub failures: usize,
}

/// A master key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Master {
    number: u32,
    labels: String,
    revision: i64,
}

/// Which of the cluster's masters are unused, and of these which were in the last run already, as they are now.
fn decide(
    masters: &[Master],
    used: &HashSet<(String, u32)>,
    space: Space,
    before: &Unused,
) -> (Unused, Vec<Master>) {
    let mut unused = Unused::new();
    let mut delete = Vec::new();
    let own = |master: &&Master| space.contains(NumericIdentity(master.number));
    // Of two numbers for the same labels, only the one that is used is kept.
    let unused_now = |master: &&Master| !used.contains(&(master.labels.clone(), master.number));
    for master in masters.iter().filter(own).filter(unused_now) {
        unused.insert(master.number, master.revision);
        if before.get(&master.number) == Some(&master.revision) {
            delete.push(master.clone());
        }
    }
    (unused, delete)
}

/// What a run has found, and may delete.
#[derive(Debug, Default)]
pub struct Found {
    alive: usize,
    unused: Unused,
    delete: Vec<Master>,
}

impl Found {
    /// The numbers that are unused for the second time.
    pub fn candidates(&self) -> HashSet<u32> {
        self.delete.iter().map(|master| master.number).collect()
    }

    /// Leaves these numbers for the next run: somebody uses them who can't say so at present.
    pub fn spare(&mut self, in_use: &HashSet<u32>) {
        self.delete.retain(|master| !in_use.contains(&master.number));
    }
}

/// Looks once at all masters; one that is unused for the second time, unchanged, is deleted.
pub async fn identities(
    client: &Client,
    space: Space,
    before: &Unused,
    rate: &Rate,
) -> Result<Report, Error> {
    Ok(collect(client, look(client, space, before).await?, rate).await)
}

/// Looks once at all masters.
pub async fn look(client: &Client, space: Space, before: &Unused) -> Result<Found, Error> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (masters, _) = client.list(&keys::identity_ids()).await?;
    let master = |kv: &KeyValue| {
        let number = keys::parse_identity_id(&text(&kv.key))?;
        Some(Master { number, labels: text(&kv.value), revision: kv.mod_revision })
    };
    let masters: Vec<Master> = masters.iter().filter_map(master).collect();
    let prefix = format!("{}/value/", keys::IDENTITIES);
    let (listed, _) = client.list(&prefix).await?;
    let labels = |kv: &KeyValue| {
        let key = text(&kv.key);
        let (labels, _) = key.strip_prefix(&prefix)?.rsplit_once('/')?;
        Some((labels.to_owned(), text(&kv.value).parse().ok()?))
    };
    let used: HashSet<(String, u32)> = listed.iter().filter_map(labels).collect();
    let (unused, delete) = decide(&masters, &used, space, before);
    Ok(Found { alive: masters.len(), unused, delete })
}

/// Deletes what was found, if that is still so.
pub async fn collect(client: &Client, found: Found, rate: &Rate) -> Report {
    let Found { alive, unused, delete } = found;
    let mut report = Report { alive, unused, ..Report::default() };
    for master in delete {
        rate.write().await;
        match delete_master(client, &master).await {
            Ok(true) => {
                tracing::info!(
                    identity = master.number,
                    labels = master.labels,
                    "identity deleted from the kvstore"
                );
                report.unused.remove(&master.number);
                report.deleted.push(master.number);
                report.alive -= 1;
            }
            // Somebody has begun to use it.
            Ok(false) => _ = report.unused.remove(&master.number),
            Err(error) => {
                tracing::warn!(%error, identity = master.number, "identity left for the next run");
                report.failures += 1;
            }
        }
    }
    report
}

/// Deletes a master that is unchanged, if nobody uses its number. The lock is for agents that look
/// first and write then; ours write only if the master is there.
async fn delete_master(client: &Client, master: &Master) -> Result<bool, Error> {
    let lock = client.lock(&keys::identity_lock(&master.labels)).await?;
    let deleted = delete_unused(client, master, &lock).await;
    let given_back = lock.unlock().await;
    let deleted = deleted?;
    given_back?;
    Ok(deleted)
}

async fn delete_unused(client: &Client, master: &Master, lock: &Lock) -> Result<bool, Error> {
    let (key, uses) = (keys::identity_id(master.number), keys::identity_values(&master.labels));
    let (there, revision) = client.list(&uses).await?;
    let number = master.number.to_string();
    if there.iter().any(|kv| kv.value == number.as_bytes()) {
        return Ok(false);
    }
    // What begins to use it after that look has a use that is younger.
    let txn = Txn::new()
        .if_unchanged_since(&key, master.revision)
        .if_none_younger_under(&uses, revision)
        .delete(&key);
    Ok(client.txn("delete under lock", &key, lock.guard(txn)).await?.done)
}

/// The oldest key of each lock in the last round: its last write and its lease.
pub type Locks = BTreeMap<String, (String, i64, i64)>;

/// The keys of locks that had the same holder in the last round, and what the next round needs to know.
fn stale(listed: &[KeyValue], before: &Locks) -> (Vec<(String, i64)>, Locks) {
    let mut oldest = Locks::new();
    for kv in listed {
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        let holder = (key.clone(), kv.mod_revision, kv.lease);
        let known =
            oldest.entry(keys::lock_path(&key).to_owned()).or_insert_with(|| holder.clone());
        if holder.1 < known.1 {
            *known = holder;
        }
    }
    let same = |(path, holder): (&String, &(String, i64, i64))| {
        (before.get(path) == Some(holder)).then(|| (holder.0.clone(), holder.1))
    };
    (oldest.iter().filter_map(same).collect(), oldest)
}

/// Looks once at all locks of identities; one that the same holder has for the second time is broken.
/// The broken locks' keys, and what the next round needs to know.
pub async fn locks(client: &Client, before: &Locks) -> Result<(Vec<String>, Locks), Error> {
    let (listed, _) = client.list(&keys::identity_locks()).await?;
    let (stale, next) = stale(&listed, before);
    let mut broken = Vec::new();
    for (key, revision) in stale {
        let txn = Txn::new().if_unchanged_since(&key, revision).delete(&key);
        if client.txn("delete", &key, txn).await?.done {
            tracing::warn!(key, "lock was held for too long, and is broken");
            broken.push(key);
        }
    }
    Ok((broken, next))
}

#[cfg(test)]
mod tests {
    use cilia_identity::Space;

    use super::{KeyValue, Locks, Master, Unused, decide, keys, stale};

    #[test]
    fn only_what_is_unused_twice_and_unchanged_and_ours_goes() {
        let space = Space::new(0, 255).unwrap();
        let master =
            |number, labels: &str, revision| Master { number, labels: labels.into(), revision };
        let masters = [
            master(300, "k8s:a=1;", 5),
            master(301, "k8s:a=2;", 6),
            master(302, "k8s:a=3;", 7),
            master(303, "k8s:a=4;", 8),
            master(65_600, "k8s:a=5;", 9),
        ];
        let used = |number| (String::from("k8s:a=2;"), number);
        let before: Unused = [(300, 5), (301, 6), (302, 6), (65_600, 9)].into();
        let (unused, delete) = decide(&masters, &[used(301)].into(), space, &before);
        assert_eq!(unused, [(300, 5), (302, 7), (303, 8)].into());
        assert_eq!(delete, [master(300, "k8s:a=1;", 5)]);
        // Its labels are used by another number.
        let (_, delete) = decide(&masters, &[used(310)].into(), space, &before);
        assert_eq!(delete, [master(300, "k8s:a=1;", 5), master(301, "k8s:a=2;", 6)]);
    }

    #[test]
    fn only_the_holder_of_a_lock_can_hold_it_for_too_long() {
        let key = |name: &str, revision, lease| KeyValue {
            key: format!("cilium/state/identities/v1/locks/{name}").into(),
            mod_revision: revision,
            lease,
            ..KeyValue::default()
        };
        let round = [key("a/7", 5, 7), key("a/8", 6, 8), key("b/9", 7, 9)];
        let (none, first) = stale(&round, &Locks::new());
        assert!(none.is_empty());
        // The holder of `a` has changed; that of `b` has not.
        let round = [key("a/8", 6, 8), key("b/9", 7, 9)];
        let (broken, second) = stale(&round, &first);
        assert_eq!(broken, [("cilium/state/identities/v1/locks/b/9".to_owned(), 7)]);
        // It was taken again meanwhile, by the same lease.
        let (broken, _) = stale(&[key("b/9", 12, 9)], &second);
        assert!(broken.is_empty());
    }

    #[test]
    fn of_each_lock_the_oldest_key_holds_it() {
        let at = |path: &str| format!("cilium/state/identities/v1/locks/{path}");
        let key = |path: &str, revision| KeyValue {
            key: at(path).into(),
            mod_revision: revision,
            ..KeyValue::default()
        };
        let oldest = |listed: &[KeyValue]| {
            let holders = stale(listed, &Locks::new()).1.into_values();
            holders.map(|(key, _, _)| key).collect::<Vec<String>>()
        };
        assert_eq!(oldest(&[]), [""; 0], "LOCK-01");
        let mut round: Vec<_> = (1..=5).rev().map(|n| key(&format!("foo/bar/{n}"), n)).collect();
        round.extend([key("foo/baz/6", 6), key("foo/bbz/7", 3)]);
        let want = ["foo/bar/1", "foo/baz/6", "foo/bbz/7"].map(at);
        assert_eq!(oldest(&round), want, "LOCK-02");
        let path = at("k8s:app=web;k8s:io.kubernetes.pod.namespace=a/b;");
        assert_eq!(keys::lock_path(&format!("{path}/7587875c")), path, "LOCK-03");
    }
}
