//! The clock of a process jumps, by days and back, while it holds leases, locks and identities: nothing comes of it.
//!
//! The clock is that of one process only: a library that is loaded before all others adds seconds to what the system
//! says of the time. `CILIA_CLOCK_JUMPS` has it jump more often.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cilia_identity::Space;
use cilia_kvstore::gc::{self, Unused};
use cilia_kvstore::mesh::{Mesh, Settings as MeshSettings};
use cilia_kvstore::testing::admin::remaining;
use cilia_kvstore::testing::{Etcd, options};
use cilia_kvstore::value::{Capabilities, ClusterConfig, encode, now};
use cilia_kvstore::{Client, KeyValue, Settings, Watchdog, keys};
use cilia_runtime::lanes::Rate;
use cilia_runtime::testing::{Process, eventually_for};
use k8s_openapi::jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::freezing::{Agent, LOCK, get, ip};
use crate::number;

const LONG: Duration = Duration::from_mins(1);
const DAY: i64 = 24 * 60 * 60;
/// Where the process says how it finds the kvstore, and the other cluster.
const REPORT: &str = "cilium/report";
const TTL: Duration = Duration::from_secs(15);
/// Adds the first eight bytes of a file, as seconds, to the wall clock.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long *ahead;

__attribute__((constructor)) static void begin(void) {
    void *found = mmap(NULL, 8, PROT_READ, MAP_SHARED, open(getenv("CILIA_CLOCK"), O_RDONLY), 0);
    ahead = found == MAP_FAILED ? NULL : found;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && ahead && clock == CLOCK_REALTIME)
        time->tv_sec += *ahead;
    return failed;
}
"#;

/// The process of [`a_clock_that_jumps_costs_nothing`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test"]
async fn a_process_whose_clock_jumps() {
    let config = std::env::var("CILIA_ETCD_CONFIG").expect("where etcd is");
    let options = options(Path::new(&config));
    let settings = Settings { lease_ttl: TTL, lock_ttl: TTL, ..Settings::new(options) };
    let client = Client::new(&settings, None).expect("a client");
    let agent = Agent::start(&client, "10.0.0.1");
    let _lock = client.lock(LOCK).await.expect("lock");
    agent.allocate("steady", None).await;
    agent.mirror.set(keys::node("east", "n1"), b"n1".to_vec());
    agent.mirror.set(ip(1), b"n1".to_vec());
    agent.mirror.settled().await;
    let stop = CancellationToken::new();
    let watchdog = Watchdog::new(client.clone(), 2);
    let health = watchdog.health();
    let (mesh, mut news) = Mesh::new(MeshSettings {
        directory: Path::new(&config).parent().expect("a folder").join("mesh"),
        cluster: "east".into(),
        cluster_id: 1,
        max_connected: 255,
        cache_ttl: Duration::from_mins(10),
        network: true,
        qps: 100.0,
        grace: Duration::from_millis(100),
    });
    let remotes = mesh.remotes();
    tokio::spawn({
        let stop = stop.clone();
        async move {
            let heard = async { while news.recv().await.is_some() {} };
            tokio::join!(watchdog.run(stop.clone()), mesh.run(stop), heard)
        }
    });
    let (space, rate) = (Space::new(0, 255).expect("allowed"), Rate::new(1000.0, 1000.0));
    let mut unused = Unused::new();
    let mut beat = tokio::time::interval(Duration::from_millis(50));
    loop {
        beat.tick().await;
        let report = gc::identities(&client, space, &unused, &rate).await.expect("collect");
        unused = report.unused;
        let west = remotes.borrow().get("west").map(|west| (west.ready, west.failures));
        let report = format!("{} {west:?}", health.borrow().ok);
        client.put_if_different(REPORT, report.as_bytes(), true).await.expect("put");
        client.put_if_different(keys::HEARTBEAT, &now(), true).await.expect("put");
    }
}

/// The library, built in this folder.
fn shim(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(&source, SHIM).expect("write a file");
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]);
    let output = compiler.output().expect("run cc, which links Rust programs, too");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// By how many seconds the process's clock is ahead, as its last sign of life has it.
async fn ahead(client: &Client) -> i64 {
    let Some(kv) = get(client, keys::HEARTBEAT).await else { return 0 };
    let text = String::from_utf8(kv.value).expect("text");
    let told: Timestamp = text.parse().expect("a time");
    told.as_second() - Timestamp::now().as_second()
}

