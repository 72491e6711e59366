//! Links, addresses, routes and neighbours of one network namespace, by rtnetlink.

use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use futures::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVxlan};

use super::Error;
use super::name::Mac;
pub use super::netlink_route::Route;

/// A connection to the kernel; clones share it. It belongs to the namespace of the thread that
/// made it.
#[derive(Debug, Clone)]
pub struct Netlink {
    pub(super) handle: Handle,
    /// The kernel lists one thing at a time per connection, and refuses a second.
    pub(super) listing: Arc<tokio::sync::Mutex<()>>,
}

/// A device as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its link-layer address.
    pub mac: Mac,
    /// The largest packet it takes.
    pub mtu: u32,
    /// It is switched on.
    pub up: bool,
    /// It does not resolve neighbours.
    pub noarp: bool,
    /// The number of the other end of a pair, or of the device below.
    pub peer: Option<u32>,
    /// It is a tunnel that takes its key from each packet.
    pub external_vxlan_port: Option<u16>,
}

/// One end of a new pair of devices.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its link-layer address.
    pub mac: Mac,
    /// The namespace it is to live in; `None` is that of the connection.
    pub netns: Option<BorrowedFd<'a>>,
}

impl Netlink {
    /// Connects to the kernel, for the namespace of the calling thread.
    pub fn connect() -> Result<Self, Error> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(|cause| {
            Error::Netlink { operation: "open", object: "netlink socket".to_owned(), cause }
        })?;
        tokio::spawn(connection);
        Ok(Self { handle, listing: Arc::default() })
    }

    /// The device of this name, if there is one.
    pub async fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        let request = self.handle.link().get().match_name(name.to_owned());
        match request.execute().try_next().await {
            Ok(message) => Ok(message.as_ref().map(describe)),
            Err(error) => match Error::netlink("find device", name, &error) {
                error if error.is_absent() => Ok(None),
                error => Err(error),
            },
        }
    }

    /// The device of this name.
    pub async fn need_link(&self, name: &str) -> Result<Link, Error> {
        self.link(name).await?.ok_or_else(|| Error::NoDevice(name.to_owned()))
    }

    /// Every device.
    pub async fn links(&self) -> Result<Vec<Link>, Error> {
        let _listing = self.listing.lock().await;
        let links = self.handle.link().get().execute();
        links
            .map_ok(|message| describe(&message))
            .try_collect()
            .await
            .map_err(|error| Error::netlink("list", "devices", &error))
    }

    /// Makes a pair of devices, each in its namespace from the start.
    pub async fn add_veth(&self, near: End<'_>, far: End<'_>, mtu: u32) -> Result<(), Error> {
        let mut peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(far.name)
            .address(far.mac.0.to_vec())
            .mtu(mtu);
        if let Some(netns) = far.netns {
            peer = peer.setns_by_fd(netns.as_raw_fd());
        }
        let message = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(near.name)
            .address(near.mac.0.to_vec())
            .mtu(mtu)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())))
            .build();
        let made = self.handle.link().add(message).execute().await;
        made.map_err(|error| {
            Error::netlink("create device", format!("{} (pair of {})", near.name, far.name), &error)
        })
    }

    /// Makes a VXLAN device that takes the tunnel's ends and key from each packet.
    pub async fn add_vxlan(&self, name: &str, port: u16, mtu: u32) -> Result<(), Error> {
        let message = LinkMessageBuilder::<LinkVxlan>::new(name)
            .collect_metadata(true)
            .port(port)
            .udp_zero_csum6_rx(true)
            .mtu(mtu)
            .address(Mac::random().0.to_vec())
            .build();
        let made = self.handle.link().add(message).execute().await;
        made.map_err(|error| Error::netlink("create device", name, &error))
    }

    /// Removes a device; one that is not there is fine.
    pub async fn remove_link(&self, name: &str) -> Result<(), Error> {
        let Some(link) = self.link(name).await? else { return Ok(()) };
        match self.handle.link().del(link.index).execute().await {
            Ok(()) => Ok(()),
            Err(error) => match Error::netlink("remove device", name, &error) {
                error if error.is_absent() => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Switches a device on, with this MTU and with or without resolving neighbours.
    pub async fn set_up(&self, link: &Link, mtu: u32, arp: bool) -> Result<(), Error> {
        if link.up && link.mtu == mtu && link.noarp != arp {
            return Ok(());
        }
        let message = LinkMessageBuilder::<LinkUnspec>::new()
            .index(link.index)
            .mtu(mtu)
            .arp(arp)
            .up()
            .build();
        let set = self.handle.link().set(message).execute().await;
        set.map_err(|error| Error::netlink("switch on device", &link.name, &error))
    }

    /// The addresses of a device, without those that IPv6 gives it by itself.
    pub async fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, Error> {
        let _listing = self.listing.lock().await;
        let messages = self.handle.address().get().set_link_index_filter(link.index).execute();
        let addresses = messages.try_filter_map(|message| {
            let length = message.header.prefix_len;
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            let own = address.filter(|address| !is_link_local(*address));
            std::future::ready(Ok(own.and_then(|address| IpNet::new(address, length).ok())))
        });
        addresses
            .try_collect()
            .await
            .map_err(|error| Error::netlink("list addresses of", &link.name, &error))
    }

    /// Gives a device an address that is usable at once, without asking the link whether it is free.
    pub async fn add_address(
        &self,
        link: &Link,
        address: IpNet,
        scope: AddressScope,
    ) -> Result<(), Error> {
        let mut request =
            self.handle.address().add(link.index, address.addr(), address.prefix_len()).replace();
        let message = request.message_mut();
        message.header.scope = scope;
        if address.addr().is_ipv6() {
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let added = request.execute().await;
        added.map_err(|error| {
            Error::netlink("add address", format!("{address} to {}", link.name), &error)
        })
    }

    /// Takes an address off a device.
    pub async fn remove_address(&self, link: &Link, address: IpNet) -> Result<(), Error> {
        let request = self.handle.address().add(link.index, address.addr(), address.prefix_len());
        let message = { request }.message_mut().clone();
        let removed = self.handle.address().del(message).execute().await;
        removed.map_err(|error| {
            Error::netlink("remove address", format!("{address} of {}", link.name), &error)
        })
    }

    /// Every address by which this node can be reached, of whatever device.
    pub async fn own_addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let _listing = self.listing.lock().await;
        let messages = self.handle.address().get().execute();
        let addresses = messages.try_filter_map(|message| {
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) | AddressAttribute::Address(address) => {
                    Some(*address)
                }
                _ => None,
            });
            let own = address.filter(|address| !is_link_local(*address) && !address.is_loopback());
            std::future::ready(Ok(own))
        });
        addresses.try_collect().await.map_err(|error| Error::netlink("list", "addresses", &error))
    }

    /// The device that has this address.
    pub async fn link_with(&self, address: IpAddr) -> Result<Option<Link>, Error> {
        let listing = self.listing.lock().await;
        let messages = self.handle.address().get().set_address_filter(address).execute();
        let messages: Vec<_> = messages
            .try_collect()
            .await
            .map_err(|error| Error::netlink("find address", address.to_string(), &error))?;
        drop(listing);
        let Some(index) = messages.first().map(|message| message.header.index) else {
            return Ok(None);
        };
        Ok(self.links().await?.into_iter().find(|link| link.index == index))
    }

    /// Makes `mac` the neighbour at `address`, for good.
    pub async fn set_neighbour(&self, link: &Link, address: IpAddr, mac: Mac) -> Result<(), Error> {
        let request =
            self.handle.neighbours().add(link.index, address).link_layer_address(&mac.0).replace();
        let set = request.execute().await;
        set.map_err(|error| {
            Error::netlink("add neighbour", format!("{address} at {mac} on {}", link.name), &error)
        })
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The family of an address, as netlink says it.
pub(super) fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn describe(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: Mac::default(),
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        noarp: flags.contains(LinkFlags::Noarp),
        peer: None,
        external_vxlan_port: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(peer) => link.peer = Some(*peer),
            LinkAttribute::Address(bytes) => {
                if let Ok(bytes) = bytes.as_slice().try_into() {
                    link.mac = Mac(bytes);
                }
            }
            LinkAttribute::LinkInfo(infos) => link.external_vxlan_port = external_vxlan_port(infos),
            _ => {}
        }
    }
    link
}

fn external_vxlan_port(infos: &[LinkInfo]) -> Option<u16> {
    use netlink_packet_route::link::InfoVxlan;
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    })?;
    let external = data.iter().any(|item| matches!(item, InfoVxlan::CollectMetadata(true)));
    let port = data.iter().find_map(|item| match item {
        InfoVxlan::Port(port) => Some(*port),
        _ => None,
    });
    port.filter(|_| external)
}
