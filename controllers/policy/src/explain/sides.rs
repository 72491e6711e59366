//! Reads the sides and the port of a question as people write them.

use cilia_crds::NumericIdentity;

use super::Party;
use crate::icmp;
use crate::l4::protocol;
use crate::repository::Repository;

/// The identity of an entity, with or without the label's source: `host`, `reserved:world`.
pub fn entity(text: &str) -> Option<NumericIdentity> {
    let name = text.strip_prefix("reserved:").unwrap_or(text);
    let known = NumericIdentity::RESERVED.iter().filter(|(id, _)| *id != NumericIdentity::UNKNOWN);
    known.into_iter().find(|(_, one)| *one == name).map(|(number, _)| *number)
}

/// The receiver's port by number, or by the name that the receiver gives it; the type of an ICMP
/// message by number or name. Or what is wrong with it.
pub fn port(repository: &Repository, to: &Party, proto: u8, text: &str) -> Result<u16, String> {
    let named = protocol::name(proto).map_or_else(|| proto.to_string(), str::to_owned);
    if matches!(proto, protocol::ICMP | protocol::ICMPV6) {
        return icmp::type_of(proto, text).map(u16::from).ok_or_else(|| {
            format!("{text:?} is not a type of {named}: use a number from 0 to 255 or a name such as EchoRequest")
        });
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| format!("port {text} is not between 0 and 65535"));
    }
    let name = (text.to_ascii_lowercase().into(), proto);
    if let Some(number) = to.ports.get(&name) {
        return Ok(*number);
    }
    let of_identity = to.identity.map(|identity| repository.names().of(identity, &name));
    match of_identity.unwrap_or_default().as_slice() {
        [one] => Ok(*one),
        [] => {
            let own: Vec<String> =
                to.ports.iter().map(|((name, _), number)| format!("{name} ({number})")).collect();
            let known = if own.is_empty() { "no port".to_owned() } else { own.join(", ") };
            Err(format!("the receiver has no {named} port of the name {text:?}: it names {known}"))
        }
        several => {
            let all: Vec<String> = several.iter().map(u16::to_string).collect();
            Err(format!(
                "{text:?} is the name of several ports of the receiver: ask for one of {}",
                all.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cilia_crds::NumericIdentity;

    use super::{entity, port};
    use crate::config::Config;
    use crate::explain::Party;
    use crate::l4::protocol::{ICMP, ICMPV6, TCP, UDP};
    use crate::names::ClusterPorts;
    use crate::repository::Repository;

    #[test]
    fn ports_are_as_the_receiver_names_them() {
        let mut repository = Repository::new(Config::default());
        let mut names = ClusterPorts::default();
        for (identity, number) in [(300, 80), (301, 8080), (301, 8081)] {
            names.insert(NumericIdentity(identity), ("http".into(), TCP), number);
        }
        repository.set_named_ports(Arc::new(names));
        let pod = Party { ports: [(("web".into(), TCP), 9000)].into(), ..Party::default() };
        let of = |identity| Party { identity: Some(NumericIdentity(identity)), ..Party::default() };
        for (to, proto, text, want) in [
            (&pod, TCP, "80", Ok(80)),
            (&pod, TCP, "web", Ok(9000)),
            (&pod, TCP, "WEB", Ok(9000)),
            (&pod, UDP, "web", Err("no UDP port of the name \"web\": it names web (9000)")),
            (&pod, TCP, "http", Err("no TCP port of the name \"http\"")),
            (&pod, TCP, "", Err("no TCP port of the name \"\"")),
            (&pod, TCP, "70000", Err("port 70000 is not between 0 and 65535")),
            (&of(300), TCP, "http", Ok(80)),
            (
                &of(301),
                TCP,
                "http",
                Err("several ports of the receiver: ask for one of 8080, 8081"),
            ),
            (&of(302), TCP, "http", Err("it names no port")),
            (&pod, ICMP, "8", Ok(8)),
            (&pod, ICMP, "EchoRequest", Ok(8)),
            (&pod, ICMPV6, "EchoRequest", Ok(128)),
            (&pod, ICMP, "300", Err("\"300\" is not a type of ICMP")),
        ] {
            match (port(&repository, to, proto, text), want) {
                (got @ Ok(_), want @ Ok(_)) => assert_eq!(got.ok(), want.ok(), "{text}"),
                (Err(fault), Err(want)) => assert!(fault.contains(want), "{text}: {fault}"),
                (got, want) => panic!("{text}: {got:?}, not {want:?}"),
            }
        }
    }

    #[test]
    fn entities_are_reserved_identities() {
        for (text, want) in [
            ("host", Some(1)),
            ("reserved:host", Some(1)),
            ("reserved:kube-apiserver", Some(7)),
            ("world", Some(2)),
            ("unknown", None),
            ("all", None),
            ("k8s:host", None),
        ] {
            assert_eq!(entity(text).map(|identity| identity.0), want, "{text}");
        }
    }
}
