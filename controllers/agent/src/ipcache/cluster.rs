//! Reads what the cluster says of its pods: slices, endpoints, or both for as long as it takes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice};
use cilia_runtime::watch::{Event, Key, watch};
use futures::future::{BoxFuture, OptionFuture};
use futures::{FutureExt as _, Stream, StreamExt as _};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::choice::Choice;
use super::table::{Origin, Said};
use super::{Cache, source};

/// What a source of this name says; `None` is the end of the first list.
pub(super) type News = Option<(Arc<str>, Said)>;
/// To be polled again only when what it said is in the table.
pub(super) type Cluster = Pin<Box<dyn Stream<Item = News> + Send>>;

/// How often it looks whether slices list all endpoints.
const LOOK: Duration = Duration::from_secs(1);
/// Where slices are switched on, endpoints are known by names that no slice can have.
const ENDPOINT: &str = "endpoint:";

type Events<K> = Pin<Box<dyn Stream<Item = Event<K>> + Send>>;

/// What is said by slices, or by endpoints where slices are switched off.
pub(super) fn cluster(cache: Cache, client: Client, slices: bool) -> Cluster {
    if !slices {
        let events = watch(Api::<CiliumEndpoint>::all(client));
        return Box::pin(events.map(|event| match event {
            Event::Applied(endpoint) => {
                Some((Key::of(&endpoint).to_string().into(), source::endpoint(&endpoint)))
            }
            Event::Deleted(key) => Some((key.to_string().into(), Said::default())),
            Event::Synced => None,
        }));
    }
    let reading = Reading {
        slices: Box::pin(watch(Api::all(client.clone()))),
        endpoints: None,
        counting: None,
        client,
        cache,
        choice: Choice::default(),
        start: Instant::now(),
        looks: looks(),
        news: VecDeque::new(),
        counted: false,
        told: false,
    };
    Box::pin(futures::stream::unfold(reading, |mut reading| async move {
        let news = reading.next().await;
        Some((news, reading))
    }))
}

struct Reading {
    client: Client,
    /// Holds what has been told.
    cache: Cache,
    slices: Events<CiliumEndpointSlice>,
    endpoints: Option<Events<CiliumEndpoint>>,
    /// How many endpoints there are.
    counting: Option<BoxFuture<'static, Option<usize>>>,
    choice: Choice,
    start: Instant,
    looks: Interval,
    news: VecDeque<News>,
    /// Slices have been listed and endpoints counted.
    counted: bool,
    /// The end of the list has been told.
    told: bool,
}

impl Reading {
    async fn next(&mut self) -> News {
        loop {
            if let Some(news) = self.news.pop_front() {
                return news;
            }
            if self.choice.reads_endpoints() && self.endpoints.is_none() {
                tracing::info!("slices do not say all: endpoints are read as well");
                self.endpoints = Some(Box::pin(watch(Api::all(self.client.clone()))));
            }
            let counting = OptionFuture::from(self.counting.as_mut());
            let endpoints = OptionFuture::from(self.endpoints.as_mut().map(|events| events.next()));
            tokio::select! {
                Some(event) = self.slices.next() => self.slice(event),
                Some(Some(event)) = endpoints => self.endpoint(event),
                Some(there_are) = counting => {
                    self.counting = None;
                    self.counted = true;
                    self.choice.all_listed(there_are);
                }
                _ = self.looks.tick(), if self.choice.looks() => self.look(),
            }
            if self.counted && !self.choice.is_listing() && !std::mem::replace(&mut self.told, true)
            {
                self.news.push_back(None);
            }
        }
    }

    fn slice(&mut self, event: Event<CiliumEndpointSlice>) {
        match event {
            Event::Applied(slice) => {
                let name: Arc<str> = Key::of(&slice).to_string().into();
                self.choice.listed(Arc::clone(&name), slice.endpoints.len());
                self.news.push_back(Some((name, source::slice(&slice))));
            }
            Event::Deleted(key) => {
                let name: Arc<str> = key.to_string().into();
                let alone = self.says_alone(&name);
                let now = self.start.elapsed();
                if self.choice.gone(&name, alone, now) {
                    self.forget(name);
                }
            }
            Event::Synced => self.counting = Some(count(self.client.clone()).boxed()),
        }
    }

    fn endpoint(&mut self, event: Event<CiliumEndpoint>) {
        let name = |key: &Key| -> Arc<str> { format!("{ENDPOINT}{key}").into() };
        match event {
            Event::Applied(endpoint) => {
                let (name, said) = (name(&Key::of(&endpoint)), source::endpoint(&endpoint));
                self.choice.heard(&name);
                self.news.push_back(Some((name, said)));
            }
            Event::Deleted(key) => self.forget(name(&key)),
            Event::Synced => {
                let held = self.choice.endpoints_listed();
                for name in held {
                    self.forget(name);
                }
            }
        }
    }

    fn look(&mut self) {
        let now = self.start.elapsed();
        let expired = self.choice.expired(now);
        for name in expired {
            self.forget(name);
        }
        if self.endpoints.is_none() {
            return;
        }
        let (alone, all) = self.cache.table(|table| table.said_alone(is_endpoint));
        if self.choice.enough(alone, all) {
            tracing::info!("slices say all: endpoints are not read any more");
            self.endpoints = None;
            for name in self.cache.table(|table| table.sources(is_endpoint)) {
                if self.says_alone(&name) {
                    self.choice.hold(name, now);
                } else {
                    self.forget(name);
                }
            }
        }
    }

    /// Whether nobody else in the cluster says some of what this source says.
    fn says_alone(&self, name: &Arc<str>) -> bool {
        self.cache.table(|table| table.says_alone(&Origin::Cluster(Arc::clone(name))))
    }

    fn forget(&mut self, name: Arc<str>) {
        self.news.push_back(Some((name, Said::default())));
    }
}

/// Most of the time there is nothing to look for: looks that were left out are not made up for.
fn looks() -> Interval {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

fn is_endpoint(name: &str) -> bool {
    name.starts_with(ENDPOINT)
}

/// How many endpoints there are, asked for by reading one; `None` if the server does not say.
async fn count(client: Client) -> Option<usize> {
    let one = ListParams::default().limit(1);
    match Api::<CiliumEndpoint>::all(client).list_metadata(&one).await {
        Ok(list) => {
            let others = list.metadata.remaining_item_count.unwrap_or(0);
            let more = list.metadata.continue_.is_some_and(|token| !token.is_empty());
            if more && others == 0 {
                return None;
            }
            usize::try_from(others).ok().map(|others| others + list.items.len())
        }
        Err(error) => {
            tracing::debug!(%error, "endpoints not counted");
            None
        }
    }
}

#[cfg(test)]
mod tests;
