//! Decides which pods have a number that the user fixed (`fixed-identity-mapping`): those that name it in a label.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use cilia_crds::{Labels, NumericIdentity};

/// Numbers with names, as `fixed-identity-mapping` says them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fixed(BTreeMap<String, NumericIdentity>);

impl Fixed {
    /// The label by which a pod asks for one, by its name.
    pub const LABEL: &str = "io.cilium.fixed-identity";
    /// The numbers that may be fixed: of the reserved ones those that are the user's.
    pub const NUMBERS: RangeInclusive<u32> = 128..=255;
    /// What a mapping may hold, for messages.
    pub const ALLOWED: &str = "number=name, the numbers from 128 to 255";

    /// Reads a mapping of numbers to names; nothing if it holds what is not allowed.
    pub fn parse(mapping: &BTreeMap<String, String>) -> Option<Self> {
        let one = |(number, name): (&String, &String)| {
            let number = number.parse().ok().filter(|number| Self::NUMBERS.contains(number))?;
            (!name.is_empty()).then(|| (name.clone(), NumericIdentity(number)))
        };
        mapping.iter().map(one).collect::<Option<_>>().map(Self)
    }

    /// Every number with the only label that it has.
    pub fn all(&self) -> impl Iterator<Item = (NumericIdentity, Labels)> {
        self.0.iter().map(|(name, number)| (*number, Labels::reserved(name)))
    }

    /// The labels of the number that a pod with these asks for, if there is one of that name.
    pub fn asked_for(&self, labels: &Labels) -> Option<Labels> {
        let (_, name) = labels.iter().find(|(label, _)| label.key == Self::LABEL)?;
        self.0.contains_key(name).then(|| Labels::reserved(name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_crds::{Labels, NumericIdentity};

    use super::Fixed;

    fn mapping(number: &str, name: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(number.to_owned(), name.to_owned())])
    }

    #[test]
    fn pods_ask_by_name_for_what_was_fixed() {
        let fixed = Fixed::parse(&mapping("128", "store")).expect("allowed");
        let all: Vec<_> = fixed.all().collect();
        assert_eq!(all, [(NumericIdentity(128), Labels::reserved("store"))]);
        let asks = |name: &str| {
            let mut labels = Labels::new();
            labels.insert("k8s", "app", "web");
            labels.insert("k8s", "io.cilium.fixed-identity", name);
            fixed.asked_for(&labels)
        };
        assert_eq!(asks("store"), Some(Labels::reserved("store")));
        // Nobody becomes what only Cilia may be.
        for name in ["other", "host", "kube-apiserver"] {
            assert_eq!(asks(name), None, "{name}");
        }
        assert_eq!(fixed.asked_for(&Labels::new()), None);
    }

    #[test]
    fn only_the_users_numbers_can_be_fixed() {
        for (number, name) in [("127", "web"), ("256", "web"), ("x", "web"), ("128", "")] {
            assert_eq!(Fixed::parse(&mapping(number, name)), None, "{number}={name}");
        }
        assert_eq!(Fixed::parse(&BTreeMap::new()), Some(Fixed::default()));
    }
}