/// All that the process owns: the last writes, and the leases.
async fn owned(client: &Client) -> BTreeMap<String, (i64, i64)> {
    let (all, _) = client.list("cilium/state/").await.expect("list");
    let one = |kv: &KeyValue| {
        (String::from_utf8_lossy(&kv.key).into_owned(), (kv.mod_revision, kv.lease))
    };
    all.iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_costs_nothing() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let capabilities = Capabilities { max_connected_clusters: 255, ..Capabilities::default() };
    let west = encode(&ClusterConfig { id: 2, capabilities });
    client.put(&keys::cluster_config("west"), &west, false).await.expect("put");
    let mesh = etcd.folder().join("mesh");
    std::fs::create_dir(&mesh).expect("make a folder");
    std::fs::copy(etcd.config("root"), mesh.join("west")).expect("copy a file");
    let offset = etcd.folder().join("offset");
    std::fs::write(&offset, 0i64.to_ne_bytes()).expect("write a file");
    let clock = std::fs::File::options().write(true).open(&offset).expect("open a file");
    let arguments = [
        format!("CILIA_ETCD_CONFIG={}", etcd.config("root").display()),
        format!("CILIA_CLOCK={}", offset.display()),
        format!("LD_PRELOAD={}", shim(etcd.folder()).display()),
        std::env::current_exe().expect("this program").display().to_string(),
        "--exact".into(),
        "clock::a_process_whose_clock_jumps".into(),
        "--ignored".into(),
        "--nocapture".into(),
    ];
    let log = etcd.folder().join("client.log");
    let process = Process::start(Path::new("env"), &arguments, &log);
    let well = || async {
        match get(&client, REPORT).await {
            Some(kv) if kv.value == b"true Some((true, 0))" => Ok(kv.lease),
            other => Err(format!("{other:?}: {}", process.output())),
        }
    };
    let lease = eventually_for(LONG, well).await;
    let before = owned(&client).await;
    let kinds = [keys::NODES, keys::IPS, &keys::identity_ids(), LOCK];
    for kind in kinds {
        assert!(before.keys().any(|key| key.starts_with(kind)), "{kind}: {before:?}");
    }
    let jumps = [DAY, -2 * DAY, 3650 * DAY, 0];
    for jump in jumps.into_iter().cycle().take(number("CILIA_CLOCK_JUMPS", 2)) {
        clock.write_all_at(&jump.to_ne_bytes(), 0).expect("write a file");
        let jumped = || async {
            let is = ahead(&client).await;
            if (is - jump).abs() < DAY / 2 { Ok(()) } else { Err((is, process.output())) }
        };
        eventually_for(LONG, jumped).await;
        // Its leases are renewed as before.
        let lowest = Cell::new(i64::MAX);
        let renewed = || async {
            let remaining = remaining(&client, lease).await;
            assert!(remaining > 0, "the lease is lost: {}", process.output());
            if remaining > lowest.replace(remaining) { Ok(()) } else { Err(remaining) }
        };
        eventually_for(LONG, renewed).await;
        well().await.expect("the kvstore, and the other cluster, are well");
        assert_eq!(owned(&client).await, before, "{jump} s: {}", process.output());
    }
}

/// Where this code asks for the time of day: for what people read, and for certificates.
const ASKED: [(&str, usize); 4] = [
    ("kvstore/src/members.rs", 1),
    ("kvstore/src/mesh/cluster.rs", 1),
    ("kvstore/src/value.rs", 1),
    ("operator/src/kvstore/policy_status.rs", 1),
];

fn count(path: &Path, found: &mut BTreeMap<String, usize>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("read a folder") {
            count(&entry.expect("read a folder").path(), found);
        }
        return;
    }
    let text = std::fs::read_to_string(path).expect("read a file");
    let asks = ["SystemTime", "Timestamp::now", "Utc::now", "Zoned::now"];
    let times: usize = asks.iter().map(|ask| text.matches(ask).count()).sum();
    if times > 0 {
        let name = path.to_string_lossy();
        found.insert(name.split("controllers/").last().unwrap_or_default().to_owned(), times);
    }
}

#[test]
fn nobody_asks_the_wall_clock() {
    let controllers = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder");
    let mut found = BTreeMap::new();
    for place in [
        "kvstore/src",
        "agent/src/kvstore",
        "agent/src/kvstore.rs",
        "agent/src/clustermesh.rs",
        "operator/src/kvstore",
        "operator/src/kvstore.rs",
        "operator/src/clustermesh.rs",
    ] {
        count(&controllers.join(place), &mut found);
    }
    let asked: Vec<(&str, usize)> =
        found.iter().map(|(name, times)| (name.as_str(), *times)).collect();
    assert_eq!(asked, ASKED, "a clock that jumps must not matter: ask Instant, or etcd");
}
