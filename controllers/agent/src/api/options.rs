//! What can be changed while the agent runs, and is forgotten when it ends: `PATCH` of `/v1/config` and of
//! `/v1/endpoint/{id}/config`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use cilia_policy::Mode;
use cilia_runtime::config::Config;
use serde::Deserialize;
use serde_json::{Value, json};

use super::form::{Fault, no_choice, read};
use super::refusal::told;
use super::{Parts, endpoint};
use crate::policy::Error;

/// The option under which Cilium has audit mode.
const AUDIT: &str = "PolicyAuditMode";
/// When endpoints' traffic may be said to be restricted.
const MODES: [&str; 3] = ["default", "always", "never"];

/// Options that Cilium's agents change, and ours don't: what each is, always or by the settings.
fn fixed(config: &Config) -> [(&'static str, &'static str); 11] {
    [
        ("ConntrackAccounting", said(true)),
        ("Debug", said(config.bool("debug"))),
        ("DebugLB", said(false)),
        ("DebugPolicy", said(false)),
        ("DebugTagged", said(false)),
        ("DropNotification", said(true)),
        ("MonitorAggregationLevel", "Medium"),
        ("PolicyAccounting", said(config.bool("policy-accounting"))),
        ("PolicyVerdictNotification", said(true)),
        ("SourceIPVerification", said(true)),
        ("TraceNotification", said(true)),
    ]
}

/// All options with this one that can be changed.
fn options(config: &Config, audit: bool) -> BTreeMap<&'static str, &'static str> {
    fixed(config).into_iter().chain([(AUDIT, said(audit))]).collect()
}

/// The options of the agent.
pub(super) fn of_agent(parts: &Parts) -> Value {
    let options = options(&parts.config, parts.datapath.policy_audit());
    json!({"options": options, "policy-enforcement": parts.enforcer.mode().name()})
}

/// The options of an endpoint: Cilium's `EndpointConfigurationStatus`.
pub(super) async fn of_endpoint(
    State(parts): State<Arc<Parts>>,
    found: endpoint::Found,
) -> Response {
    let id = found.id();
    let view = parts.enforcer.view().borrow().clone();
    let shown = view.endpoints.iter().find(|endpoint| endpoint.id == id);
    let audit = shown.map_or_else(|| parts.datapath.policy_audit(), |endpoint| endpoint.audit);
    let options = options(&parts.config, audit);
    Json(json!({"realized": {"options": options}, "immutable": {}})).into_response()
}

/// Cilium's `DaemonConfigurationSpec` and `EndpointConfigurationSpec`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Spec {
    options: Option<BTreeMap<String, String>>,
    policy_enforcement: String,
}

/// What is to be changed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    audit: Option<bool>,
    mode: Option<Mode>,
}

impl Wanted {
    /// Reads a body of this name. What can't be changed may be said as it is: Cilium's clients say all of it.
    fn read(config: &Config, name: &str, body: &[u8]) -> Result<Self, Fault> {
        let spec: Spec = read(name, body)?;
        let mut wanted = Self::default();
        if !spec.policy_enforcement.is_empty() {
            let known = MODES.contains(&spec.policy_enforcement.as_str());
            wanted.mode = Mode::parse(&spec.policy_enforcement).filter(|_| known);
            if wanted.mode.is_none() {
                return Err(no_choice("policy-enforcement", "body", &MODES));
            }
        }
        let fault = |why: String| Fault::Text(format!("invalid configuration option: {why}"));
        let fixed = fixed(config);
        for (option, value) in spec.options.unwrap_or_default() {
            let is = fixed.iter().find(|(name, _)| *name == option).map(|(_, is)| *is);
            let on = enabled(&value);
            match is {
                Some(is) if is.eq_ignore_ascii_case(&value) || on.map(said) == Some(is) => {}
                Some(is) => {
                    return Err(fault(format!("{option} is {is} for as long as the agent runs")));
                }
                None if option != AUDIT => {
                    return Err(fault(format!("unknown option {option:?}")));
                }
                None if on.is_none() => {
                    return Err(fault(format!("invalid option value {value}")));
                }
                None => wanted.audit = on,
            }
        }
        Ok(wanted)
    }
}

pub(super) async fn set_of_agent(State(parts): State<Arc<Parts>>, body: Bytes) -> Response {
    let wanted = match Wanted::read(&parts.config, "configuration", &body) {
        Ok(wanted) => wanted,
        Err(fault) => return fault.into_response(),
    };
    if let Some(mode) = wanted.mode
        && !parts.enforcer.set_mode(mode).await
    {
        let why = "config modify event was cancelled";
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    }
    set_audit(&parts, None, wanted.audit).await
}

pub(super) async fn set_of_endpoint(
    State(parts): State<Arc<Parts>>,
    found: endpoint::Found,
    body: Bytes,
) -> Response {
    match Wanted::read(&parts.config, "endpoint-configuration", &body) {
        Ok(wanted) => set_audit(&parts, Some(found.id()), wanted.audit).await,
        Err(fault) => fault.into_response(),
    }
}

async fn set_audit(parts: &Parts, whose: Option<u16>, audit: Option<bool>) -> Response {
    let Some(audit) = audit else { return StatusCode::OK.into_response() };
    match parts.enforcer.set_audit(whose, audit).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(Error::Unknown { id }) => {
            told(StatusCode::NOT_FOUND, &format!("endpoint {id} not found"))
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn said(on: bool) -> &'static str {
    if on { "Enabled" } else { "Disabled" }
}

fn enabled(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "enabled" | "enable" | "true" | "on" | "1" => Some(true),
        "disabled" | "disable" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cilia_policy::Mode;
    use cilia_runtime::config::{Config, Flags};

    use super::{Fault, Wanted};

    #[test]
    fn bodies_say_what_is_to_be_changed() {
        let config = Config::load(Flags::agent(), [], []).expect("settings");
        let read = |body: &str| Wanted::read(&config, "configuration", body.as_bytes());
        let good = [
            ("{}", None, None),
            (r#"{"moon": 1, "options": null, "policy-enforcement": ""}"#, None, None),
            (r#"{"options": {"PolicyAuditMode": "on"}}"#, Some(true), None),
            (r#"{"options": {"PolicyAuditMode": "Disabled"}}"#, Some(false), None),
            (r#"{"policy-enforcement": "always"}"#, None, Some(Mode::Always)),
            (
                r#"{"options": {"TraceNotification": "true", "MonitorAggregationLevel": "medium"}}"#,
                None,
                None,
            ),
        ];
        for (body, audit, mode) in good {
            assert_eq!(read(body), Ok(Wanted { audit, mode }), "{body}");
        }
        let odd = |why: &str| Fault::Text(format!("invalid configuration option: {why}"));
        let modes = "policy-enforcement in body should be one of [default always never]";
        let wrong = [
            (r#"{"options": {"Moon": "on"}}"#, odd("unknown option \"Moon\"")),
            (
                r#"{"options": {"Debug": "on"}}"#,
                odd("Debug is Disabled for as long as the agent runs"),
            ),
            (r#"{"options": {"PolicyAuditMode": "x"}}"#, odd("invalid option value x")),
            (r#"{"policy-enforcement": "Always"}"#, Fault::Object(606, modes.into())),
            (" ", Fault::Object(602, "configuration in body is required".into())),
        ];
        for (body, fault) in wrong {
            assert_eq!(read(body), Err(fault), "{body}");
        }
        assert!(matches!(
            read(r#"{"options": {"PolicyAuditMode": 1}}"#),
            Err(Fault::Object(400, _))
        ));
    }
}
