//! Label sets as identities have them in the kvstore: `source:key=value;`.

use cilia_crds::Labels;

/// Reads a canonical label string; `None` if it is not one.
pub fn parse_labels(text: &str) -> Option<Labels> {
    let mut labels = Labels::new();
    for label in text.strip_suffix(';')?.split(';') {
        let (name, value) = label.split_once('=')?;
        let (source, key) = name.split_once(':')?;
        labels.insert(source, key, value);
    }
    // What does not come out as it went in would be another set for everybody else.
    (labels.canonical() == text).then_some(labels)
}

#[cfg(test)]
mod tests {
    use super::parse_labels;

    #[test]
    fn reads_what_is_canonical_and_nothing_else() {
        for text in [
            "k8s:app=web;k8s:io.kubernetes.pod.namespace=default;",
            "k8s:empty=;",
            "k8s:value=a=b;",
            "any:a=1;k8s:a=2;",
            "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=a/b;",
        ] {
            assert_eq!(parse_labels(text).map(|labels| labels.canonical()).as_deref(), Some(text));
        }
        for text in ["", ";", "k8s:a=b", "a=b;", "k8s:a;", "k8s:b=1;k8s:a=1;", "k8s:a=1;k8s:a=2;"] {
            assert_eq!(parse_labels(text), None, "{text}");
        }
    }
}
