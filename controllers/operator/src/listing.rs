//! Reads all objects of a kind page by page, for duties that look at everything once in a while.

use std::fmt::Debug;

use kube::Resource;
use kube::api::{Api, ListParams};
use kube::core::{ObjectList, PartialObjectMeta};
use serde::de::DeserializeOwned;

use crate::failure::{Failure, NOT_FOUND};

/// Objects asked for at once, where nothing else is said.
pub(crate) const PAGE: u32 = 500;

/// The group whose kinds this operator registers; one that is switched off is not there.
const OURS: &str = "cilium.io";

/// Hands the metadata of every object that `params` select to `look`.
///
/// A kind of ours that the API server does not know has no objects.
pub(crate) async fn metadata<K>(
    api: &Api<K>,
    kind: &'static str,
    params: ListParams,
    mut look: impl FnMut(PartialObjectMeta<K>),
) -> Result<(), Failure>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut params = params.limit(PAGE);
    loop {
        let page = api.list_metadata(&params).await;
        page_of::<K, _>(page, kind, &mut params)?.into_iter().for_each(&mut look);
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}

/// Hands every object to `look`, reading so many at once: fewer than usual where they are large.
pub(crate) async fn objects_by<K>(
    page: u32,
    api: &Api<K>,
    kind: &'static str,
    mut look: impl FnMut(K),
) -> Result<(), Failure>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().limit(page);
    loop {
        let page = api.list(&params).await;
        page_of::<K, _>(page, kind, &mut params)?.into_iter().for_each(&mut look);
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}

/// The items of a page; sets where the next one begins.
fn page_of<K: Resource<DynamicType = ()>, T: Clone>(
    page: Result<ObjectList<T>, kube::Error>,
    kind: &'static str,
    params: &mut ListParams,
) -> Result<Vec<T>, Failure> {
    let first = params.continue_token.take().is_none();
    match page.map_err(Failure::of("list", kind, "")) {
        Ok(page) => {
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            Ok(page.items)
        }
        // A core kind, or a kind that was there a page ago, cannot be unknown: something else is wrong, and
        // whoever takes that for "there are none" deletes what is in use.
        Err(failure) if failure.code() == Some(NOT_FOUND) && first && K::group(&()) == OURS => {
            Ok(Vec::new())
        }
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use cilia_crds::CiliumEndpoint;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Resource;
    use kube::api::ListParams;
    use kube::core::{ObjectList, PartialObjectMeta, Status};

    use super::page_of;

    fn unknown<K: Resource<DynamicType = ()> + Clone>(params: &mut ListParams) -> Option<usize> {
        let answer = Status::failure("no such kind", "NotFound").with_code(404).boxed();
        let page: Result<ObjectList<PartialObjectMeta<K>>, _> = Err(kube::Error::Api(answer));
        page_of::<K, _>(page, "kind", params).ok().map(|items| items.len())
    }

    #[test]
    fn only_a_kind_of_ours_may_be_unknown_and_only_from_the_start() {
        let mut params = ListParams::default();
        assert_eq!(unknown::<CiliumEndpoint>(&mut params), Some(0));
        assert_eq!(params.continue_token, None);
        assert_eq!(unknown::<Pod>(&mut params), None);
        let mut second = ListParams::default().continue_token("next");
        assert_eq!(unknown::<CiliumEndpoint>(&mut second), None);
    }
}
