//! Decides what a machine must have to carry a cluster, and brings it where it may.

use std::env;
use std::fs;

use crate::Error;
use crate::command::{command, output};
use crate::progress::Progress;

/// Programs and the Debian packages they come in.
const PROGRAMS: &[(&str, &str)] = &[
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
    ("hostname", "hostname"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("ping", "iputils-ping"),
    ("tcpdump", "tcpdump"),
    ("busybox", "busybox-static"),
    ("strip", "binutils"),
];

/// Makes sure that the machine can carry a cluster.
pub(crate) async fn ensure(progress: &Progress) -> Result<(), Error> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::Missing {
            what: "the right to make namespaces".to_owned(),
            remedy: "run as root".to_owned(),
        });
    }
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _)| !on_path(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    let list = packages.join(" ");
    if !on_path("apt-get") {
        return Err(Error::Missing {
            what: missing.iter().map(|(program, _)| *program).collect::<Vec<_>>().join(", "),
            remedy: format!("install it (Debian's packages are: {list})"),
        });
    }
    progress.say(format!("installing {list}"));
    let mut words = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    words.extend(packages);
    let mut install = command("apt-get", &words);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    if output(&mut install).await.is_err() {
        output(&mut command("apt-get", ["update", "--quiet"])).await?;
        let mut again = command("apt-get", &words);
        output(again.env("DEBIAN_FRONTEND", "noninteractive")).await?;
    }
    Ok(())
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| fs::metadata(dir.join(program)).is_ok_and(|m| m.is_file()))
}
