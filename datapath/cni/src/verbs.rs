//! Carries out a request: what each verb asks of the agent, how long it waits, what it says.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, Answer, Silence};
use crate::delete_queue::Entry;
use crate::environment::{Attachment, Environment, Verb};
use crate::error::Error;
use crate::netconf::{NetConf, version_of};
use crate::version::{CURRENT, SUPPORTED, Version};
use crate::{log, loopback, request, result};

/// How long a request waits for an agent that is away or still starting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) add: Duration,
    pub(crate) delete: Duration,
    pub(crate) between: Duration,
    /// How long an answer may take.
    pub(crate) answer: Duration,
}

const PATIENCE: Patience = Patience {
    add: Duration::from_secs(30),
    delete: Duration::from_millis(1500),
    between: Duration::from_millis(100),
    answer: Duration::from_secs(90),
};

/// The text for stdout: a result, or an error.
pub(crate) fn run(environment: &Environment, input: &[u8]) -> Result<Option<String>, String> {
    run_with(environment, input, PATIENCE)
}

pub(crate) fn run_with(
    environment: &Environment,
    input: &[u8],
    patience: Patience,
) -> Result<Option<String>, String> {
    let version = version_of(input).map_or(CURRENT, Version::text);
    perform(environment, input, patience).map_err(|error| error.into_answer(version))
}

fn perform(
    environment: &Environment,
    input: &[u8],
    patience: Patience,
) -> Result<Option<String>, Error> {
    let verb = environment.verb()?;
    if verb == Verb::Version {
        // A version we do not speak is answered with those that we do.
        let asked = serde_json::from_slice::<Value>(input).ok();
        let asked =
            asked.as_ref().and_then(|config| config.get("cniVersion")).and_then(Value::as_str);
        let version = asked.filter(|version| SUPPORTED.contains(version)).unwrap_or(CURRENT);
        return Ok(Some(
            json!({"cniVersion": version, "supportedVersions": SUPPORTED}).to_string(),
        ));
    }
    let config = NetConf::parse(input)?;
    let outcome = if loopback::is_name_of(std::env::args_os().next().as_deref()) {
        loopback::perform(environment, verb, &config)
    } else {
        with_config(environment, verb, &config, patience)
    };
    match &outcome {
        Ok(_) => {
            log::write(
                &config,
                false,
                &format!("{verb:?} {:?} done", environment.attachment(verb)),
            );
        }
        Err(error) => log::write(
            &config,
            true,
            &format!("{verb:?} {:?}: {error}", environment.attachment(verb)),
        ),
    }
    outcome
}

fn with_config(
    environment: &Environment,
    verb: Verb,
    config: &NetConf,
    patience: Patience,
) -> Result<Option<String>, Error> {
    let socket = environment.socket();
    let call =
        Call { agent: Agent::at(&socket, patience.answer), socket: &socket, config, patience };
    let version = config.version;
    match verb {
        Verb::Add => {
            let attachment = environment.attachment(verb)?;
            let answer = call.patient("ADD", "/v1/cni/add", &attachment, patience.add)?;
            let answer = serde_json::from_slice(&answer).map_err(|cause| {
                Error::AgentAnswer(format!("the result of ADD is no JSON: {cause}"))
            })?;
            return Ok(Some(result::convert(&answer, version).to_string()));
        }
        Verb::Del => call.delete(&environment.attachment(verb)?)?,
        Verb::Check => {
            needs(version.has_check(), "CHECK", "0.4.0", version)?;
            call.patient(
                "CHECK",
                "/v1/cni/check",
                &environment.attachment(verb)?,
                patience.delete,
            )?;
        }
        Verb::Gc => {
            needs(version.has_status(), "GC", "1.1.0", version)?;
            call.patient("GC", "/v1/cni/gc", &Attachment::default(), patience.delete)?;
        }
        Verb::Status => {
            needs(version.has_status(), "STATUS", "1.1.0", version)?;
            call.patient("STATUS", "/v1/cni/status", &Attachment::default(), Duration::ZERO)?;
        }
        Verb::Version => {}
    }
    Ok(None)
}

fn needs(
    has: bool,
    verb: &'static str,
    needs: &'static str,
    version: Version,
) -> Result<(), Error> {
    if has { Ok(()) } else { Err(Error::TooOld { verb, needs, got: version.text() }) }
}

/// A request on its way.
struct Call<'a> {
    agent: Agent,
    socket: &'a Path,
    config: &'a NetConf,
    patience: Patience,
}

impl Call<'_> {
    /// Asks until there is an answer or `limit` has passed: an agent that is away or starting may come.
    fn patient(
        &self,
        verb: &'static str,
        path: &str,
        attachment: &Attachment,
        limit: Duration,
    ) -> Result<Vec<u8>, Error> {
        let body = request::body(attachment, &self.config.raw);
        let start = Instant::now();
        loop {
            let fault = match self.agent.post(path, &body) {
                Ok(Answer { status: 200..=299, body }) => return Ok(body),
                Ok(answer) if answer.status == 503 => refusal(verb, &answer),
                Ok(answer) => return Err(refusal(verb, &answer)),
                Err(Silence::Away(cause)) => self.away(verb, limit, &cause),
                Err(silence @ Silence::Lost(_)) => {
                    return Err(Error::AgentAnswer(silence.to_string()));
                }
            };
            if start.elapsed() >= limit {
                return Err(fault);
            }
            sleep(self.patience.between);
        }
    }

    fn away(&self, verb: &'static str, limit: Duration, cause: &std::io::Error) -> Error {
        let waited = match limit {
            Duration::ZERO => String::new(),
            limit => format!(" for {} s", limit.as_secs_f32()),
        };
        Error::AgentAway {
            verb,
            socket: self.socket.display().to_string(),
            waited,
            cause: cause.to_string(),
        }
    }

    /// DEL must not hold up the pod's end: for an agent that is away it is kept.
    fn delete(&self, attachment: &Attachment) -> Result<(), Error> {
        let away = |error: &Error| {
            matches!(
                error,
                Error::AgentAway { .. } | Error::AgentAnswer(_) | Error::Refused { code: 11, .. }
            )
        };
        match self.patient("DEL", "/v1/cni/del", attachment, self.patience.delete) {
            Err(error) if away(&error) => {}
            outcome => return outcome.map(drop),
        }
        let run_dir = self.socket.parent().unwrap_or(Path::new("/var/run/cilium"));
        let entry = Entry::write(run_dir, &request::body(attachment, &self.config.raw))?;
        // The agent may have started between the first try and the lock, and would not look again.
        if self.patient("DEL", "/v1/cni/del", attachment, Duration::ZERO).is_ok() {
            entry.withdraw();
        }
        Ok(())
    }
}

/// The agent's own words, or its status if it has none.
fn refusal(verb: &'static str, answer: &Answer) -> Error {
    let said = serde_json::from_slice::<Value>(&answer.body).unwrap_or_default();
    let text = |field: &str| said.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
    let fallback = match (verb, answer.status) {
        ("STATUS", _) => 50,
        (_, 503) => 11,
        ("CHECK", _) => 101,
        _ => 999,
    };
    let code = said
        .get("code")
        .and_then(Value::as_u64)
        .and_then(|code| u32::try_from(code).ok())
        .unwrap_or(fallback);
    let msg = match text("msg") {
        msg if msg.is_empty() => {
            format!("cilium agent answered {verb} with status {}", answer.status)
        }
        msg => msg,
    };
    Error::Refused { code, msg, details: text("details") }
}

#[cfg(test)]
#[path = "verbs_tests.rs"]
mod tests;
