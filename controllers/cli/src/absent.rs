//! Decides what is said of commands that Cilium's tool has and that mean nothing here: why, and what to use
//! instead.

use clap::Command;

/// Maps have one owner, who would put things right again at once.
const OWNED: &str = "the agent owns this map and would undo the change at once; change what it is made from: \
                     policies, pods, nodes";
const NO_ENVOY: &str = "there is no Envoy: policies end at ports";
const NO_ENCRYPTION: &str = "packets between nodes are not encrypted (cilia encrypt status), so there are no keys and states";

/// Commands, and why they aren't there. A command stands for all that begin with it.
const ABSENT: &[(&[&str], &str)] = &[
    (&["bpf", "auth"], "identities are not authenticated mutually, so there is no map of it"),
    (&["bpf", "bandwidth"], "pods' bandwidth is not limited, so there is no map of it"),
    (&["bpf", "egress"], "there is no egress gateway: pods leave by their own nodes"),
    (&["bpf", "endpoint", "delete"], OWNED),
    (&["bpf", "ipcache", "delete"], OWNED),
    (&["bpf", "ipcache", "update"], OWNED),
    (
        &["bpf", "ipmasq"],
        "nftables masquerades, by the devices that packets leave on: nft list ruleset on the node",
    ),
    (
        &["bpf", "lb", "maglev"],
        "each new connection gets a backend by a random number, and conntrack keeps it there: there is no table \
         to show; see cilia bpf lb list, cilia bpf ct list global",
    ),
    (&["bpf", "multicast"], "multicast is not forwarded between pods"),
    (
        &["bpf", "nat"],
        "nftables masquerades and conntrack of the node's kernel keeps it: conntrack -L --src-nat on the node; \
         what services translate is in cilia bpf ct list global",
    ),
    (&["bpf", "nodeid"], NO_ENCRYPTION),
    (&["bpf", "policy", "add"], OWNED),
    (&["bpf", "policy", "delete"], OWNED),
    (&["bpf", "recorder"], "packets are not recorded: cilia monitor shows what becomes of them"),
    (&["bpf", "sha"], "programs are not compiled per endpoint: all endpoints run the same ones"),
    (&["bpf", "socknat"], "services are translated in the packet's path, not at sockets"),
    (&["bpf", "srv6"], "there is no SRv6"),
    (&["bpf", "vtep"], "there are no tunnels to others than nodes"),
    (
        &["cgroups"],
        "services are translated in the packet's path, not at sockets: no cgroup is looked at",
    ),
    (&["encrypt", "dump-xfrm"], NO_ENCRYPTION),
    (&["encrypt", "flush"], NO_ENCRYPTION),
    (&["envoy"], NO_ENVOY),
    (&["loadinfo"], "look at /proc/loadavg and /proc/meminfo on the node"),
    (
        &["policy", "delete"],
        "policies are Kubernetes objects: kubectl delete; cilia policy diff says beforehand what changes",
    ),
    (
        &["policy", "import"],
        "policies are Kubernetes objects: cilia policy validate FILE, then kubectl apply",
    ),
    (
        &["post-uninstall-cleanup"],
        "the chart does it at the start of an agent: --set cleanState=true or cleanBpfState=true",
    ),
    (
        &["prefilter"],
        "no program runs at XDP: deny ranges with a CiliumClusterwideNetworkPolicy with nodeSelector \
         (hostFirewall.enabled=true)",
    ),
    (
        &["preflight", "migrate-identity"],
        "set identity-allocation-mode to doublewrite-readkvstore, then doublewrite-readcrd, then crd",
    ),
    (
        &["preflight", "validate-cnp"],
        "kubectl get cnp,ccnp -A -o yaml | cilia policy validate - checks all of a cluster",
    ),
    (&["preflight"], "names are not resolved for policies"),
    (
        &["shell"],
        "cilia status --verbose, cilia metrics list and cilia debuginfo tell what the agent knows",
    ),
    (
        &["statedb"],
        "the agent keeps no such tables: cilia node, ip, service, identity and map list show what it keeps",
    ),
];

/// What is said of a command line that names none of the commands that there are; nothing if it is no
/// command of Cilium's either.
pub(crate) fn why(words: &[String], command: &Command) -> Option<String> {
    let words = named(words, command);
    let begins = |path: &[&str]| words.len() >= path.len() && path.iter().eq(&words[..path.len()]);
    let (path, why) = ABSENT.iter().find(|(path, _)| begins(path))?;
    Some(format!("cilia {}: not part of Cilia: {why}", path.join(" ")))
}

/// The words that are neither options nor values of options that all commands have.
fn named<'a>(words: &'a [String], command: &Command) -> Vec<&'a str> {
    let takes_value = |word: &str| {
        command.get_arguments().filter(|option| option.get_action().takes_values()).any(|option| {
            let long = word.strip_prefix("--").is_some_and(|name| option.get_long() == Some(name));
            let mut letters = word.chars().skip(1);
            let short = letters.next().is_some_and(|letter| option.get_short() == Some(letter));
            long || (short && letters.next().is_none())
        })
    };
    let (mut found, mut is_value) = (Vec::new(), false);
    for word in words {
        if std::mem::take(&mut is_value) {
            continue;
        }
        if word.starts_with('-') {
            is_value = takes_value(word);
        } else {
            found.push(word.as_str());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::{ABSENT, why};
    use crate::Arguments;

    fn said(line: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        why(&words, &Arguments::command())
    }

    #[test]
    fn what_is_not_there_says_why() {
        for line in [
            "bpf nat list",
            "-o json bpf nat flush --all",
            "bpf -o json nat list",
            "--node n1 bpf nat",
            "--output=json bpf nat",
        ] {
            let text = said(line).expect(line);
            assert!(text.starts_with("cilia bpf nat: not part of Cilia: nftables"), "{text}");
        }
        assert!(said("preflight validate-cnp").is_some_and(|text| text.contains("cilia policy")));
        assert!(said("preflight fqdn-poller").is_some_and(|text| text.contains("names")));
        assert_eq!(said("bpf moon list"), None);
        assert_eq!(said("nat"), None);
        assert_eq!(said(""), None);
    }

    #[test]
    fn what_is_there_is_not_said_to_be_absent() {
        for (path, _) in ABSENT {
            let words = ["cilia"].iter().chain(*path).copied();
            assert!(Arguments::try_parse_from(words).is_err(), "{path:?}");
            let command = Arguments::command();
            let found = path.iter().try_fold(&command, |known, word| known.find_subcommand(word));
            assert!(found.is_none(), "{path:?} is a command");
        }
    }
}
