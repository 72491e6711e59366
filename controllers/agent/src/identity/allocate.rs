//! Finds or makes the identity of a label set.

use std::time::{Duration, Instant};

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Step, advise};
use cilia_policy::is_label_value;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};

use super::{Error, HEARTBEAT, Identities, Management};

const ATTEMPTS: u32 = 16;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Many ADDs fail at once when there is no number: what to do about it is not computed for each.
const SAME_ADVICE: Duration = Duration::from_mins(1);
const NAMESPACE: &str = "io.kubernetes.pod.namespace";

impl Identities {
    /// The number of these labels, made if nobody has it yet.
    pub async fn allocate(&self, labels: &Labels) -> Result<NumericIdentity, Error> {
        self.allocate_like(labels, None).await
    }

    /// The same; where it has to be made, with `former` if that is free, so that an identity
    /// which was deleted while in use comes back as it was.
    pub async fn allocate_like(
        &self,
        labels: &Labels,
        former: Option<NumericIdentity>,
    ) -> Result<NumericIdentity, Error> {
        if let Some(number) = self.fixed(labels) {
            return Ok(number);
        }
        let allocated = async {
            // A hundred pods of one label set ask at once: the first makes it, the others find it.
            let _turn = self.0.turns.take(labels.clone()).await;
            match self.0.backend.get() {
                Some(backend) => self.allocate_in(backend, labels, former).await,
                None => self.allocate_in_kubernetes(labels, former).await,
            }
        };
        let within = self.0.timeout;
        let late = |_| Error::Late { labels: labels.canonical(), within };
        tokio::time::timeout(within, allocated).await.map_err(late)?
    }

    pub(super) async fn allocate_in_kubernetes(
        &self,
        labels: &Labels,
        former: Option<NumericIdentity>,
    ) -> Result<NumericIdentity, Error> {
        self.wait_synced().await;
        let makes = self.0.management == Management::Agent;
        let mut changed = self.subscribe();
        let mut pause = FIRST_PAUSE;
        for attempt in 0..ATTEMPTS {
            let former = former.filter(|_| attempt == 0);
            let step = self.state().ledger.next(labels, former, makes, &mut rand::rng());
            match step {
                Step::Use(number) => return Ok(number),
                Step::Unmark(number) => {
                    self.unmark(number).await?;
                    if attempt > 0 {
                        // The watch has told something else since, and will tell what is so.
                        tokio::time::sleep(pause).await;
                    }
                }
                Step::Make(number) => {
                    if self.make(number, labels).await? {
                        continue;
                    }
                    // Others of this very label set are no reason to wait.
                    if self.number(labels).is_none() {
                        tokio::time::sleep(pause).await;
                    }
                }
                Step::Wait => {
                    let known = async {
                        while self.number(labels).is_none() && changed.changed().await.is_ok() {}
                    };
                    // If it is not known by then, the next step says so.
                    let _ = tokio::time::timeout(pause, known).await;
                }
                Step::Full => return Err(self.exhausted(labels).await),
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        let labels = labels.canonical();
        Err(match self.0.management {
            Management::Agent => Error::Contended { labels, attempts: ATTEMPTS },
            Management::Operator => Error::NotMade(labels),
        })
    }

    /// Makes an identity; `false` if the number was taken.
    async fn make(&self, number: NumericIdentity, labels: &Labels) -> Result<bool, Error> {
        let failed = |operation| {
            move |cause| Error::Kubernetes { operation, number, cause: Box::new(cause) }
        };
        let asked = Asked(self, Some(number));
        match self.0.api.create(&PostParams::default(), &object(number, labels)).await {
            Ok(made) => {
                asked.answered(Some(&made));
                Ok(true)
            }
            // Somebody else's, mostly of the same labels: whose, the watch would say a little later.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let there =
                    self.0.api.get_opt(&number.to_string()).await.map_err(failed("read"))?;
                asked.answered(there.as_ref());
                Ok(false)
            }
            Err(cause) => Err(failed("create")(cause)),
        }
    }

    /// Takes the garbage collector's mark off, so that its deletion fails. If the identity is gone or another's by
    /// now, that is known afterwards.
    async fn unmark(&self, number: NumericIdentity) -> Result<(), Error> {
        let asked = Asked(self, Some(number));
        let patch = serde_json::json!({"metadata": {"annotations": {HEARTBEAT: null}}});
        let name = number.to_string();
        match self.0.api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(identity) => asked.answered(Some(&identity)),
            Err(kube::Error::Api(status)) if status.code == 404 => asked.answered(None),
            Err(cause) => {
                let (operation, cause) = ("unmark", Box::new(cause));
                return Err(Error::Kubernetes { operation, number, cause });
            }
        }
        Ok(())
    }

    /// Why there is no number, with what the user can do about it.
    async fn exhausted(&self, labels: &Labels) -> Error {
        let (numbers, said, sets) = {
            let state = self.state();
            let sets = state.ledger.index().iter().map(|(_, record)| record.labels.clone());
            let said = state.advice.clone().filter(|(at, _)| at.elapsed() < SAME_ADVICE);
            (state.ledger.pool().size(), said, sets.collect::<Vec<_>>())
        };
        let advice = if let Some((_, said)) = said {
            said
        } else {
            let compute = move || advise(sets.iter().map(|labels| &**labels)).to_string();
            let computed = tokio::task::spawn_blocking(compute).await.unwrap_or_default();
            self.state().advice = Some((Instant::now(), computed.clone()));
            computed
        };
        Error::Exhausted { labels: labels.canonical(), numbers, advice }
    }
}

/// A request for a number that is under way. One that ends without an answer, or that nobody waits for any more, is told
/// to the ledger, too.
struct Asked<'a>(&'a Identities, Option<NumericIdentity>);

impl Asked<'_> {
    fn answered(mut self, there: Option<&CiliumIdentity>) {
        if let Some(number) = self.1.take() {
            self.0.answered(number, there);
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.1 {
            self.0.state().ledger.unsure(number);
        }
    }
}

/// The object of an identity: of its labels only the namespace is selectable, unless somebody has given an endpoint
/// one of his own that no object can have as a label.
pub(super) fn object(number: NumericIdentity, labels: &Labels) -> CiliumIdentity {
    let namespace = labels.get(cilia_crds::labels::SOURCE_K8S, NAMESPACE);
    let namespace = namespace.filter(|namespace| is_label_value(namespace));
    CiliumIdentity {
        metadata: ObjectMeta {
            name: Some(number.to_string()),
            labels: namespace
                .map(|namespace| [(NAMESPACE.to_owned(), namespace.to_owned())].into()),
            ..ObjectMeta::default()
        },
        security_labels: labels.to_security_labels(),
    }
}

#[cfg(test)]
mod tests {
    use cilia_crds::{Labels, NumericIdentity};

    use super::{NAMESPACE, object};

    #[test]
    fn no_label_keeps_an_identity_from_being_made() {
        for (namespace, selectable) in [
            ("kube-system", true),
            ("", true),
            ("Kube System!", false),
            ("-a", false),
            ("a.", false),
            ("\u{e9}", false),
            (&"a".repeat(64), false),
        ] {
            let mut labels = Labels::new();
            labels.insert("k8s", NAMESPACE, namespace);
            let object = object(NumericIdentity(1234), &labels);
            let label = object.metadata.labels.and_then(|mut labels| labels.remove(NAMESPACE));
            assert_eq!(label.as_deref(), Some(namespace).filter(|_| selectable), "{namespace}");
            assert_eq!(Labels::from_security_labels(&object.security_labels), labels);
        }
    }
}
