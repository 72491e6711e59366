//! The part of the agent's configuration that makes the node: families, ranges, tunnel, MTU.

use std::collections::BTreeMap;
use std::time::Duration;

use cilia_runtime::config::{Config as Flags, Error};
use ipnet::IpNet;

/// VXLAN's port, unless `tunnel-port` says otherwise.
const VXLAN_PORT: u16 = 8472;
const MAX_MTU: i64 = 65520;

/// How many addresses of the default pool are asked for in advance, unless
/// `ipam-multi-pool-pre-allocation` says otherwise: Cilium's default.
const PRE_ALLOCATION: u32 = 8;

/// Who gives ranges to nodes (`ipam`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpamMode {
    /// The operator.
    ClusterPool,
    /// Kubernetes: the ranges of the Node are taken.
    Kubernetes,
    /// The operator, out of pools, as much as this node asks for.
    MultiPool {
        /// Where pods get their addresses that nothing is said about.
        default_pool: String,
        /// How many addresses of a pool are kept ready.
        pre_allocation: BTreeMap<String, u32>,
    },
    /// Somebody lists addresses in the node's object, one by one.
    Crd,
}

/// How this node is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own in the flags")]
pub struct Config {
    /// The node's name.
    pub name: String,
    /// Pods have IPv4 addresses.
    pub ipv4: bool,
    /// Pods have IPv6 addresses.
    pub ipv6: bool,
    /// Who gives ranges.
    pub ipam: IpamMode,
    /// How long after a write of what no pod waits for the next one comes.
    pub update_rate: Duration,
    /// The tunnel's UDP port; `None` routes without a tunnel.
    pub tunnel_port: Option<u16>,
    /// The MTU; 0 to find it out.
    pub mtu: u32,
    /// Packets from IPv4 pods to the world get the node's address.
    pub masquerade_ipv4: bool,
    /// Packets from IPv6 pods to the world get the node's address.
    pub masquerade_ipv6: bool,
    /// Ranges that know the way back to pods.
    pub native_cidrs: Vec<IpNet>,
    /// Devices by which packets to the world leave.
    pub masquerade_interfaces: Vec<String>,
    /// Where the node's `/proc` is.
    pub procfs: String,
}

impl Config {
    /// Reads the flags for the node of this name.
    pub fn read(name: &str, flags: &Flags) -> Result<Self, Error> {
        let (ipv4, ipv6) = (flags.bool("enable-ipv4"), flags.bool("enable-ipv6"));
        if !ipv4 && !ipv6 {
            return Err(
                flags.reject("enable-ipv4", "true, unless enable-ipv6 is: pods need addresses")
            );
        }
        let ipam = mode(flags)?;
        let tunnel = flags.one_of("routing-mode", &["tunnel", "native"])? == "tunnel";
        if tunnel {
            flags.one_of("tunnel-protocol", &["vxlan"])?;
        }
        let port = match u16::try_from(flags.uint("tunnel-port")) {
            Ok(0) => VXLAN_PORT,
            Ok(port) => port,
            Err(_) => {
                return Err(flags.reject("tunnel-port", "a port from 0 to 65535; 0 is VXLAN's own"));
            }
        };
        let mtu = flags.int("mtu");
        let mtu = u32::try_from(mtu).ok().filter(|_| mtu <= MAX_MTU);
        let mtu = mtu
            .ok_or_else(|| flags.reject("mtu", format!("a number from 0 (detect) to {MAX_MTU}")))?;
        let native_ipv4 = native(flags, "ipv4-native-routing-cidr", "10.0.0.0/8", IpNet::is_v4)?;
        let native_ipv6 =
            native(flags, "ipv6-native-routing-cidr", "fd00::/48", |net| !net.is_v4())?;
        Ok(Self {
            name: name.to_owned(),
            ipv4,
            ipv6,
            ipam,
            update_rate: flags.duration("ipam-cilium-node-update-rate"),
            tunnel_port: tunnel.then_some(port),
            mtu,
            masquerade_ipv4: ipv4 && flags.bool("enable-ipv4-masquerade"),
            masquerade_ipv6: ipv6 && flags.bool("enable-ipv6-masquerade"),
            native_cidrs: native_ipv4.into_iter().chain(native_ipv6).collect(),
            masquerade_interfaces: flags.strings("egress-masquerade-interfaces").to_vec(),
            procfs: flags.string("procfs").to_owned(),
        })
    }

    /// Whether pods have addresses of this range's family.
    pub fn has_family(&self, net: &IpNet) -> bool {
        if net.is_v4() { self.ipv4 } else { self.ipv6 }
    }
}

