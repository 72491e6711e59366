//! Routes by rtnetlink.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType,
};

use super::netlink::family;
use super::{Error, Netlink};

/// A route of the main table, as far as Cilia makes or reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// Where it leads.
    pub destination: IpNet,
    /// The device; `None` answers packets with "unreachable".
    pub device: Option<u32>,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The address that the node itself sends from.
    pub source: Option<IpAddr>,
    /// The largest packet.
    pub mtu: Option<u32>,
    /// Its metric, where another than the default.
    pub metric: Option<u32>,
}

impl Route {
    /// A route straight to a device.
    pub fn direct(destination: IpNet, device: u32) -> Self {
        Self {
            destination,
            device: Some(device),
            gateway: None,
            source: None,
            mtu: None,
            metric: None,
        }
    }

    /// A route that leads nowhere.
    pub fn unreachable(destination: IpNet, metric: u32) -> Self {
        Self {
            destination,
            device: None,
            gateway: None,
            source: None,
            mtu: None,
            metric: Some(metric),
        }
    }

    /// The same route through a next hop.
    #[must_use]
    pub fn via(self, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..self }
    }

    /// The same route, sending from `source`.
    #[must_use]
    pub fn from(self, source: Option<IpAddr>) -> Self {
        Self { source, ..self }
    }

    /// The same route for packets up to `mtu`.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        let header = &mut message.header;
        header.address_family = family(self.destination.addr());
        header.destination_prefix_length = self.destination.prefix_len();
        header.table = RouteHeader::RT_TABLE_MAIN;
        // systemd-networkd removes routes of others unless the kernel seems to have made them.
        header.protocol = RouteProtocol::Kernel;
        header.kind =
            if self.device.is_some() { RouteType::Unicast } else { RouteType::Unreachable };
        let direct =
            self.device.is_some() && self.gateway.is_none() && self.destination.addr().is_ipv4();
        header.scope = if direct { RouteScope::Link } else { RouteScope::Universe };
        let attributes = &mut message.attributes;
        if self.destination.prefix_len() > 0 {
            attributes.push(RouteAttribute::Destination(address(self.destination.addr())));
        }
        attributes.extend(self.device.map(RouteAttribute::Oif));
        attributes.extend(self.gateway.map(|gateway| RouteAttribute::Gateway(address(gateway))));
        attributes.extend(self.source.map(|source| RouteAttribute::PrefSource(address(source))));
        attributes.extend(self.metric.map(RouteAttribute::Priority));
        attributes.extend(self.mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
        message
    }

    fn read(message: &RouteMessage) -> Option<Self> {
        let header = &message.header;
        let of_main = header.table == RouteHeader::RT_TABLE_MAIN;
        if !of_main || !matches!(header.kind, RouteType::Unicast | RouteType::Unreachable) {
            return None;
        }
        let any = match header.address_family {
            netlink_packet_route::AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            netlink_packet_route::AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => return None,
        };
        let (mut destination, mut device, mut gateway, mut source, mut mtu, mut metric) =
            (any, None, None, None, None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => destination = ip(address)?,
                RouteAttribute::Oif(index) => device = Some(*index),
                RouteAttribute::Gateway(address) => gateway = ip(address),
                RouteAttribute::PrefSource(address) => source = ip(address),
                RouteAttribute::Priority(priority) => metric = Some(*priority),
                RouteAttribute::Metrics(metrics) => {
                    mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        if header.kind == RouteType::Unreachable {
            // IPv6 shows the loopback device where IPv4 shows none.
            device = None;
        } else if metric == Some(IPV6_METRIC) && destination.is_ipv6() {
            metric = None;
        }
        let destination = IpNet::new(destination, header.destination_prefix_length).ok()?;
        Some(Self { destination, device, gateway, source, mtu, metric })
    }
}

/// The metric that IPv6 gives routes that come without.
const IPV6_METRIC: u32 = 1024;

impl Netlink {
    /// Makes a route; one to the same destination with the same metric gives way.
    pub async fn set_route(&self, route: &Route) -> Result<(), Error> {
        let set = self.handle.route().add(route.message()).replace().execute().await;
        set.map_err(|error| Error::netlink("add route", route.to_string(), &error))
    }

    /// Removes a route; one that is not there is fine.
    pub async fn remove_route(&self, route: &Route) -> Result<(), Error> {
        match self.handle.route().del(route.message()).execute().await {
            Ok(()) => Ok(()),
            Err(error) => match Error::netlink("remove route", route.to_string(), &error) {
                error if error.is_absent() => Ok(()),
                error => Err(error),
            },
        }
    }

    /// The routes of the main table, of both families.
    pub async fn routes(&self) -> Result<Vec<Route>, Error> {
        let mut routes = Vec::new();
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let mut request = RouteMessage::default();
            request.header.address_family = family(any);
            let _listing = self.listing.lock().await;
            let messages = self.handle.route().get(request).execute();
            let listed: Result<Vec<_>, _> = messages.try_collect().await;
            let listed = listed.map_err(|error| Error::netlink("list", "routes", &error))?;
            routes.extend(listed.iter().filter_map(Route::read));
        }
        Ok(routes)
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.destination)?;
        match self.device {
            Some(device) => write!(f, " by device number {device}")?,
            None => write!(f, " (unreachable)")?,
        }
        self.gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))
    }
}

fn address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}
