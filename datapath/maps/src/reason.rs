//! Drop reasons by Cilium's numbers, and what operators read for them.

/// Small numbers of `cilium_metrics` that are no drops.
pub const FORWARDED: u8 = 0;
/// A fragment was seen.
pub const FRAGMENT: u8 = 9;
/// A fragment's ports could not be remembered.
pub const FRAGMENT_UPDATE_FAILED: u8 = 10;

macro_rules! reasons {
    ($($name:ident = $number:literal, $text:literal;)+) => {
        $(#[doc = concat!("`", $text, "`")] pub const $name: u8 = $number;)+

        /// The text for a drop reason; `None` for a number that means nothing.
        pub const fn text(reason: u8) -> Option<&'static str> {
            match reason {
                $($number => Some($text),)+
                _ => None,
            }
        }
    };
}

reasons! {
    INVALID_SIP = 132, "Invalid source ip";
    POLICY = 133, "Policy denied";
    INVALID = 134, "Invalid packet";
    CT_INVALID_HDR = 135, "CT: Truncated or invalid header";
    FRAG_NEEDED = 136, "Fragmentation needed";
    CT_UNKNOWN_PROTO = 137, "CT: Unknown L4 protocol";
    UNKNOWN_L3 = 139, "Unsupported L3 protocol";
    MISSED_TAIL_CALL = 140, "Missed tail call";
    WRITE_ERROR = 141, "Error writing to packet";
    UNKNOWN_L4 = 142, "Unknown L4 protocol";
    NO_TUNNEL_KEY = 147, "Error retrieving tunnel key";
    UNKNOWN_TARGET = 150, "Invalid identity";
    UNROUTABLE = 151, "Stale or unroutable IP";
    CSUM_L3 = 153, "Error while correcting L3 checksum";
    CSUM_L4 = 154, "Error while correcting L4 checksum";
    CT_CREATE_FAILED = 155, "CT: Map insertion failed";
    INVALID_EXTHDR = 156, "Invalid IPv6 extension header";
    FRAG_NOSUPPORT = 157, "IP fragmentation not supported";
    NO_SERVICE = 158, "Service backend not found";
    UNSUPP_SERVICE_PROTO = 159, "Unsupported protocol for service";
    NO_TUNNEL_ENDPOINT = 160, "No tunnel/encapsulation endpoint (datapath BUG!)";
    HOST_UNREACHABLE = 164, "Host datapath not ready";
    NO_CONFIG = 165, "No node configuration";
    UNSUPPORTED_L2 = 166, "Unsupported L2 protocol";
    NAT_NO_MAPPING = 167, "No mapping for NAT masquerade";
    NO_FIB = 169, "FIB lookup failed";
    ENCAP_PROHIBITED = 170, "Encapsulation traffic is prohibited";
    INVALID_IDENTITY = 171, "Invalid identity";
    UNKNOWN_SENDER = 172, "Unknown sender";
    FRAG_NOT_FOUND = 175, "First logical datagram fragment not found";
    FORBIDDEN_ICMP6 = 176, "Forbidden ICMPv6 message";
    NOT_IN_SRC_RANGE = 177, "Denied by LB src range check";
    POLICY_DENY = 181, "Policy denied by denylist";
    POLICY_AUTH_REQUIRED = 189, "Authentication required";
    UNENCRYPTED_TRAFFIC = 195, "Traffic is unencrypted";
    TTL_EXCEEDED = 196, "TTL exceeded";
    EP_NOT_READY = 203, "Endpoint policy program not available";
}
