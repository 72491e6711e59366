//! Finds or makes the identity of a label set (operator.md 5.5).

use std::time::Duration;

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};

use super::{Error, HEARTBEAT, Identities, Management, reserved};

const ATTEMPTS: u32 = 16;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
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
        if let Some(number) = reserved(labels) {
            return Ok(number);
        }
        self.wait_synced().await;
        // A hundred pods of one label set ask at once: the first makes it, the others find it.
        let _turn = self.0.turns.take(labels.clone()).await;
        let mut pause = FIRST_PAUSE;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
            if let Some(number) = self.number(labels) {
                if self.unmark(number).await? {
                    return Ok(number);
                }
            } else if self.0.management == Management::Agent {
                let former = former.filter(|_| attempt == 0);
                if self.make(labels, former).await? {
                    // If another agent made one too, the older one counts.
                    return self.number(labels).ok_or_else(|| Error::NotMade(labels.canonical()));
                }
            }
        }
        let labels = labels.canonical();
        Err(match self.0.management {
            Management::Agent => Error::Contended { labels, attempts: ATTEMPTS },
            Management::Operator => Error::NotMade(labels),
        })
    }

    /// Makes an identity; `false` if the number was taken.
    async fn make(&self, labels: &Labels, former: Option<NumericIdentity>) -> Result<bool, Error> {
        let number = {
            let mut state = self.state();
            let again = former.filter(|former| state.pool.take(*former));
            again.or_else(|| state.pool.draw(&mut rand::rng()))
        };
        let number = number.ok_or_else(|| Error::Exhausted(labels.canonical()))?;
        match self.0.api.create(&PostParams::default(), &object(number, labels)).await {
            Ok(made) => {
                self.applied(&made);
                Ok(true)
            }
            // Somebody else's: the number stays taken, the watch will say by whom.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(cause) => {
                self.state().pool.release(number);
                Err(Error::Kubernetes { operation: "create", number, cause: Box::new(cause) })
            }
        }
    }

    /// Takes the garbage collector's mark off, so that its deletion fails; `false` if the
    /// identity is gone.
    async fn unmark(&self, number: NumericIdentity) -> Result<bool, Error> {
        let marked = self.state().index.get(number).map(|record| record.marked);
        match marked {
            None => return Ok(false),
            Some(false) => return Ok(true),
            Some(true) => {}
        }
        let patch = serde_json::json!({"metadata": {"annotations": {HEARTBEAT: null}}});
        let name = number.to_string();
        match self.0.api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(identity) => {
                self.applied(&identity);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.deleted(number);
                Ok(false)
            }
            Err(cause) => {
                Err(Error::Kubernetes { operation: "unmark", number, cause: Box::new(cause) })
            }
        }
    }
}

/// The object of an identity: of its labels only the namespace is selectable.
fn object(number: NumericIdentity, labels: &Labels) -> CiliumIdentity {
    let namespace = labels.get(cilia_crds::labels::SOURCE_K8S, NAMESPACE);
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
