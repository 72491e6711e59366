//! Reads keys: one, or all that begin alike, page by page.

use super::Client;
use crate::Error;
use crate::keys::range_end;
use crate::messages::{KeyValue, RangeRequest, RangeResponse};

const RANGE: &str = "/etcdserverpb.KV/Range";
/// Keys per page where all at once were too much.
const FIRST_CUT: i64 = 1024;
/// How often a list is begun anew because its revision was compacted meanwhile.
const RESTARTS: u32 = 3;

impl Client {
    /// The key, if there is one.
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
        let answer: RangeResponse = self.ask(("read", "get"), key, RANGE, &request).await?;
        self.heard(answer.header.as_ref());
        Ok(answer.kvs.into_iter().next())
    }

    /// Whether the key's last write, as of `revision`, was that of `written`: whether what is known of
    /// etcd's history is still its history.
    pub(crate) async fn remembers(
        &self,
        key: &[u8],
        written: i64,
        revision: i64,
    ) -> Result<bool, Error> {
        let request =
            RangeRequest { key: key.into(), revision, keys_only: true, ..RangeRequest::default() };
        let object = String::from_utf8_lossy(key);
        let answer: Result<RangeResponse, Error> =
            self.ask(("read", "get"), &object, RANGE, &request).await;
        match answer {
            Ok(answer) => Ok(answer.kvs.first().is_some_and(|kv| kv.mod_revision == written)),
            // It was compacted, or is to come yet.
            Err(Error::Rpc { code: tonic::Code::OutOfRange, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Every key that begins with `prefix`, in order, and the revision at which this was so.
    pub async fn list(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), Error> {
        let mut restarts = 0;
        loop {
            let mut all = Vec::new();
            match self.pages(prefix, false, |page| all.extend(page)).await {
                Ok(revision) => return Ok((all, revision)),
                // Its later pages at the revision of the first are no more to be had.
                Err(error) if error.is_compacted() && restarts < RESTARTS => restarts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The same, page by page, all at the revision of the first. A whole list counts as one request:
    /// its pages follow each other anyway. A `stale` list may be some member's older state.
    pub(crate) async fn pages(
        &self,
        prefix: &str,
        stale: bool,
        mut take: impl FnMut(Vec<KeyValue>),
    ) -> Result<i64, Error> {
        let mut request = RangeRequest {
            // No key is empty: the first one that there can be.
            key: if prefix.is_empty() { vec![0] } else { prefix.into() },
            range_end: range_end(prefix),
            limit: self.0.options.page,
            serializable: stale,
            ..RangeRequest::default()
        };
        loop {
            let action = ("read", "list");
            let answer: Result<RangeResponse, Error> = if request.revision == 0 {
                let at_least = if stale { 0 } else { self.0.connection.revision() };
                self.ask_since(at_least, action, prefix, RANGE, &request).await
            } else {
                self.0.connection.ask(action.1, prefix, RANGE, &request).await
            };
            let answer = match answer {
                // Huge values: fewer of them a page.
                Err(error) if error.is_too_long() && request.limit != 1 => {
                    let limit = if request.limit == 0 { FIRST_CUT } else { request.limit };
                    request.limit = (limit / 4).max(1);
                    continue;
                }
                answer => answer?,
            };
            let revision = self.heard(answer.header.as_ref());
            if request.revision == 0 {
                request.revision = revision;
            }
            let last = answer.kvs.last().map(|kv| kv.key.clone());
            take(answer.kvs);
            match last {
                Some(mut last) if answer.more => {
                    last.push(0);
                    request.key = last;
                }
                _ => return Ok(request.revision),
            }
        }
    }
}
