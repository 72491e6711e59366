//! Reads integers that a schema leaves unbounded: one that is out of range must not keep every
//! other object of a list from being read.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Deserializer};

/// A number that does not fit reads as absent.
pub(crate) fn fitting<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: TryFrom<i64>,
    D: Deserializer<'de>,
{
    let number = Option::<i64>::deserialize(deserializer)?;
    Ok(number.and_then(|number| T::try_from(number).ok()))
}

/// A number that does not fit reads as the nearest that does; none of those means anything.
pub(crate) fn nearest<'de, D>(deserializer: D) -> Result<IntOrString, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Int(i64),
        String(String),
    }

    Ok(match Either::deserialize(deserializer)? {
        Either::Int(number) => {
            let outermost = if number < 0 { i32::MIN } else { i32::MAX };
            IntOrString::Int(i32::try_from(number).unwrap_or(outermost))
        }
        Either::String(name) => IntOrString::String(name),
    })
}