fn mode(flags: &Flags) -> Result<IpamMode, Error> {
    Ok(match flags.one_of("ipam", &["cluster-pool", "multi-pool", "kubernetes", "crd"])? {
        "kubernetes" => IpamMode::Kubernetes,
        "crd" => IpamMode::Crd,
        "multi-pool" => {
            let default_pool = flags.string("ipam-default-ip-pool").to_owned();
            if default_pool.is_empty() {
                return Err(flags.reject("ipam-default-ip-pool", "the name of a CiliumPodIPPool"));
            }
            let flag = "ipam-multi-pool-pre-allocation";
            let pre_allocation = if flags.is_set(flag) {
                let number = |(pool, text): (&String, &String)| {
                    let number = text.trim().parse::<u32>().map_err(|_| {
                        flags.reject(flag, "pairs of a pool and a number from 0, such as default=8")
                    });
                    Ok((pool.clone(), number?))
                };
                flags.map(flag).iter().map(number).collect::<Result<_, Error>>()?
            } else {
                BTreeMap::from([(default_pool.clone(), PRE_ALLOCATION)])
            };
            IpamMode::MultiPool { default_pool, pre_allocation }
        }
        _ => IpamMode::ClusterPool,
    })
}

/// A range of the right family, or none.
fn native(
    flags: &Flags,
    name: &str,
    example: &str,
    fits: fn(&IpNet) -> bool,
) -> Result<Option<IpNet>, Error> {
    let text = flags.string(name);
    if text.is_empty() {
        return Ok(None);
    }
    let net = text.parse().ok().filter(fits);
    let net: IpNet = net.ok_or_else(|| flags.reject(name, format!("a CIDR such as {example}")))?;
    Ok(Some(net.trunc()))
}

/// What `IpNet` doesn't say in one word.
trait Family {
    fn is_v4(&self) -> bool;
}

impl Family for IpNet {
    fn is_v4(&self) -> bool {
        self.addr().is_ipv4()
    }
}

#[cfg(test)]
mod tests {
    use cilia_runtime::config::{Config as Flags, Flags as Table};

    use super::{Config, IpamMode};

    fn read(args: &[&str]) -> Result<Config, String> {
        let flags = Flags::load(Table::agent(), args.iter().map(ToString::to_string), [])
            .map_err(|e| e.to_string())?;
        Config::read("n1", &flags).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_read() {
        let config = read(&[
            "--ipam=kubernetes",
            "--ipv4-native-routing-cidr=10.1.2.3/8",
            "--tunnel-port=0",
        ])
        .unwrap();
        assert_eq!(
            (config.ipam, config.tunnel_port, config.mtu),
            (IpamMode::Kubernetes, Some(8472), 0)
        );
        assert_eq!(config.native_cidrs, ["10.0.0.0/8".parse().unwrap()]);
        assert_eq!(read(&["--routing-mode=native"]).unwrap().tunnel_port, None);
        assert!(!read(&["--enable-ipv6=false"]).unwrap().masquerade_ipv6);
        let pools = |args: &[&str]| match read(args).unwrap().ipam {
            IpamMode::MultiPool { default_pool, pre_allocation } => (default_pool, pre_allocation),
            other => panic!("{other:?}"),
        };
        let (default, kept) = pools(&["--ipam=multi-pool", "--ipam-default-ip-pool=main"]);
        assert_eq!((default.as_str(), kept.get("main")), ("main", Some(&8)));
        let (_, kept) =
            pools(&["--ipam=multi-pool", "--ipam-multi-pool-pre-allocation=default=0,red=4"]);
        assert_eq!((kept.get("default"), kept.get("red")), (Some(&0), Some(&4)));
    }

    #[test]
    fn faults_name_the_flag() {
        let cases: &[(&[&str], &str)] = &[
            (&["--ipv4-native-routing-cidr=10.0.0/8"], "ipv4-native-routing-cidr"),
            (&["--ipv4-native-routing-cidr=fd00::/48"], "ipv4-native-routing-cidr"),
            (&["--ipv6-native-routing-cidr=10.0.0.0/8"], "ipv6-native-routing-cidr"),
            (&["--mtu=70000"], "mtu"),
            (&["--mtu=-1"], "mtu"),
            (&["--ipam=eni"], "ipam"),
            (&["--ipam=multi-pool", "--ipam-default-ip-pool="], "ipam-default-ip-pool"),
            (
                &["--ipam=multi-pool", "--ipam-multi-pool-pre-allocation=a=many"],
                "ipam-multi-pool-pre-allocation",
            ),
            (&["--routing-mode=direct"], "routing-mode"),
            (&["--tunnel-protocol=geneve"], "tunnel-protocol"),
            (&["--enable-ipv4=false", "--enable-ipv6=false"], "enable-ipv4"),
        ];
        for (args, flag) in cases {
            let error = read(args).unwrap_err();
            assert!(error.contains(flag), "{args:?}: {error}");
        }
    }
}
