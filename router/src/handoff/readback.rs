//! KV caches that decode instances keep for the next turn of a conversation.
//!
//! Reading one frees it, so each is given out once. It is kept under the conversation and the client's
//! credentials together, and given out only to a prompt that goes on from what it covers. Decode drops it
//! by its own clock (480 s in vLLM, engine contract §4.4), and a read after that fails the request: it is
//! forgotten here earlier.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use lru::LruCache;
use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

use crate::body::turn::Past;
use crate::headers::CREDENTIALS;

/// Whose conversation it is: a digest, so that no credential is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u128);

impl Owner {
    /// Of `conversation`, as the client with these headers names it.
    pub fn new(conversation: &str, headers: &HeaderMap) -> Self {
        let mut hasher = Xxh3::new();
        let mut piece = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        piece(conversation.as_bytes());
        for name in CREDENTIALS {
            let values = headers.get_all(name);
            piece(name.as_bytes());
            values.iter().for_each(|value| piece(value.as_bytes()));
        }
        Self(hasher.digest128())
    }
}

/// One KV cache.
#[derive(Debug, Clone)]
pub struct Readback {
    /// JSON text of the KV transfer params that decode returned.
    pub params: Bytes,
    /// What it covers.
    pub past: Past,
    since: Instant,
}

/// All that are kept.
#[derive(Debug)]
pub struct Readbacks {
    kept: Mutex<Kept>,
    ttl: Duration,
    max_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    by_owner: LruCache<Owner, Readback>,
    bytes: usize,
}

/// Conversations beyond this number push out the one that was silent for longest.
const MAX_CONVERSATIONS: NonZeroUsize = NonZeroUsize::new(64 * 1024).unwrap();

/// What a KV cache takes here beside its params.
const OVERHEAD: usize = 256;

impl Readbacks {
    /// None, each of them to be forgotten after `ttl`, and the oldest when all take more than `max_bytes`.
    pub fn new(ttl: Duration, max_bytes: usize) -> Self {
        let kept = Kept { by_owner: LruCache::new(MAX_CONVERSATIONS), bytes: 0 };
        Self { kept: Mutex::new(kept), ttl, max_bytes }
    }

    /// Decode keeps what `past` covers where `params` say.
    pub fn keep(&self, owner: Owner, params: Bytes, past: Past) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(owner, Readback { params, past, since: Instant::now() });
        while kept.bytes > self.max_bytes && kept.forget_oldest() {}
    }

    /// What is kept for `owner` and not too old. It is not given out again.
    pub fn take(&self, owner: Owner) -> Option<Readback> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(owner).filter(|readback| readback.since.elapsed() < self.ttl)
    }

    /// It was not used after all.
    pub fn put_back(&self, owner: Owner, readback: Readback) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.by_owner.contains(&owner) {
            kept.insert(owner, readback);
        }
    }
}

impl Kept {
    fn insert(&mut self, owner: Owner, readback: Readback) {
        self.bytes += readback.weight();
        if let Some((_, old)) = self.by_owner.push(owner, readback) {
            self.bytes -= old.weight();
        }
    }

    fn remove(&mut self, owner: Owner) -> Option<Readback> {
        let readback = self.by_owner.pop(&owner)?;
        self.bytes -= readback.weight();
        Some(readback)
    }

    fn forget_oldest(&mut self) -> bool {
        let oldest = self.by_owner.pop_lru();
        self.bytes -= oldest.as_ref().map_or(0, |(_, readback)| readback.weight());
        oldest.is_some()
    }
}

impl Readback {
    fn weight(&self) -> usize {
        self.params.len() + OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::body::scan::Object;
    use crate::body::spoken::Spoken;
    use crate::body::turn::Turn;

    fn past() -> Past {
        let turn = Turn::of(&Object::scan("{\"token_ids\":[1,2]}".into()).unwrap(), &[]).unwrap();
        let mut spoken = Spoken::default();
        spoken.hear_answer(br#"{"choices":[{"token_ids":[3]}]}"#);
        turn.past(&spoken, 2).unwrap()
    }

    fn owner(conversation: &str, key: &'static str) -> Owner {
        let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static(key))]);
        Owner::new(conversation, &headers)
    }

    fn store() -> Readbacks {
        Readbacks::new(Duration::from_secs(450), 64 * 1024)
    }

    #[tokio::test(start_paused = true)]
    async fn one_is_given_out_once_and_in_time() {
        let (store, me) = (store(), owner("c", "me"));
        store.keep(me, "{}".into(), past());
        assert!(store.take(me).is_some() && store.take(me).is_none());
        store.keep(me, "{}".into(), past());
        tokio::time::advance(Duration::from_secs(450)).await;
        assert!(store.take(me).is_none());
    }

    #[test]
    fn nobody_gets_anothers() {
        let store = store();
        store.keep(owner("c", "me"), "{}".into(), past());
        for other in [owner("c", "you"), owner("d", "me"), Owner::new("c", &HeaderMap::new())] {
            assert!(store.take(other).is_none());
        }
        assert!(store.take(owner("c", "me")).is_some());
    }

    #[test]
    fn one_that_was_not_used_comes_back_unless_there_is_a_newer() {
        let (store, me) = (store(), owner("c", "me"));
        store.keep(me, "1".into(), past());
        let unused = store.take(me).unwrap();
        store.put_back(me, unused.clone());
        assert_eq!(store.take(me).unwrap().params, "1");
        store.keep(me, "2".into(), past());
        store.put_back(me, unused);
        assert_eq!(store.take(me).unwrap().params, "2");
    }

    #[test]
    fn they_are_bounded_by_what_they_take() {
        let store = store();
        for i in 0..1000 {
            store.keep(owner(&i.to_string(), "me"), Bytes::from(vec![b'x'; 1024]), past());
        }
        let kept = store.kept.lock().unwrap();
        assert_eq!(kept.bytes, kept.by_owner.len() * (1024 + OVERHEAD));
        assert!(kept.bytes <= 64 * 1024 && kept.by_owner.len() == 51);
        drop(kept);
        assert!(store.take(owner("999", "me")).is_some() && store.take(owner("0", "me")).is_none());
    }
}
