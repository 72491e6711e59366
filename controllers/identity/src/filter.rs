//! Decides which labels count for a security identity.

use cilia_crds::{LabelKey, Labels};

use crate::prefix_file::PrefixFile;
use crate::{Error, Rule};

/// Labels that count although a default below would leave them out, then those left out.
const DEFAULTS: &[&str] = &[
    r"reserved:.*",
    r"io\.kubernetes\.pod\.namespace",
    r"io\.cilium\.k8s\.namespace\.labels",
    r"app\.kubernetes\.io",
    r"io\.cilium\.k8s\.policy\.cluster",
    r"io\.cilium\.k8s\.policy\.serviceaccount",
    r"!io\.kubernetes",
    r"!kubernetes\.io",
    r"!statefulset\.kubernetes\.io/pod-name",
    r"!apps\.kubernetes\.io/pod-index",
    r"!batch\.kubernetes\.io/job-completion-index",
    r"!batch\.kubernetes\.io/controller-uid",
    r"!.*beta\.kubernetes\.io",
    r"!k8s\.io",
    r"!pod-template-generation",
    r"!pod-template-hash",
    r"!controller-revision-hash",
    r"!controller-uid",
    r"!annotation.*",
    r"!etcd_node",
];

/// The rules by which labels are chosen.
#[derive(Debug, Clone)]
pub struct Filter {
    rules: Vec<Rule>,
    /// A rule of the user's says what is in, so nothing else is.
    whitelist: bool,
    warnings: Vec<String>,
}

impl Filter {
    /// The filter for the entries of `labels` and the content of `label-prefix-file`, if there is one.
    ///
    /// The file takes the place of the defaults; the entries are appended to either. An entry may
    /// itself hold several rules, separated by blanks.
    pub fn new<S: AsRef<str>>(labels: &[S], prefix_file: Option<&str>) -> Result<Self, Error> {
        let mut filter = Self { rules: Vec::new(), whitelist: false, warnings: Vec::new() };
        if let Some(content) = prefix_file {
            let file = PrefixFile::parse(content)?;
            if !file.keeps_reserved() {
                filter.warnings.push(
                    "label-prefix-file has no entry that keeps the labels of source \"reserved\": \
                     reserved identities will have no labels"
                        .to_owned(),
                );
            }
            for rule in file.rules()? {
                filter.add(rule);
            }
        } else {
            filter.rules =
                DEFAULTS.iter().map(|rule| Rule::parse(rule)).collect::<Result<_, _>>()?;
        }
        for text in labels.iter().flat_map(|entry| entry.as_ref().split_whitespace()) {
            filter.add(Rule::parse(text)?);
        }
        Ok(filter)
    }

    /// What in the configuration is likely a mistake, for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the label counts.
    ///
    /// The longest match of the rules for it is held against the shortest of those against it.
    pub fn accepts(&self, label: &LabelKey) -> bool {
        let mut included = 0;
        let mut ignored = usize::MAX;
        for rule in &self.rules {
            match rule.matched(label) {
                0 => {}
                length if rule.ignores() => ignored = ignored.min(length),
                length => included = included.max(length),
            }
        }
        if ignored == usize::MAX { included > 0 || !self.whitelist } else { included > ignored }
    }

    /// Those of the labels that count.
    pub fn apply(&self, labels: &Labels) -> Labels {
        labels.filtered(|label| self.accepts(label))
    }

    fn add(&mut self, rule: Rule) {
        self.whitelist |= !rule.ignores();
        self.rules.push(rule);
    }
}

#[cfg(test)]
mod tests {
    use cilia_crds::LabelKey;

    use super::Filter;

    fn label(text: &str) -> LabelKey {
        let (source, key) = text.split_once(':').unwrap_or(("k8s", text));
        LabelKey { key: key.to_owned(), source: source.to_owned() }
    }

    fn check(filter: &Filter, cases: &[(&str, bool)]) {
        for &(text, want) in cases {
            assert_eq!(filter.accepts(&label(text)), want, "{text}");
        }
    }

    #[test]
    fn defaults() {
        let filter = Filter::new::<&str>(&[], None).expect("defaults are valid");
        check(
            &filter,
            &[
                ("app", true),
                ("reserved:host", true),
                ("io.kubernetes.pod.namespace", true),
                ("io.kubernetes.pod.name", false),
                ("io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name", true),
                ("io.cilium.k8s.policy.cluster", true),
                ("app.kubernetes.io/name", true),
                ("kubernetes.io/hostname", false),
                ("statefulset.kubernetes.io/pod-name", false),
                ("apps.kubernetes.io/pod-index", false),
                ("batch.kubernetes.io/controller-uid", false),
                ("batch.kubernetes.io/job-name", true),
                ("failure-domain.beta.kubernetes.io/zone", false),
                ("pod-template-hash", false),
                ("controller-revision-hash", false),
                ("annotation.foo", false),
                ("etcd_node", false),
            ],
        );
    }

    #[test]
    fn a_rule_of_the_users_that_includes_makes_a_whitelist() {
        let filter = Filter::new(&["k8s:app k8s:team"], None).expect("valid");
        check(
            &filter,
            &[
                ("app", true),
                ("application", true),
                ("any:app", false),
                ("team", true),
                ("tier", false),
                ("io.kubernetes.pod.namespace", true),
                ("reserved:host", true),
            ],
        );
    }

    #[test]
    fn a_rule_of_the_users_that_ignores_leaves_the_rest() {
        for text in ["k8s:!build", "!k8s:build", "!build"] {
            let filter = Filter::new(&[text], None).expect("valid");
            check(&filter, &[("app", true), ("build-id", false), ("rebuild", true)]);
        }
    }

    #[test]
    fn the_longer_match_wins() {
        let filter = Filter::new(&["team", "!team-internal", "team-internal-shared"], None);
        check(
            &filter.expect("valid"),
            &[("team", true), ("team-internal", false), ("team-internal-shared", true)],
        );
    }

    #[test]
    fn prefix_file_replaces_the_defaults() {
        let file = r#"{"version":1,"valid-prefixes":[
            {"prefix":"io.kubernetes","source":"k8s"},
            {"prefix":"io.kubernetes.pod.uid","source":"k8s","invert":true},
            {"prefix":"","source":"reserved"}]}"#;
        let error = Filter::new::<&str>(&[], Some(file)).expect_err("an empty prefix");
        assert!(error.to_string().contains("valid-prefixes[2]"), "{error}");

        let file = file.replace(r#"{"prefix":"","#, r#"{"prefix":".*","#);
        let filter = Filter::new(&["tier"], Some(&file)).expect("valid");
        assert_eq!(filter.warnings(), [] as [String; 0]);
        check(
            &filter,
            &[
                ("io.kubernetes.pod.namespace", true),
                ("ioXkubernetes", false),
                ("io.kubernetes.pod.uid", false),
                ("tier", true),
                ("app", false),
                ("reserved:host", true),
            ],
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (labels, file, part) in [
            ("k8s:", None, "regular expression is empty"),
            (":app", None, "source"),
            ("a(b", None, "a(b"),
            ("a)(b", None, "a)(b"),
            ("app", Some("{}"), "version"),
            ("app", Some(r#"{"version":2,"valid-prefixes":[]}"#), "version 2"),
            ("app", Some(r#"{"version":1,"valid-prefixes":[{"prefix":"a"}]}"#), "source"),
        ] {
            let error = Filter::new(&[labels], file).expect_err(labels).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
