//! Pods' devices, in real network namespaces.

use std::net::IpAddr;

use super::{Attachment, attach, configure_node_end, detach, faults};
use crate::device::netns::Netns;
use crate::device::testing::{PodNetns, in_new_netns};
use crate::device::{Netlink, Sysctl, host};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn attachment() -> Attachment {
    Attachment {
        host_device: "lxc0123456789ab".into(),
        ifname: "eth0".into(),
        mtu: 1500,
        route_mtu: 1450,
        addresses: vec![ip("10.0.0.2"), ip("fd00::2")],
        routers: vec![ip("10.0.0.1"), ip("fd00::1")],
    }
}

#[test]
fn a_pod_is_connected_checked_and_disconnected() {
    in_new_netns(|| async {
        let (netlink, sysctl) = (Netlink::connect().unwrap(), Sysctl::new("/proc"));
        let pod = attachment();
        let config =
            host::Config { mtu: 1500, tunnel_port: Some(8472), routers: pod.routers.clone() };
        host::ensure(&netlink, &sysctl, &config).await.unwrap();
        let place = PodNetns::new();
        let netns = Netns::open(&place.path).unwrap();

        attach(&netlink, &sysctl, &netns, &pod).await.unwrap();
        let attached =
            attach(&netlink, &sysctl, &netns, &pod).await.expect("a left-over is replaced");
        let link = netlink.need_link(&pod.host_device).await.unwrap();
        assert_eq!((link.index, link.mac, link.mtu), (attached.ifindex, attached.node_mac, 1500));
        assert_eq!(faults(&netns, &pod).await.unwrap(), Vec::<String>::new());
        let setting = format!("/proc/sys/net/ipv6/conf/{}/accept_ra", pod.host_device);
        let accepts = std::fs::read_to_string(setting).unwrap();
        assert_eq!(accepts.trim(), "0", "the node learns no routes from a pod");
        let again = configure_node_end(&netlink, &sysctl, &pod, attached.mac).await;
        assert_eq!(again.unwrap(), attached.ifindex, "making right what is right changes nothing");

        let replied = reply_from_pod(&netns).await;
        assert!(replied, "the node answers the pod at the router's address, without ARP");

        let mut wrong = pod.clone();
        wrong.addresses.push(ip("10.0.0.9"));
        assert_eq!(faults(&netns, &wrong).await.unwrap(), ["device eth0 lacks address 10.0.0.9"]);

        detach(&netlink, &pod.host_device).await.unwrap();
        detach(&netlink, &pod.host_device).await.expect("gone already is fine");
        assert_eq!(faults(&netns, &pod).await.unwrap(), ["device eth0 is missing"]);
        let routes = netlink.routes().await.unwrap();
        assert!(!routes.iter().any(|route| route.destination.addr() == ip("10.0.0.2")));
    });
}

/// A TCP connection to a closed port is refused by whoever has the address.
async fn reply_from_pod(netns: &Netns) -> bool {
    netns
        .run(|_| async {
            let mut refused = true;
            for router in ["10.0.0.1:9", "[fd00::1]:9"] {
                let address: std::net::SocketAddr = router.parse().unwrap();
                let limit = std::time::Duration::from_secs(5);
                let tried = std::net::TcpStream::connect_timeout(&address, limit);
                refused &=
                    tried.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
            }
            Ok(refused)
        })
        .await
        .unwrap()
}

#[test]
fn the_nodes_own_namespace_is_no_pods() {
    in_new_netns(|| async {
        let error = Netns::open("/proc/thread-self/ns/net".as_ref()).unwrap_err();
        assert!(error.to_string().contains("the node's own"), "{error}");
        let error = Netns::open("/no/such/netns".as_ref()).unwrap_err();
        assert!(error.is_absent() && error.to_string().contains("/no/such/netns"), "{error}");
    });
}
