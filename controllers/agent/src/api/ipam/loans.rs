//! Decides which addresses are lent, to whom, and until when.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_ipam::{AddressError, Family};
use cilia_runtime::lanes::{Lane, Lanes, Next, Retry, Workqueues};
use tokio_util::sync::CancellationToken;

use crate::ipam::Ipam;

/// How long an address is lent that expires: as Cilium has it.
const EXPIRES: Duration = Duration::from_mins(10);

/// The addresses that are lent; clones share them.
#[derive(Debug, Clone)]
pub struct Loans(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ipam: Ipam,
    /// To whom, under the name by which the IPAM knows each loan; about 150 bytes for each.
    lent: Mutex<BTreeMap<IpAddr, Loan>>,
    expiring: Lanes<(IpAddr, String)>,
}

#[derive(Debug)]
struct Loan {
    owner: String,
    /// No two are the same, so that one isn't taken for another.
    name: String,
}

impl Loans {
    /// Nothing is lent yet.
    pub fn new(ipam: Ipam, workqueues: &Workqueues) -> Self {
        let lanes = vec![Lane::new("api-ipam-expiring")];
        let expiring = Lanes::new(lanes, Retry::default(), None, workqueues);
        Self(Arc::new(Shared { ipam, lent: Mutex::default(), expiring }))
    }

