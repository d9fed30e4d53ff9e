//! Calls to an instance beside the requests of clients: probes, and what the router asks or tells an
//! engine of its own accord.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};

use super::instance::Instance;
use crate::body::read::read_capped;
use crate::error::chain;
use crate::upstream::{LegRequest, Pool};

/// Metrics of an engine with many LoRA adapters run to some hundred kilobytes.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

impl Instance {
    /// Sends a call and reads its whole answer, both within `limit`.
    ///
    /// # Errors
    /// A sentence for people that says why there is no answer.
    pub async fn ask(
        &self,
        method: Method,
        path: &'static str,
        headers: HeaderMap,
        body: Bytes,
        limit: Duration,
    ) -> Result<(StatusCode, Bytes), String> {
        ask(self.pool(), method, path, headers, body, limit).await
    }
}

/// As [`Instance::ask`], of whoever is at the other end of `pool`.
///
/// # Errors
/// A sentence for people that says why there is no answer.
pub async fn ask(
    pool: &Arc<Pool>,
    method: Method,
    path: &'static str,
    headers: HeaderMap,
    body: Bytes,
    limit: Duration,
) -> Result<(StatusCode, Bytes), String> {
    let name = method.clone();
    let request =
        LegRequest { method, uri: Uri::from_static(path), headers, body: body.into(), repeatable: true };
    let answer = async {
        let response = pool.send(&request, limit).await.map_err(|e| chain(&e))?;
        let status = response.status();
        let body = read_capped(response.into_body(), MAX_ANSWER).await.map_err(|e| chain(&e))?;
        Ok((status, body))
    };
    let late = |_| Err(format!("{name} {path} was not answered within {limit:?}"));
    tokio::time::timeout(limit, answer).await.unwrap_or_else(late)
}
