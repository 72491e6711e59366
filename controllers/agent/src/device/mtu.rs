//! Decides the MTU of devices and of routes.

use std::net::IpAddr;

use super::{Error, Netlink};

/// What VXLAN adds to a packet over IPv4: Ethernet, IP, UDP and VXLAN headers.
const VXLAN_OVER_IPV4: u32 = 50;
/// The same over IPv6.
const VXLAN_OVER_IPV6: u32 = 70;
/// Where nothing else is known.
const DEFAULT: u32 = 1500;

/// The MTUs of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mtu {
    /// Of devices.
    pub device: u32,
    /// Of routes to pods of other nodes.
    pub route: u32,
}

impl Mtu {
    /// The MTUs for an underlay of `device`, tunnelled or not.
    pub fn of(device: u32, tunnel: bool, underlay_ipv6: bool) -> Self {
        let overhead = match (tunnel, underlay_ipv6) {
            (false, _) => 0,
            (true, false) => VXLAN_OVER_IPV4,
            (true, true) => VXLAN_OVER_IPV6,
        };
        Self { device, route: device.saturating_sub(overhead) }
    }

    /// The MTUs of this node: `configured` if it is not 0, else that of the device with the
    /// node's address.
    pub async fn detect(
        netlink: &Netlink,
        configured: u32,
        node: IpAddr,
        tunnel: bool,
    ) -> Result<Self, Error> {
        let device = match configured {
            0 => netlink.link_with(node).await?.map_or(DEFAULT, |link| link.mtu),
            mtu => mtu,
        };
        Ok(Self::of(device, tunnel, node.is_ipv6()))
    }
}

#[cfg(test)]
mod tests {
    use super::Mtu;

    #[test]
    fn tunnels_leave_less_for_routes() {
        let cases = [
            (1500, false, false, 1500),
            (1500, true, false, 1450),
            (1500, true, true, 1430),
            (9001, true, false, 8951),
        ];
        for (device, tunnel, ipv6, route) in cases {
            assert_eq!(Mtu::of(device, tunnel, ipv6), Mtu { device, route });
        }
    }
}
