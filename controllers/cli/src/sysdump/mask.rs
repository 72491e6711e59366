//! Decides what of an object may leave the cluster: everything but what looks like a secret.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// What stands in a secret's place.
const MASK: &str = "[masked]";

/// Parts of names under which secrets are kept.
const NAMES: [&str; 13] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "private-key",
    "privatekey",
    "private_key",
    "api-key",
    "apikey",
    "api_key",
    "access-key",
];
/// Ends of names that only say where a secret is.
const HARMLESS: [&str; 9] =
    ["name", "names", "namespace", "ref", "refs", "path", "dir", "file", "expirationseconds"];

/// Patterns with what to put in their place.
static RULES: LazyLock<[(Regex, String); 4]> = LazyLock::new(|| {
    let rule = |pattern: &str, with: String| (Regex::new(pattern).expect("a pattern"), with);
    [
        rule(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|$)",
            MASK.into(),
        ),
        rule(
            r#"((?i-u:[a-z0-9_.-]*(?:password|passwd|passphrase|secret|token|credential|private[-_]?key|api[-_]?key|access[-_]?key)))(["']?\s*[=:]\s*["']?)([^\s"',;&\\]+)"#,
            format!("${{1}}${{2}}{MASK}"),
        ),
        rule(r"://[^/\s:@]+:[^/\s@]+@", format!("://{MASK}@")),
        rule(r"\b((?i-u:bearer|basic))\s+[A-Za-z0-9+/=._~-]{8,}", format!("${{1}} {MASK}")),
    ]
});

/// Masks what looks like a secret, and leaves out what only fills the file.
pub(super) fn object(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("managedFields");
            if let Some(Value::Object(annotations)) = members.get_mut("annotations") {
                // A copy of the whole object, with everything that is masked below.
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            }
            // `{name: DB_PASSWORD, value: ...}`: a variable of a container.
            let named = members.get("name").and_then(Value::as_str).is_some_and(is_secret);
            for (name, member) in members.iter_mut() {
                if is_secret(name) || (named && name == "value") {
                    hide(member);
                } else {
                    object(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(object),
        Value::String(text) => *text = self::text(text),
        _ => {}
    }
}

/// Masks secrets in a text.
pub(super) fn text(text: &str) -> String {
    RULES.iter().fold(text.to_owned(), |text, (rule, with)| {
        rule.replace_all(&text, with.as_str()).into_owned()
    })
}

fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    NAMES.iter().any(|part| name.contains(part)) && !HARMLESS.iter().any(|end| name.ends_with(end))
}

/// Masks every text in a value; where it is, stays visible.
fn hide(value: &mut Value) {
    match value {
        // Whether something is on is no secret.
        Value::String(text) if matches!(text.as_str(), "" | "true" | "false") => {}
        Value::String(text) => *text = MASK.into(),
        Value::Number(_) => *value = MASK.into(),
        Value::Array(items) => items.iter_mut().for_each(hide),
        // `secretKeyRef: {name, key}`: says where it is, not what it is.
        Value::Object(_) => object(value),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{object, text};
    use serde_json::json;

    #[test]
    fn secrets_are_masked_and_the_rest_stays() {
        let mut pod = json!({
            "metadata": {"name": "web", "managedFields": [1], "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"password\": \"x1\"}", "a": "b"}},
            "spec": {"automountServiceAccountToken": true, "serviceAccountName": "sa", "containers": [{
                "name": "c",
                "args": ["--db-password=x2", "--port=80", "--token", "https://me:x3@host/"],
                "env": [
                    {"name": "DB_PASSWORD", "value": "x4"},
                    {"name": "MODE", "value": "fast"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}},
                ],
            }], "volumes": [{"secret": {"secretName": "tls"}}]},
            "data": {"kvstore-opt": "{\"etcd.username\": \"u\", \"etcd.password\": \"x5\"}", "auth-token": "x6",
                "tls": "-----BEGIN RSA PRIVATE KEY-----\nx7", "enable-ipv4": "true", "list-of-tokens": ["x8"], "pin-secret": 99}
        });
        object(&mut pod);
        let shown = pod.to_string();
        for secret in ["x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "99"] {
            assert!(!shown.contains(secret), "{secret} is in {shown}");
        }
        for kept in [
            "--port=80",
            "\"fast\"",
            "\"sa\"",
            "\"db\"",
            "\"tls\"",
            "\"enable-ipv4\":\"true\"",
            "\"a\":\"b\"",
            "\"u",
        ] {
            assert!(shown.contains(kept), "{kept} is not in {shown}");
        }
        assert!(!shown.contains("managedFields"));
    }

    #[test]
    fn texts_lose_their_secrets() {
        let cases = [
            ("authorization: Bearer abcdefgh123", "authorization: Bearer [masked]"),
            ("token=abc next", "token=[masked] next"),
            ("https://u:p@h/", "https://[masked]@h/"),
            ("nothing here: 10.0.0.1:80", "nothing here: 10.0.0.1:80"),
        ];
        for (given, want) in cases {
            assert_eq!(text(given), want);
        }
    }
}
