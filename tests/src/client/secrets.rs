//! What no client may ever read, in any answer that comes through a router: how engines hand KV caches over, and where
//! they are.

use std::fmt;
use std::sync::{Arc, Mutex};

use http::HeaderMap;

use crate::engine::Engine;
use crate::lock::lock;

/// Texts that belong to the inside.
const INSIDE: [&str; 3] = ["remote_engine_id", "remote_block_ids", "___prefill_addr_"];
/// Keys that every answer has, and that are null in each.
const NULL_KEYS: [&str; 2] = ["\"kv_transfer_params\"", "\"ec_transfer_params\""];
/// Longer than any of them, with what follows it: how far back a look must go that has seen the rest.
const OVERLAP: usize = 256;
/// What operators read, and no client.
const FOR_OPERATORS: [&str; 3] = ["/status", "/metrics", "/admin"];

/// What a router must keep to itself.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// Of each engine; they grow with its restarts.
    engine_ids: Vec<Arc<Mutex<Vec<String>>>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("engines", &self.engine_ids.len()).finish()
    }
}

impl Secrets {
    /// This engine's ids too, those that it has yet to draw included.
    pub(crate) fn add(&mut self, engine: &Engine) {
        self.engine_ids.push(engine.all_engine_ids());
    }

    /// Follows one answer; `None` if it is for operators.
    pub(crate) fn watch(self: &Arc<Self>, path: &str) -> Option<Watch> {
        let for_operators = FOR_OPERATORS.iter().any(|prefix| path.starts_with(prefix));
        (!for_operators).then(|| Watch { secrets: Arc::clone(self), seen: Vec::new(), path: path.to_owned() })
    }

    fn found_in(&self, text: &str) -> Option<String> {
        let ids: Vec<String> = self.engine_ids.iter().flat_map(|ids| lock(ids).clone()).collect();
        let mut texts = INSIDE.into_iter().chain(ids.iter().map(String::as_str));
        let inside = texts.find(|secret| text.contains(secret)).map(str::to_owned);
        inside.or_else(|| NULL_KEYS.into_iter().find(|key| is_said(text, key)).map(str::to_owned))
    }
}

/// Whether the key has a value here other than null, as far as can be seen.
fn is_said(text: &str, key: &str) -> bool {
    text.match_indices(key).any(|(at, _)| {
        let value = text.get(at + key.len()..).unwrap_or_default().trim_start().strip_prefix(':');
        value
            .map(str::trim_start)
            .is_some_and(|value| !value.starts_with("null") && !"null".starts_with(value))
    })
}

/// An answer that is being read.
pub(crate) struct Watch {
    secrets: Arc<Secrets>,
    seen: Vec<u8>,
    path: String,
}

impl Watch {
    /// Looks at the next bytes of the body.
    ///
    /// # Panics
    /// If they tell what a client must not know.
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        self.seen.extend_from_slice(bytes);
        self.look(&String::from_utf8_lossy(&self.seen));
        self.seen.drain(..self.seen.len().saturating_sub(OVERLAP));
    }

    /// Looks at the headers.
    ///
    /// # Panics
    /// If they tell what a client must not know.
    pub(crate) fn headers(&self, headers: &HeaderMap) {
        for value in headers.values() {
            self.look(&String::from_utf8_lossy(value.as_bytes()));
        }
    }

    fn look(&self, text: &str) {
        if let Some(secret) = self.secrets.found_in(text) {
            panic!("the answer to {} tells the client {secret}: {text}", self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_be_there_if_it_is_null() {
        let secrets = Secrets::default();
        for text in
            ["{\"kv_transfer_params\":null}", "\"kv_transfer_params\" : nu", "\"kv_transfer_params\"", "x"]
        {
            assert_eq!(secrets.found_in(text), None, "{text}");
        }
        for text in ["{\"kv_transfer_params\": {}}", "\"ec_transfer_params\":[", "a remote_engine_id"] {
            assert!(secrets.found_in(text).is_some(), "{text}");
        }
    }

    #[test]
    #[should_panic(expected = "remote_engine_id")]
    fn a_secret_that_comes_in_pieces_is_found() {
        let Some(mut watch) = Arc::new(Secrets::default()).watch("/v1/completions") else { return };
        watch.see(&[b'x'; 1000]);
        watch.see(b"remote_eng");
        watch.see(b"ine_id");
    }
}
