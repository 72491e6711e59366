//! Decides what in a text looks like a secret: by the names before it, or by itself.

use std::sync::LazyLock;

use regex::Regex;

use super::MASK;

/// A name under which there is a secret.
const NAME: &str = r"(?i-u:[a-z0-9_.-]*(?:password|passwd|passphrase|passcode|secret|token|credential|authorization|kubeconfig|(?:private|priv|api|access|signing|encryption|shared|session|master|auth|ssh)[-_.]?key)[a-z0-9_.-]*|[a-z0-9_.-]*[_-]?(?:pwd|pass|dsn))";

type Rule = (Regex, String);

fn rule(pattern: &str, with: &str) -> Rule {
    (Regex::new(pattern).expect("a pattern"), with.replace("MASK", MASK))
}

/// Patterns with what to put in their place, in this order.
static RULES: LazyLock<[Rule; 13]> = LazyLock::new(|| {
    // The name may be in quotes, which may be escaped.
    let sign = r#"(\\*["']?[ \t]*(?:=|:)[ \t]*)"#;
    let named = |rest: &str| format!("({NAME}){sign}{rest}");
    [
        // Keys as files, and as base64 of files.
        rule(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|$)",
            "MASK",
        ),
        rule(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=_-]*", "MASK"),
        // What says itself what it is.
        rule(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(\.[A-Za-z0-9_-]*)?", "MASK"),
        rule(
            r"\b(gh[opsu]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|hvs\.|hf_|npm_|dckr_pat_)[A-Za-z0-9_-]{12,}",
            "MASK",
        ),
        // Users with passwords in addresses; the last @ ends them.
        rule(r#"://[^\s/"']*@"#, "://MASK@"),
        rule(r#"://[^\s/"':]*:[^\s"']*@"#, "://MASK@"),
        rule(r"\b((?i-u:bearer|basic))\s+[A-Za-z0-9+/=._~-]{8,}", "${1} MASK"),
        // `name: |`, and lines below that are further in.
        rule(&named(r"[|>][-+0-9]*[ \t]*\n(?:[ \t]+[^\n]*(?:\n|$))+"), "${1}${2}MASK\n"),
        // In quotes: escaped ones, double ones, single ones.
        rule(&named(r#"(\\+")[\s\S]*?(\\+"|$)"#), "${1}${2}${3}MASK${4}"),
        rule(&named(r#""(?:[^"\\]|\\[\s\S])*("|$)"#), "${1}${2}\"MASK\""),
        rule(&named("'(?:[^']|'')*('|$)"), "${1}${2}'MASK'"),
        // `name=word`; `name: rest of the line`, also if that is the next one.
        rule(&format!(r#"({NAME})(\\*["']?=)(?:[^\s"'\\]|\\[^"'nrt])+"#), "${1}${2}MASK"),
        rule(&format!(r#"({NAME})(\\*["']?:\s*)[^\s"'\\\[|>][^\r\n]*"#), "${1}${2}MASK"),
    ]
});

/// `--name word`, in one text.
static BEHIND: LazyLock<Rule> = LazyLock::new(|| {
    rule(&format!(r#"(--?{NAME}|\s-[pau])(\s+)("[^"]*"|'[^']*'|[^\s"'-][^\s"']*)"#), "${1}${2}MASK")
});

/// `-pSECRET`, as clients of databases want it.
static ATTACHED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"(^|[\s"'])-p('[^']*'|"[^"]*"|[^\s"']+)"#).expect("a pattern"));
/// Options that only begin so.
const NO_SECRETS: [&str; 9] =
    ["ath", "atch", "id", "ort", "orts", "refix", "rint", "rofile", "roxy"];

/// Something long without blanks or signs.
static LONG: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[A-Za-z0-9+=_]{20,}").expect("a pattern"));

/// Masks secrets in a text.
pub(in super::super) fn text(text: &str) -> String {
    RULES.iter().fold(text.to_owned(), |text, (rule, with)| {
        rule.replace_all(&text, with.as_str()).into_owned()
    })
}

/// Masks also what may be a key by its looks: for texts in which keys are more likely than long words.
pub(super) fn strict(text: &str) -> String {
    let (behind, with) = &*BEHIND;
    let text = behind.replace_all(text, with.as_str()).into_owned();
    let attached = |found: &regex::Captures<'_>| {
        let (before, word) = (&found[1], &found[2]);
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        let is_port = |sign: char| sign.is_ascii_digit() || ":./-".contains(sign);
        let is_harmless = NO_SECRETS.contains(&name) || word.chars().all(is_port);
        if is_harmless { found[0].to_owned() } else { format!("{before}-p{MASK}") }
    };
    let text = ATTACHED.replace_all(&text, attached);
    let shown = |found: &regex::Captures<'_>| {
        let word = &found[0];
        let has = |of: fn(&char) -> bool| word.chars().any(|sign| of(&sign));
        if has(char::is_ascii_digit) && has(char::is_ascii_alphabetic) {
            MASK.to_owned()
        } else {
            word.to_owned()
        }
    };
    LONG.replace_all(&self::text(&text), shown).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{strict, text};

    #[test]
    fn texts_lose_their_secrets() {
        let cases = [
            ("authorization: Bearer abcdefgh123", "authorization: [masked]"),
            ("curl -H 'x: Bearer abcdefgh123' y", "curl -H 'x: Bearer [masked]' y"),
            ("token=abc next", "token=[masked] next"),
            ("https://u:p@h/", "https://[masked]@h/"),
            ("https://u:p/q@r@h/", "https://[masked]@h/"),
            ("https://tok3n@h/", "https://[masked]@h/"),
            ("nothing here: 10.0.0.1:80", "nothing here: 10.0.0.1:80"),
            (
                "username: u\npassword: my pass, word\nendpoints:\n- http://e:2379",
                "username: u\npassword: [masked]\nendpoints:\n- http://e:2379",
            ),
            ("password: \"my 'pass' \\\" word\" # x", "password: \"[masked]\" # x"),
            ("password: 'it''s'\nx: y", "password: '[masked]'\nx: y"),
            ("password: |\n  one\n  two\nx: y", "password: [masked]\nx: y"),
            ("password:\n  hunter2\nx: y", "password:\n  [masked]\nx: y"),
            (r#"{"etcd.password":"a b","x":1}"#, r#"{"etcd.password":"[masked]","x":1}"#),
            (
                r#""{\"password\": \"a b\", \"x\": 1}""#,
                r#""{\"password\": \"[masked]\", \"x\": 1}""#,
            ),
            ("DB_PASS=a,b;c&d e", "DB_PASS=[masked] e"),
            ("key eyJhbGciOi.eyJzdWIiOi.c2ln end", "key [masked] end"),
            ("ca: LS0tLS1CRUdJTiBQUklW x", "ca: [masked] x"),
            ("AKIAIOSFODNN7EXAMPLE", "[masked]"),
            ("-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\nx", "[masked]\nx"),
        ];
        for (given, want) in cases {
            assert_eq!(text(given), want, "{given}");
        }
    }

    #[test]
    fn what_looks_like_a_key_is_masked_where_keys_are_likely() {
        let cases = [
            ("--password hunter2 --port 80", "--password [masked] --port 80"),
            ("mysql -p hunter2", "mysql -p [masked]"),
            ("mysql -phunter2 -h db", "mysql -p[masked] -h db"),
            ("sshpass -p'it' -port=80 -p8080:80", "sshpass -p[masked] -port=80 -p8080:80"),
            ("mysql -p1a", "mysql -p[masked]"),
            ("9f86d081884c7d659a2feaa0c55ad015", "[masked]"),
            ("--config-dir=/tmp/cilium/config-map", "--config-dir=/tmp/cilium/config-map"),
            ("disable-endpoint-routes", "disable-endpoint-routes"),
            ("web-5d9f8c7b6d-abcde", "web-5d9f8c7b6d-abcde"),
        ];
        for (given, want) in cases {
            assert_eq!(strict(given), want, "{given}");
        }
    }

    #[test]
    fn endless_texts_are_no_trouble() {
        let long = "password: \"".repeat(20_000);
        assert!(text(&long).len() < long.len() + 1000);
    }
}
