//! Decides what of an object may leave the cluster: everything but what is or may be a secret.
//!
//! Values of variables are left out unless they are Kubernetes' or Cilium's own; elsewhere names decide, and what
//! keys and tokens look like.

mod text;

use serde_json::{Map, Value};

pub(super) use text::text;

/// What stands in a secret's place.
const MASK: &str = "[masked]";

/// Parts of names under which secrets are kept, without the signs between their words.
const NAMES: [&str; 24] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "secret",
    "token",
    "credential",
    "authorization",
    "privatekey",
    "privkey",
    "apikey",
    "accesskey",
    "signingkey",
    "encryptionkey",
    "sharedkey",
    "sessionkey",
    "masterkey",
    "authkey",
    "sshkey",
    "kubeconfig",
    "dsn",
    "connectionstring",
    "webhookurl",
];
/// Ends of names that only say where a secret is.
const HARMLESS: [&str; 9] =
    ["name", "names", "namespace", "ref", "refs", "path", "dir", "file", "expirationseconds"];
/// Beginnings of the names of variables whose values are settings.
const VARIABLES: [&str; 4] = ["CILIUM_", "K8S_", "KUBERNETES_", "KUBE_"];
/// Parts of names under which there are sums, which look like keys.
const SUMS: [&str; 5] = ["checksum", "sha", "hash", "digest", "revision"];
/// Options behind which programs expect a password or a user with one.
const SHORT: [&str; 3] = ["-p", "-a", "-u"];

/// Masks what may be a secret, and leaves out what only fills the file.
pub(super) fn object(value: &mut Value) {
    match value {
        Value::Object(members) => members_of(members),
        Value::Array(items) => items.iter_mut().for_each(object),
        Value::String(text) => *text = self::text(text),
        _ => {}
    }
}

fn members_of(members: &mut Map<String, Value>) {
    members.remove("managedFields");
    // `{name: DB_PASSWORD, value: ...}`: a header, or an option of something.
    let named = members.get("name").and_then(Value::as_str).is_some_and(is_secret);
    for (name, member) in members.iter_mut() {
        match (name.as_str(), member) {
            ("annotations", Value::Object(annotations)) => self::annotations(annotations),
            ("env", Value::Array(variables)) => variables.iter_mut().for_each(variable),
            ("args" | "command", Value::Array(words)) => command(words),
            (name, member) if is_secret(name) || (named && name == "value") => hide(member),
            (_, member) => object(member),
        }
    }
}

fn annotations(annotations: &mut Map<String, Value>) {
    // A copy of the whole object, with everything that is masked below.
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    for (name, value) in annotations {
        let sum = SUMS.iter().any(|part| name.to_lowercase().contains(part));
        match value {
            value if is_secret(name) => hide(value),
            Value::String(text) if sum => *text = self::text(text),
            Value::String(text) => *text = written(text).unwrap_or_else(|| text::strict(text)),
            other => object(other),
        }
    }
}

/// An object or a list that is written as a text, masked as what it is.
fn written(text: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    if !(value.is_object() || value.is_array()) {
        return None;
    }
    object(&mut value);
    Some(text::strict(&value.to_string()))
}

/// A variable of a container.
fn variable(variable: &mut Value) {
    let name = variable["name"].as_str().unwrap_or_default();
    let known = VARIABLES.iter().any(|start| name.starts_with(start)) && !is_secret(name);
    if let Some(value) = variable.get_mut("value").filter(|_| !known) {
        hide(value);
    }
    object(variable);
}

/// The words of a command line: a secret may be behind its option.
fn command(words: &mut [Value]) {
    let mut secret_follows = false;
    for word in words {
        let Value::String(text) = word else { continue };
        if std::mem::take(&mut secret_follows) && !text.starts_with("--") {
            MASK.clone_into(text);
            continue;
        }
        secret_follows = SHORT.contains(&text.as_str())
            || (text.starts_with('-') && !text.contains('=') && is_secret(text));
        *text = text::strict(text);
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let is_one = NAMES.iter().any(|part| plain.contains(part)) || plain.ends_with("pass");
    is_one && !HARMLESS.iter().any(|end| name.ends_with(end))
}

/// Masks every text in a value; where it is, stays visible.
fn hide(value: &mut Value) {
    match value {
        // Whether something is on is no secret.
        Value::String(text) if matches!(text.as_str(), "" | "true" | "false") => {}
        Value::String(text) => *text = MASK.into(),
        Value::Number(_) => *value = MASK.into(),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::Object(members) => {
            for (name, member) in members {
                // `{secretName: tls}`: says where it is, not what it is.
                if HARMLESS.iter().any(|end| name.to_lowercase().ends_with(end)) {
                    object(member);
                } else {
                    hide(member);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::object;
    use serde_json::json;

    #[test]
    fn secrets_are_masked_and_the_rest_stays() {
        let mut pod = json!({
            "metadata": {"name": "web", "managedFields": [1], "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"password\": \"x1\"}", "a": "b",
                "checksum/config": "0f343b0931126a20f133d67c2b018a3b0f343b0931126a20f133d67c2b018a3b",
                "vault/agent-inject": "x10x10x10x10x10x10x10", "example.com/api-token": "x11",
                "example.com/original": "{\"spec\": {\"env\": [{\"name\": \"MODE\", \"value\": \"x20\"}], \"kind\": \"seen\"}}"}},
            "spec": {"automountServiceAccountToken": true, "serviceAccountName": "sa", "containers": [{
                "name": "c",
                "command": ["sh", "-c", "run --db-password x12 --mode fast; mysql -p x13x13x13x13x13x13x13x13"],
                "args": ["--db-password=x2", "--port=80", "--token", "https://me:x3@host/", "-p", "x14", "--pass", "x15", "-px21", "-path", "-p8080"],
                "env": [
                    {"name": "DB_PASSWORD", "value": "x4"},
                    {"name": "MODE", "value": "x16"},
                    {"name": "K8S_NODE_NAME", "value": "n1"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}},
                ],
                "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": "x17"}]}},
            }], "volumes": [{"secret": {"secretName": "tls"}}]},
            "credentials": {"user": "x18", "nested": [{"key": "x19"}]},
            "data": {"kvstore-opt": "{\"etcd.username\": \"u\", \"etcd.password\": \"x5\"}", "auth-token": "x6",
                "tls": "-----BEGIN RSA PRIVATE KEY-----\nx7", "enable-ipv4": "true", "list-of-tokens": ["x8"], "pin-secret": 99}
        });
        object(&mut pod);
        let shown = pod.to_string();
        for number in 1..22 {
            let secret = format!("x{number}");
            assert!(!shown.contains(&secret), "{secret} is in {shown}");
        }
        assert!(!shown.contains("99"), "{shown}");
        for kept in [
            "--port=80",
            "\"-path\"",
            "\"-p8080\"",
            "seen",
            "--mode fast",
            "\"n1\"",
            "\"sa\"",
            "\"db\"",
            "\"tls\"",
            "\"enable-ipv4\":\"true\"",
            "\"a\":\"b\"",
            "\"u",
            "0f343b0931126a20f133d67c2b018a3b",
        ] {
            assert!(shown.contains(kept), "{kept} is not in {shown}");
        }
        assert!(!shown.contains("managedFields"));
    }
}
