//! Reads all objects of a kind page by page, for duties that look at everything once in a while.

use std::fmt::Debug;

use kube::Resource;
use kube::api::{Api, ListParams};
use kube::core::{ObjectList, PartialObjectMeta};
use serde::de::DeserializeOwned;

use crate::failure::{Failure, NOT_FOUND};

/// Objects asked for at once.
const PAGE: u32 = 500;

/// Hands the metadata of every object that `fields` selects to `look`.
///
/// A kind that the API server does not know has no objects.
pub(crate) async fn metadata<K>(
    api: &Api<K>,
    kind: &'static str,
    fields: &str,
    mut look: impl FnMut(PartialObjectMeta<K>),
) -> Result<(), Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = first_page(fields);
    loop {
        match next(api.list_metadata(&params).await, kind, &mut params)? {
            Some(items) => items.into_iter().for_each(&mut look),
            None => return Ok(()),
        }
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}

/// Hands every object to `look`.
pub(crate) async fn objects<K>(
    api: &Api<K>,
    kind: &'static str,
    mut look: impl FnMut(K),
) -> Result<(), Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = first_page("");
    loop {
        match next(api.list(&params).await, kind, &mut params)? {
            Some(items) => items.into_iter().for_each(&mut look),
            None => return Ok(()),
        }
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}

fn first_page(fields: &str) -> ListParams {
    ListParams::default().limit(PAGE).fields(fields)
}

/// The items of a page; sets where the next one begins.
fn next<T: Clone>(
    page: Result<ObjectList<T>, kube::Error>,
    kind: &'static str,
    params: &mut ListParams,
) -> Result<Option<Vec<T>>, Failure> {
    match page.map_err(Failure::of("list", kind, "")) {
        Ok(page) => {
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            Ok(Some(page.items))
        }
        Err(failure) if failure.code() == Some(NOT_FOUND) => Ok(None),
        Err(failure) => Err(failure),
    }
}
