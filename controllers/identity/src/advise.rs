//! Decides which label keys make identities multiply, and how many there would be without each.
//!
//! An identity is a set of labels, so a label that every pod has another value of (a job's name, a commit) makes an
//! identity per pod. Leaving the key out of the sets shows what it costs. Keys whose values go together, such as the
//! two names that a Job's pods carry, cost nothing one by one: they are left out together.

mod survey;

use std::fmt;

use cilia_crds::labels::SOURCE_K8S;
use cilia_crds::{LabelKey, Labels};

use survey::Survey;

/// Keys that are looked at, those with the most values first.
const CANDIDATES: usize = 32;
/// Savings that are worth a setting: so many identities, and such a part of all.
const WORTH: usize = 16;
const WORTH_PART: usize = 20;
/// Without these no policy could tell namespaces and clusters apart.
const NEEDED: [&str; 2] = ["io.kubernetes.pod.namespace", crate::CLUSTER_LABEL];

/// What labels cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Advice {
    /// Different label sets, that is: identities.
    pub identities: usize,
    /// What saves identities, the most first.
    pub savings: Vec<Saving>,
    /// All that is worth a setting, together; nothing if nothing is.
    pub together: Option<Saving>,
}

/// What leaving labels out would save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saving {
    /// The keys: several where their values go together.
    pub keys: Vec<LabelKey>,
    /// Different values of the first of them.
    pub values: usize,
    /// Identities there would be without.
    pub without: usize,
    /// The namespace with the most identities that have the label; empty if there is none.
    pub namespace: String,
}

impl Saving {
    /// What to add to `labels` to leave exactly these keys out.
    pub fn setting(&self) -> String {
        let rule = |name: &LabelKey| format!("{}:!{}$", name.source, name.key.replace('.', r"\."));
        self.keys.iter().map(rule).collect::<Vec<_>>().join(" ")
    }

    fn names(&self) -> String {
        self.keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    }
}

impl Advice {
    /// The saving to begin with, if any is worth a setting.
    pub fn first(&self) -> Option<&Saving> {
        self.savings.first().filter(|saving| self.is_worth(self.identities - saving.without))
    }

    fn is_worth(&self, saved: usize) -> bool {
        saved >= WORTH && saved * WORTH_PART >= self.identities
    }
}

/// One sentence, for errors and events.
impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(saving) = self.first() else {
            return write!(f, "no single label makes many of the {} identities", self.identities);
        };
        let (names, values, setting) = (saving.names(), saving.values, saving.setting());
        write!(
            f,
            "{names} has {values} values, most of them in namespace {}; without it {} of the {} identities \
             would do: add {setting} to the setting labels",
            saving.namespace, saving.without, self.identities
        )
    }
}

/// What the labels of these identities cost.
pub fn advise<'a>(identities: impl Iterator<Item = &'a Labels>) -> Advice {
    let mut survey = Survey::of(identities);
    let mut advice = Advice { identities: survey.sets(), ..Advice::default() };
    let candidates = survey.groups(CANDIDATES, |name| {
        name.source == SOURCE_K8S && !NEEDED.contains(&name.key.as_str())
    });
    let mut savings: Vec<_> =
        candidates.iter().map(|group| (survey.without(group), group)).collect();
    savings.retain(|(without, _)| *without < advice.identities);
    savings.sort_by(|(a, first), (b, second)| {
        a.cmp(b).then_with(|| survey.names(first).cmp(&survey.names(second)))
    });
    let saving = |(without, group): &(usize, &Vec<usize>)| Saving {
        keys: survey.names(group),
        values: survey.values(group[0]),
        without: *without,
        namespace: survey.namespace(group[0]),
    };
    advice.savings = savings.iter().map(saving).collect();

    // One after the other: what a key costs depends on which are left out already.
    let mut left: Vec<&Vec<usize>> = candidates.iter().collect();
    let (mut keys, mut now) = (Vec::new(), advice.identities);
    let best = |survey: &Survey, left: &[&Vec<usize>]| {
        let costs = left.iter().enumerate().map(|(at, group)| (survey.without(group), at));
        costs.min()
    };
    while let Some((without, at)) = best(&survey, &left) {
        if !advice.is_worth(now - without) {
            break;
        }
        let group = left.swap_remove(at);
        keys.extend(survey.names(group));
        survey.leave_out(group);
        now = without;
    }
    if keys.len() > advice.savings.first().map_or(0, |saving| saving.keys.len()) {
        let namespace = advice.savings[0].namespace.clone();
        advice.together =
            Some(Saving { keys, values: advice.savings[0].values, without: now, namespace });
    }
    advice
}

#[cfg(test)]
mod tests;
