//! How much goes through, and how long a program takes per packet: to look at, not to pass.

use crate::cluster::{Cluster, Pod};

/// Runs iperf3 between two pods and gives what it says of the receiver.
fn stream(from: &Pod, to: &Pod, v6: bool) -> String {
    let server = to.ip(v6);
    to.netns.command(&format!("iperf3 -s -1 -D -B {server}"));
    let mut report = (false, String::new());
    // The server says that it started before it listens.
    for _ in 0..50 {
        report = from.netns.try_command(&format!("iperf3 -c {server} -t 5 -f g"));
        if report.0 {
            break;
        }
    }
    let line = report.1.lines().find(|line| line.contains("receiver")).map(str::trim);
    line.unwrap_or(&report.1).to_owned()
}

#[test]
#[ignore = "a measurement: cargo test -p cilia-loader throughput -- --ignored --nocapture"]
fn throughput() {
    let cluster = Cluster::new();
    let [one, two] = &cluster.nodes;
    let (a, near, far) =
        (cluster.pod(0, 10, 300), cluster.pod(0, 11, 301), cluster.pod(1, 12, 302));
    for (node, pod) in [(one, &a), (one, &near), (two, &far)] {
        node.allow_all(pod);
    }
    std::fs::write("/proc/sys/kernel/bpf_stats_enabled", "1").unwrap();
    for v6 in [false, true] {
        println!("one node, v6 {v6}: {}", stream(&a, &near, v6));
        println!("across,   v6 {v6}: {}", stream(&a, &far, v6));
    }
    println!("{}", one.netns.command("bpftool prog show"));
    std::fs::write("/proc/sys/kernel/bpf_stats_enabled", "0").unwrap();
    // The same devices without programs.
    for pod in [&a, &near] {
        one.datapath.detach_endpoint(&pod.device).unwrap();
    }
    println!("no programs: {}", stream(&a, &near, false));
}
