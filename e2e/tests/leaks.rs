//! Nothing of a cluster is left, however it ended.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cilia_e2e::Layout;
use cilia_e2e::wait::{Look, until};

const LIMIT: Duration = Duration::from_mins(1);

/// Everything on the machine that bears the cluster's names.
fn traces(layout: &Layout) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if Path::new("/sys/class/net").join(layout.host_device()).exists() {
        found.insert(format!("device {}", layout.host_device()));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells");
    let state = layout.state().display().to_string();
    let ours = |line: &&str| line.contains(&format!("{state}/"));
    found.extend(mounts.lines().filter(ours).map(|line| format!("mount {line}")));
    if layout.state().exists() {
        found.insert(format!("folder {state}"));
    }
    for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        if hierarchy.path().join(layout.cgroup()).exists() {
            found.insert(format!("cgroup below {}", hierarchy.path().display()));
        }
    }
    found.extend(processes(layout));
    found
}

/// Processes in a cgroup of the cluster, or that know its folder.
fn processes(layout: &Layout) -> Vec<String> {
    let (cgroup, state) = (format!("/{}/", layout.cgroup()), layout.state().display().to_string());
    let entries = fs::read_dir("/proc").expect("there is /proc").flatten();
    let of = |entry: fs::DirEntry| {
        let groups = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let words = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        // One that has ended has no words; its parent will hear of it in time.
        let ours = !words.is_empty() && (groups.contains(&cgroup) || words.contains(&state));
        ours.then(|| format!("process {} {words:?}", entry.file_name().display()))
    };
    entries.filter_map(of).collect()
}

fn start(name: &str, words: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_cilia-cluster"))
        .args(["--name", name])
        .args(words)
        .stdout(Stdio::null())
        .spawn()
        .expect("the command starts")
}

fn run(name: &str, words: &[&str]) {
    let status = start(name, words).wait().expect("it ends");
    assert!(status.success(), "cilia-cluster {words:?}: {status}");
}

async fn half_built(layout: &Layout) {
    let what = "a node's namespace";
    let found = until(what, LIMIT, || async {
        let built = traces(layout).iter().any(|trace| trace.contains("n1-net"));
        if built { Look::Done(()) } else { Look::Not("not there".to_owned()) }
    });
    found.await.expect("the cluster is being built");
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(sent.expect("kill runs").success());
}

#[tokio::test]
async fn down_interrupt_and_kill_leave_nothing() {
    let layout = Layout::new("leaks-0").expect("a good name");
    run("leaks-0", &["down"]);
    assert_eq!(traces(&layout), BTreeSet::new(), "before");

    run("leaks-0", &["up", "--nodes", "1"]);
    run("leaks-0", &["node", "1", "--", "test", "-S", "/run/containerd/containerd.sock"]);
    run("leaks-0", &["kubectl", "--", "get", "node", "n1"]);
    assert_ne!(traces(&layout), BTreeSet::new(), "the test sees a cluster");
    run("leaks-0", &["down"]);
    assert_eq!(traces(&layout), BTreeSet::new(), "after down");

    let mut up = start("leaks-0", &["up", "--nodes", "1"]);
    half_built(&layout).await;
    signal(&up, "INT");
    assert!(!up.wait().expect("it ends").success());
    assert_eq!(traces(&layout), BTreeSet::new(), "after Ctrl-C");

    let mut up = start("leaks-0", &["up", "--nodes", "1"]);
    half_built(&layout).await;
    signal(&up, "KILL");
    up.wait().expect("it ends");
    run("leaks-0", &["up", "--nodes", "1"]);
    run("leaks-0", &["down"]);
    assert_eq!(traces(&layout), BTreeSet::new(), "after a kill and the next up");
}

#[test]
fn clusters_stand_side_by_side() {
    let layouts = ["leaks-a", "leaks-b"].map(|name| Layout::new(name).expect("a good name"));
    for layout in &layouts {
        run(layout.name(), &["up", "--nodes", "1", "--no-dns"]);
    }
    run("leaks-a", &["down"]);
    assert_eq!(traces(&layouts[0]), BTreeSet::new());
    run("leaks-b", &["kubectl", "--", "get", "node", "n1"]);
    run("leaks-b", &["down"]);
    assert_eq!(traces(&layouts[1]), BTreeSet::new());
}
