//! Gives endpoints labels beside those of their pods: what is wanted is written down at once, the identity follows
//! as it does when a pod's labels change.

use std::sync::Arc;

use super::lifecycle::Inner;
use super::reconcile::Refreshed;
use super::{EndpointState, Error, Lifecycle, LocalEndpoint, Wanted};

impl Lifecycle {
    /// Makes the user's labels of an endpoint those that are wanted; fine if it goes away meanwhile.
    ///
    /// The work goes on when the caller goes away: an identity that is half taken on would be left otherwise.
    pub async fn relabel(&self, endpoint: &LocalEndpoint, wanted: Wanted) -> Result<(), Error> {
        let (this, id, attachment) = (self.clone(), endpoint.id, endpoint.attachment());
        let work =
            tokio::spawn(async move { this.relabel_in_turn(id, &attachment, &wanted).await });
        work.await
            .unwrap_or_else(|_| Err(Error::NotReady("changing the labels broke off".to_owned())))
    }

    async fn relabel_in_turn(
        &self,
        id: u16,
        attachment: &str,
        wanted: &Wanted,
    ) -> Result<(), Error> {
        let Inner { parts, turns, queue, .. } = &*self.0;
        let turn = turns.take(attachment.to_owned()).await;
        let present = parts.endpoints.get(id).filter(|present| {
            present.attachment() == attachment && present.state != EndpointState::Disconnecting
        });
        let Some(present) = present else { return Ok(()) };
        let facts = parts.pods.get(&present.key());
        let pods = match self.labels(&present.namespace, facts.as_deref()).await {
            Ok(labels) if facts.is_some() || present.pod.is_empty() => labels,
            // What is not known now is as it was last.
            _ => present.own.without(&present.labels),
        };
        let mut changed = LocalEndpoint::clone(&present);
        changed.own.set(wanted, &pods, |label| parts.config.filter.accepts(label))?;
        if changed.own == present.own {
            return Ok(());
        }
        tracing::info!(id, pod = %changed.key(), labels = ?changed.own.user(), "endpoint has labels of its own");
        parts.files.write(&changed)?;
        let changed = parts.endpoints.put(changed);
        drop(turn);
        if changed.pod.is_empty() {
            return self.follow(changed).await;
        }
        queue.add(changed.key());
        Ok(())
    }

    /// Has the identity of what is no pod follow its labels.
    async fn follow(&self, endpoint: Arc<LocalEndpoint>) -> Result<(), Error> {
        while let Refreshed::Later(wait) = self.refresh(Arc::clone(&endpoint), None).await? {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }
}
