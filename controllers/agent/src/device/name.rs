//! Names of devices, and link-layer addresses.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// The device with the router's addresses, through which the node sends to remote pods.
pub const HOST: &str = "cilium_host";
/// The other end of [`HOST`].
pub const NET: &str = "cilium_net";
/// The tunnel.
pub const VXLAN: &str = "cilium_vxlan";
/// What the node's ends of pods' devices start with.
pub const POD_PREFIX: &str = "lxc";

/// The node's end of a pod's device: `lxc` and 12 hex digits of the attachment's hash.
pub fn pod_device(container_id: &str, ifname: &str) -> String {
    use fmt::Write as _;
    let hash = Sha256::digest(format!("{container_id}:{ifname}"));
    hash[..6].iter().fold(POD_PREFIX.to_owned(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// Whether a device of this name was made by [`pod_device`].
pub fn is_pod_device(name: &str) -> bool {
    name.strip_prefix(POD_PREFIX)
        .is_some_and(|rest| rest.len() == 12 && rest.chars().all(|c| c.is_ascii_hexdigit()))
}

/// A link-layer address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// A random address of nobody's: locally administered, unicast.
    pub fn random() -> Self {
        let mut bytes: [u8; 6] = rand::random();
        bytes[0] = bytes[0] & 0xfc | 0x02;
        Self(bytes)
    }

    /// Reads six hex numbers with colons.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Mac, is_pod_device, pod_device};

    #[test]
    fn devices_are_named_by_the_attachments_hash() {
        // printf 'abc:eth0' | sha256sum
        assert_eq!(pod_device("abc", "eth0"), "lxcb133159de544");
        assert!(is_pod_device("lxc0123456789ab"));
        for name in ["lxc_health", "lxc0123456789a", "lxc0123456789xy", "eth0", "cilium_host"] {
            assert!(!is_pod_device(name), "{name}");
        }
    }

    #[test]
    fn addresses_are_read_and_written() {
        let mac = Mac([2, 0xab, 0, 1, 2, 0xff]);
        assert_eq!(Mac::parse(&mac.to_string()), Some(mac));
        for text in ["", "2:3", "02:ab:00:01:02:fg", "02:ab:00:01:02:ff:00"] {
            assert_eq!(Mac::parse(text), None, "{text}");
        }
        assert_eq!(Mac::random().0[0] & 3, 2);
    }
}
