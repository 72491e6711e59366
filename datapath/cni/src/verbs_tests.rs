//! The verbs against an agent that answers as told, or is away.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Patience, run_with};
use crate::environment::Environment;

const SHORT: Patience = Patience {
    add: Duration::from_millis(300),
    delete: Duration::from_millis(50),
    between: Duration::from_millis(5),
    answer: Duration::from_secs(5),
};

/// An agent that answers one request after the other, and hands back what it was asked.
fn agent(socket: &Path, answers: Vec<(u16, Value)>) -> JoinHandle<Vec<(String, Value)>> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let mut asked = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let path = line.split(' ').nth(1).unwrap().to_owned();
            let mut length = 0;
            loop {
                line.clear();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.strip_prefix("Content-Length: ") {
                    length = value.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
            }
            let mut request = vec![0; length];
            reader.read_exact(&mut request).unwrap();
            asked.push((path, serde_json::from_slice(&request).unwrap()));
            let body = body.to_string();
            write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                .unwrap();
        }
        asked
    })
}

fn environment(verb: &str, socket: &Path) -> Environment {
    Environment::of(&[
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "K8S_POD_NAME=p;K8S_POD_NAMESPACE=n"),
        ("CILIUM_SOCK", socket.to_str().unwrap()),
    ])
}

fn config(version: &str) -> Vec<u8> {
    json!({"cniVersion": version, "name": "cilium", "type": "cilium-cni", "prevResult": {"ips": []}}).to_string().into_bytes()
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn add_waits_for_the_agent_and_converts() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cilium.sock");
    let starting = json!({"code": 11, "msg": "starting"});
    let result = json!({"ips": [{"address": "10.0.0.2/32"}]});
    let agent = agent(&socket, vec![(503, starting), (200, result)]);
    let answer = run_with(&environment("ADD", &socket), &config("0.3.1"), SHORT).unwrap().unwrap();
    assert_eq!(parse(&answer)["ips"][0], json!({"address": "10.0.0.2/32", "version": "4"}));
    let asked = agent.join().unwrap();
    let (path, request) = &asked[1];
    assert_eq!(path, "/v1/cni/add");
    assert_eq!(request["container_id"], "c1");
    assert_eq!(request["args"]["K8S_POD_NAME"], "p");
    assert_eq!(
        (request["config"].get("prevResult"), &request["prev_result"]),
        (None, &json!({"ips": []}))
    );
}

#[test]
fn add_says_that_the_agent_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cilium.sock");
    let error =
        parse(&run_with(&environment("ADD", &socket), &config("1.0.0"), SHORT).unwrap_err());
    assert_eq!((&error["code"], &error["cniVersion"]), (&json!(11), &json!("1.0.0")));
    assert!(error["msg"].as_str().unwrap().contains(socket.to_str().unwrap()), "{error}");
}

#[test]
fn the_agents_refusal_is_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cilium.sock");
    let agent = agent(
        &socket,
        vec![(500, json!({"code": 7, "msg": "no address left", "details": "10.0.0.0/24"}))],
    );
    let error =
        parse(&run_with(&environment("ADD", &socket), &config("1.1.0"), SHORT).unwrap_err());
    assert_eq!(
        error,
        json!({"cniVersion": "1.1.0", "code": 7, "msg": "no address left", "details": "10.0.0.0/24"})
    );
    agent.join().unwrap();
}

#[test]
fn del_is_kept_while_the_agent_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cilium.sock");
    for _ in 0..2 {
        assert_eq!(run_with(&environment("DEL", &socket), &config("0.3.1"), SHORT), Ok(None));
    }
    let kept: Vec<_> = std::fs::read_dir(dir.path().join("deleteQueue"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "delete"))
        .collect();
    assert_eq!(kept.len(), 1, "the same deletion is kept once");
    let request = parse(&std::fs::read_to_string(&kept[0]).unwrap());
    assert_eq!((&request["container_id"], &request["ifname"]), (&json!("c1"), &json!("eth0")));
}

#[test]
fn the_queue_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cilium.sock");
    let queue = dir.path().join("deleteQueue");
    std::fs::create_dir(&queue).unwrap();
    for number in 0..256 {
        std::fs::write(queue.join(format!("{number}.delete")), "{}").unwrap();
    }
    let error =
        parse(&run_with(&environment("DEL", &socket), &config("0.3.1"), SHORT).unwrap_err());
    assert_eq!(error["code"], 5, "{error}");
}

#[test]
fn verbs_without_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cilium.sock");
    let cases = [
        ("CHECK", "1.0.0", 11),
        ("CHECK", "0.3.1", 1),
        ("STATUS", "1.1.0", 50),
        ("STATUS", "1.0.0", 1),
        ("GC", "1.1.0", 11),
        ("GC", "0.4.0", 1),
        ("ADD", "3.0.0", 1),
        ("NONSENSE", "1.0.0", 4),
    ];
    for (verb, version, code) in cases {
        let error =
            parse(&run_with(&environment(verb, &socket), &config(version), SHORT).unwrap_err());
        assert_eq!(error["code"], code, "{verb} {version}: {error}");
    }
    let version = run_with(&environment("VERSION", &socket), br#"{"cniVersion":"1.0.0"}"#, SHORT)
        .unwrap()
        .unwrap();
    assert_eq!(parse(&version)["supportedVersions"].as_array().unwrap().len(), 7);
    assert!(run_with(&environment("VERSION", &socket), b"garbage", SHORT).is_ok());
}
