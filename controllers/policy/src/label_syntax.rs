//! Decides whether text can be a label's key or value at all; a selector of another is a mistake.

/// The longest name and value of a label, and the longest DNS name before a key's slash.
const LONGEST: usize = 63;
const LONGEST_PREFIX: usize = 253;

/// What is wrong with a key, if anything is; a source such as `k8s:` is not part of it.
pub(crate) fn fault_of_key(key: &str) -> Option<String> {
    if key.is_empty() {
        return Some("the key is empty".to_owned());
    }
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let fine = is_name(name) && prefix.is_none_or(is_dns_name);
    (!fine).then(|| {
        format!(
            "{key:?} is not a label's key: at most {LONGEST} letters, digits, dashes, underscores and dots, \
             the first and the last a letter or digit; a DNS name and a slash may come before them"
        )
    })
}

/// What is wrong with a value, if anything is.
pub(crate) fn fault_of_value(value: &str) -> Option<String> {
    (!is_label_value(value)).then(|| {
        format!(
            "{value:?} is not a label's value: at most {LONGEST} letters, digits, dashes, underscores and \
             dots, the first and the last a letter or digit"
        )
    })
}

/// Whether this may be the value of an object's label.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_name(text: &str) -> bool {
    let end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= LONGEST
        && end(text.bytes().next())
        && end(text.bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_dns_name(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= LONGEST_PREFIX && text.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::{fault_of_key, fault_of_value};

    #[test]
    fn keys_are_names_perhaps_of_a_domain() {
        let longest = "a".repeat(63);
        let of_domain = format!("{}.example/{longest}", "b".repeat(63));
        for key in ["app", "a", "A_b.c-9", "kubernetes.io/metadata.name", &longest, &of_domain] {
            assert_eq!(fault_of_key(key), None, "{key}");
        }
        let too_long = "a".repeat(64);
        let too_long_prefix = format!("{}/a", "b.".repeat(127) + "b");
        for key in [
            "",
            "-a",
            "a-",
            "a b",
            "a!",
            "/a",
            "a/",
            "a/b/c",
            "Example.org/a",
            "a..b/c",
            "-a/b",
            "é",
            "a\0",
            &too_long,
            &too_long_prefix,
        ] {
            assert!(fault_of_key(key).is_some(), "{key}");
        }
    }

    #[test]
    fn values_may_be_empty() {
        let longest = "a".repeat(63);
        for value in ["", "x", "1.2_3-4", &longest] {
            assert_eq!(fault_of_value(value), None, "{value}");
        }
        let too_long = "a".repeat(64);
        for value in ["-", "a ", "a/b", "*", &too_long] {
            assert!(fault_of_value(value).is_some(), "{value}");
        }
    }
}
