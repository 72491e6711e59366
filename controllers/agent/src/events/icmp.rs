//! Names of ICMP's types and codes, as Cilium's monitor writes them.

/// `DestinationUnreachable(Port)`, `EchoRequest`; numbers for what has no name.
pub(super) fn name(v6: bool, kind: u16, code: u8) -> String {
    let Some((name, codes)) = (if v6 { six(kind) } else { four(kind) }) else {
        return format!("{kind}({code})");
    };
    match codes.get(usize::from(code)) {
        Some(code) => format!("{name}({code})"),
        None if code == 0 && codes.is_empty() => name.to_owned(),
        None => format!("{name}(Code: {code})"),
    }
}

fn four(kind: u16) -> Option<(&'static str, &'static [&'static str])> {
    Some(match kind {
        0 => ("EchoReply", &[]),
        3 => (
            "DestinationUnreachable",
            &[
                "Net",
                "Host",
                "Protocol",
                "Port",
                "FragmentationNeeded",
                "SourceRoutingFailed",
                "NetUnknown",
                "HostUnknown",
                "SourceIsolated",
                "NetAdminProhibited",
                "HostAdminProhibited",
                "NetTOS",
                "HostTOS",
                "CommAdminProhibited",
                "HostPrecedence",
                "PrecedenceCutoff",
            ],
        ),
        4 => ("SourceQuench", &[]),
        5 => ("Redirect", &["Net", "Host", "TOS+Net", "TOS+Host"]),
        8 => ("EchoRequest", &[]),
        9 => ("RouterAdvertisement", &[]),
        10 => ("RouterSolicitation", &[]),
        11 => ("TimeExceeded", &["TTLExceeded", "FragmentReassemblyTimeExceeded"]),
        12 => ("ParameterProblem", &["PointerIndicatesError", "MissingOption", "BadLength"]),
        13 => ("TimestampRequest", &[]),
        14 => ("TimestampReply", &[]),
        15 => ("InfoRequest", &[]),
        16 => ("InfoReply", &[]),
        17 => ("AddressMaskRequest", &[]),
        18 => ("AddressMaskReply", &[]),
        _ => return None,
    })
}

fn six(kind: u16) -> Option<(&'static str, &'static [&'static str])> {
    Some(match kind {
        1 => (
            "DestinationUnreachable",
            &[
                "NoRouteToDst",
                "AdminProhibited",
                "BeyondScopeOfSrc",
                "AddressUnreachable",
                "PortUnreachable",
                "SrcAddressFailedPolicy",
                "RejectRouteToDst",
            ],
        ),
        2 => ("PacketTooBig", &[]),
        3 => ("TimeExceeded", &["HopLimitExceeded", "FragmentReassemblyTimeExceeded"]),
        4 => (
            "ParameterProblem",
            &["ErroneousHeaderField", "UnrecognizedNextHeader", "UnrecognizedIPv6Option"],
        ),
        128 => ("EchoRequest", &[]),
        129 => ("EchoReply", &[]),
        133 => ("RouterSolicitation", &[]),
        134 => ("RouterAdvertisement", &[]),
        135 => ("NeighborSolicitation", &[]),
        136 => ("NeighborAdvertisement", &[]),
        137 => ("Redirect", &[]),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn names_and_numbers() {
        let cases = [
            (false, 8, 0, "EchoRequest"),
            (false, 8, 1, "EchoRequest(Code: 1)"),
            (false, 3, 3, "DestinationUnreachable(Port)"),
            (false, 3, 99, "DestinationUnreachable(Code: 99)"),
            (false, 40, 2, "40(2)"),
            (true, 1, 4, "DestinationUnreachable(PortUnreachable)"),
            (true, 128, 0, "EchoRequest"),
            (true, 200, 0, "200(0)"),
        ];
        for (v6, kind, code, want) in cases {
            assert_eq!(name(v6, kind, code), want);
        }
    }
}
