//! An agent may be of another version, or ill: whatever it answers is shown or refused.

use std::fmt::Write as _;

use clap::Parser as _;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

use crate::output::captured;
use crate::{Arguments, run};

/// Members that answers have, and one that they don't.
const NAMES: &str = "id status state msg labels identity networking addressing ipv4 policy realized options \
    policy-enabled external-identifiers controllers name key value values entries maps cache path address backend \
    direction file line packets bytes reason expires flags security-relevant derived metadata source host-ip cidr \
    spec frontend-address backend-addresses port protocol selector identities users kubernetes cilium kvstore \
    cluster nodes ipam allocations proxy redirects identity-range hubble flows node-monitor daemonConfigurationMap \
    kvstoreConfiguration type time timestamp count action overallHealth connected nodes-added primary-address ip \
    revision rules cluster-mesh clusters odd";
const TEXTS: [&str; 10] = [
    "",
    "x",
    "-1",
    "65536",
    "10.0.0.1",
    "10.0.0.1/33",
    "fd00::1",
    "2026-13-45T00:00:00Z",
    "k8s:a=b",
    "\u{1b}[2J",
];
/// All that is asked of one agent.
const COMMANDS: [&str; 46] = [
    "status --verbose",
    "status --brief",
    "endpoint list",
    "endpoint get 1",
    "endpoint log 1",
    "endpoint health 1",
    "endpoint labels 1",
    "endpoint config 1",
    "identity list",
    "identity list --endpoints",
    "identity get 5",
    "identity advise",
    "ip list",
    "ip list -n -v",
    "ip get 10.0.0.1",
    "node list",
    "service list",
    "policy get",
    "policy selectors",
    "bpf ipcache list",
    "bpf ipcache get 10.0.0.1",
    "bpf ipcache match 10.0.0.0/8",
    "bpf policy get 1",
    "bpf policy list",
    "bpf ct list global -d",
    "bpf endpoint list",
    "bpf lb list",
    "bpf lb list --frontends",
    "bpf lb list --backends",
    "bpf lb list --revnat",
    "bpf lb list --source-ranges",
    "bpf tunnel list",
    "bpf metrics list",
    "bpf config list",
    "bpf frag list",
    "bpf fs show",
    "map list",
    "map get cilium_lxc",
    "map events cilium_lxc",
    "metrics list",
    "config -a",
    "encrypt status",
    "bgp peers",
    "debuginfo",
    "monitor --once -vv",
    "monitor --once -j",
];
/// Answers to each command.
const ROUNDS: usize = 6;

/// Numbers that look random: xorshift.
struct Dice(u64, Vec<&'static str>);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(end).expect("a number")).expect("a number")
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 5 } else { 12 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(u64::MAX >> self.below(64)),
            3 => json!(-1.5e300),
            4 => TEXTS[self.below(TEXTS.len())].into(),
            5..8 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let mut members = Map::new();
                for _ in 0..self.below(8) {
                    let place = self.below(self.1.len());
                    let name = self.1[place].to_owned();
                    members.insert(name, self.value(depth - 1));
                }
                members.into()
            }
        }
    }
}

impl Dice {
    /// An answer: mostly with all members, in a list or not.
    fn answer(&mut self) -> Value {
        let all = |dice: &mut Self| {
            let names = dice.1.clone();
            let one = names.into_iter().map(|name| (name.to_owned(), dice.value(2)));
            Value::Object(one.collect())
        };
        match self.below(8) {
            0 => self.value(3),
            1..4 => json!([all(self), all(self)]),
            _ => all(self),
        }
    }
}

/// Answers whatever it is asked with anything, a line at a time for who listens.
async fn answer(listener: UnixListener, seed: u64) {
    let mut dice = Dice(seed, NAMES.split_whitespace().collect());
    loop {
        let (mut stream, _) = listener.accept().await.expect("a question");
        let mut body = String::new();
        for _ in 0..=dice.below(2) {
            // Writing to a text can't fail.
            let _ = writeln!(body, "{}", dice.answer());
        }
        let mut question = [0; 4096];
        let asked = stream.read(&mut question).await.unwrap_or_default();
        let asked = String::from_utf8_lossy(&question[..asked]).into_owned();
        if !asked.contains("/monitor") && !asked.contains("/events") {
            body = dice.answer().to_string();
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        // Who has heard enough goes away.
        let _ = stream.write_all((head + &body).as_bytes()).await;
    }
}

#[tokio::test]
async fn whatever_an_agent_answers_is_shown_or_refused() {
    let seed: u64 =
        std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_130);
    println!("CILIA_SEED={seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let host = format!("unix://{}", socket.display());
    let agent = answer(UnixListener::bind(&socket).expect("a socket"), seed);
    let ask = async {
        let mut answered = 0;
        for round in 0..ROUNDS {
            for line in COMMANDS {
                let format = ["table", "json", "yaml"][round % 3];
                let words = ["cilia", "-H", &host, "-o", format].into_iter().chain(line.split(' '));
                let arguments = Arguments::try_parse_from(words).expect(line);
                let (outcome, shown) = Box::pin(captured(run(arguments))).await;
                if outcome.is_ok()
                    && format == "json"
                    && !line.starts_with("mo")
                    && !line.contains("events")
                {
                    let parsed: Result<Value, _> = serde_json::from_str(&shown);
                    parsed.unwrap_or_else(|error| {
                        panic!("CILIA_SEED={seed} {line}: {error} in {shown}")
                    });
                    answered += 1;
                }
            }
        }
        answered
    };
    tokio::select! {
        () = agent => {}
        answered = ask => assert!(answered > ROUNDS, "CILIA_SEED={seed}: {answered} answers"),
    }
}