    /// Takes back what has expired, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let expire = async |(address, name): (IpAddr, String)| {
            // It may have been given back, and lent again, meanwhile.
            if self.take(address, Some(&name)) {
                tracing::info!(%address, "an address that was lent on request has expired");
            }
            Ok::<_, Infallible>(Next::Done)
        };
        self.0.expiring.run(1, &stop, |job| expire(job.key)).await;
    }

    /// Whether addresses come out of pools.
    pub(in super::super) fn has_pools(&self) -> bool {
        self.0.ipam.has_pools()
    }

    /// Lends an address of each family; all or none. Also says the mark of what expires.
    pub(in super::super) async fn lend(
        &self,
        families: &[Family],
        pool: &str,
        owner: &str,
        expires: bool,
    ) -> Result<(Vec<IpAddr>, Option<String>), AddressError> {
        let uuid = uuid(rand::random());
        let name = format!("{owner} (on request, {uuid})");
        let wants: Vec<(Family, String)> =
            families.iter().map(|family| (*family, pool.to_owned())).collect();
        let given = self.0.ipam.allocate_out_of(&wants, &name, &name).await;
        let pair = given.inspect_err(|_| self.0.ipam.forget(&name))?;
        let given: Vec<IpAddr> =
            pair.ipv4.map(IpAddr::from).into_iter().chain(pair.ipv6.map(IpAddr::from)).collect();
        for address in &given {
            let loan = Loan { owner: owner.to_owned(), name: name.clone() };
            self.lent().insert(*address, loan);
            if expires {
                self.0.expiring.add_after(0, (*address, name.clone()), EXPIRES);
            }
        }
        Ok((given, expires.then_some(uuid)))
    }

    /// Lends this very address.
    pub(in super::super) fn lend_this(
        &self,
        address: IpAddr,
        owner: &str,
    ) -> Result<(), AddressError> {
        let name = format!("{owner} (on request, {})", uuid(rand::random()));
        self.0.ipam.claim(address, &name)?;
        self.lent().insert(address, Loan { owner: owner.to_owned(), name });
        Ok(())
    }

    /// Takes an address back; whether it was lent.
    pub(in super::super) fn give_back(&self, address: IpAddr) -> bool {
        self.take(address, None)
    }

    /// Who has an address, lent or not.
    pub(in super::super) fn owner(&self, address: IpAddr) -> Option<String> {
        self.0.ipam.owner(address)
    }

    /// The name under which the IPAM knows who borrowed an address, if it is lent.
    pub(in super::super) fn borrower(&self, address: IpAddr) -> Option<String> {
        self.lent().get(&address).map(|loan| loan.name.clone())
    }

    /// Forgets loans of addresses that somebody else has by now.
    pub(in super::super) fn passed(&self, addresses: &[IpAddr]) {
        let mut lent = self.lent();
        for address in addresses {
            let holder = self.0.ipam.owner(*address);
            if lent.get(address).is_some_and(|loan| holder.as_deref() != Some(loan.name.as_str())) {
                lent.remove(address);
            }
        }
    }

    /// What is lent, and to whom.
    pub(in super::super) fn list(&self) -> Vec<(IpAddr, String)> {
        self.lent().iter().map(|(address, loan)| (*address, loan.owner.clone())).collect()
    }

    fn take(&self, address: IpAddr, only: Option<&str>) -> bool {
        let mut lent = self.lent();
        if only.is_some_and(|only| lent.get(&address).is_none_or(|loan| loan.name != only)) {
            return false;
        }
        let Some(loan) = lent.remove(&address) else { return false };
        self.0.ipam.release_one(address, &loan.name)
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Loan>> {
        self.0.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random number as a UUID of version 4.
fn uuid(random: u128) -> String {
    let bits = (random & !(0xf << 76) & !(0x3 << 62)) | (4 << 76) | (2 << 62);
    let digits = format!("{bits:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use cilia_ipam::{AddressError, Family};
    use cilia_runtime::lanes::Workqueues;
    use cilia_runtime::metrics::Metrics;
    use tokio_util::sync::CancellationToken;

    use super::{EXPIRES, Loans, uuid};
    use crate::ipam::Ipam;

    fn loans() -> (Loans, Ipam) {
        let ipam = Ipam::default();
        let ranges = ["10.0.0.0/29", "fd00::/125"].map(|range| range.parse().expect("a range"));
        let router: IpAddr = "10.0.0.1".parse().expect("an address");
        ipam.set_ranges(&ranges, &[router]).expect("ranges");
        let loans = Loans::new(ipam.clone(), &Workqueues::register(&Metrics::new("cilium")));
        (loans, ipam)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lent_comes_back() {
        let (loans, ipam) = loans();
        let stop = CancellationToken::new();
        let running = tokio::spawn(loans.clone().run(stop.clone()));
        let both = loans.lend(&Family::BOTH, "", "shop/web", false).await.expect("two addresses").0;
        assert_eq!((both[0].is_ipv4(), both[1].is_ipv6()), (true, true));
        assert_eq!(loans.list().len(), 2);
        assert!(loans.give_back(both[0]) && !loans.give_back(both[0]));
        assert_eq!(ipam.list().len(), 2, "the router and the other one: {:?}", ipam.list());

        let (short, mark) = loans.lend(&[Family::V4], "", "x", true).await.expect("an address");
        assert!(mark.is_some());
        let started = tokio::time::Instant::now();
        while loans.owner(short[0]).is_some() {
            assert!(started.elapsed() < EXPIRES * 2, "{:?}", loans.list());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(started.elapsed() >= EXPIRES);
        assert_eq!(loans.list(), [(both[1], "shop/web".to_owned())], "what does not expire stays");

        // It is lent to another before it expires: it stays theirs.
        let (again, _) = loans.lend(&[Family::V4], "", "x", true).await.expect("an address");
        assert!(loans.give_back(again[0]));
        loans.lend_this(again[0], "y").expect("it is free");
        tokio::time::sleep(EXPIRES * 2).await;
        assert!(loans.owner(again[0]).is_some_and(|owner| owner.starts_with("y ")));
        stop.cancel();
        running.await.expect("it ends");
    }

    #[tokio::test]
    async fn what_somebody_has_is_not_lent() {
        let (loans, ipam) = loans();
        let address = |text: &str| text.parse::<IpAddr>().expect(text);
        let taken = loans.lend_this(address("10.0.0.1"), "x");
        assert!(matches!(taken, Err(AddressError::Taken { .. })), "{taken:?}");
        let outside = loans.lend_this(address("10.0.1.1"), "x");
        assert!(matches!(outside, Err(AddressError::NotUsable(_))), "{outside:?}");
        loans.lend_this(address("10.0.0.3"), "x").expect("free");
        let twice = loans.lend_this(address("10.0.0.3"), "x");
        assert!(matches!(twice, Err(AddressError::Taken { .. })), "{twice:?}");
        assert!(!loans.give_back(address("10.0.0.1")), "the router's");
        while loans.lend(&[Family::V4], "", "x", false).await.is_ok() {}
        assert_eq!(ipam.usage(false).0, 6, "the range without its ends");
        assert!(loans.lend(&Family::BOTH, "", "x", false).await.is_err());
        assert_eq!(ipam.usage(true).0, 0, "all or none");
    }

    #[test]
    fn marks_are_uuids() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
