//! Decides what the condition `Valid` of a policy must become.

use cilia_crds::policy::PolicyCondition;

/// The condition's type.
pub(super) const VALID: &str = "Valid";
const SUCCEEDED: &str = "Policy validation succeeded";

/// What to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) valid: bool,
    pub(super) message: String,
    /// Since when, in the form that is there; now, if the status changes.
    pub(super) since: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
}

/// The condition to write; nothing if it is there already.
pub(super) fn decide(present: &[PolicyCondition], fault: Option<&str>) -> Option<Condition> {
    let valid = fault.is_none();
    let message = fault.unwrap_or(SUCCEEDED);
    let present = present.iter().find(|condition| condition.condition_type == VALID);
    let same = present.filter(|condition| condition.status == status(valid));
    if same.is_some_and(|condition| condition.message.as_deref() == Some(message)) {
        return None;
    }
    // The time of the transition changes with the status only.
    let since = same.and_then(|condition| condition.last_transition_time.clone());
    Some(Condition { valid, message: message.to_owned(), since })
}

/// The text of a condition's status.
pub(super) fn status(valid: bool) -> &'static str {
    if valid { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use cilia_crds::policy::PolicyCondition;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::{Condition, SUCCEEDED, VALID, decide, status};

    fn there(valid: bool, message: &str) -> PolicyCondition {
        PolicyCondition {
            condition_type: VALID.into(),
            status: status(valid).into(),
            last_transition_time: Some(Time(Timestamp::UNIX_EPOCH)),
            reason: None,
            message: Some(message.into()),
        }
    }

    #[test]
    fn writes_what_changed_only() {
        let since = Some(Time(Timestamp::UNIX_EPOCH));
        let want =
            |valid, message: &str, since| Some(Condition { valid, message: message.into(), since });
        let cases = [
            ("new and valid", None, None, want(true, SUCCEEDED, None)),
            ("new and not", None, Some("spec: bad"), want(false, "spec: bad", None)),
            ("settled", Some(there(true, SUCCEEDED)), None, None),
            (
                "broken",
                Some(there(true, SUCCEEDED)),
                Some("spec: bad"),
                want(false, "spec: bad", None),
            ),
            (
                "another fault",
                Some(there(false, "spec: bad")),
                Some("spec: worse"),
                want(false, "spec: worse", since),
            ),
            ("mended", Some(there(false, "spec: bad")), None, want(true, SUCCEEDED, None)),
        ];
        for (name, present, fault, want) in cases {
            let present: Vec<PolicyCondition> = present.into_iter().collect();
            assert_eq!(decide(&present, fault), want, "{name}");
        }
    }
}
