//! Which headers cross the router.

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::headers::{CREDENTIALS, HOP_BY_HOP, PER_LEG};

/// Not the client's to set: its id may come twice, a data-parallel rank is the policy's choice, and the
/// admin key is for this router alone.
const REPLACED: [&str; 3] = ["x-request-id", "x-data-parallel-rank", "x-api-key"];

/// The id of a request.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Pins a request to a rank of an engine.
pub(super) const X_DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// The client's headers as they go to the engines. Where the engines have a key of their own, the
/// client's credentials stay here.
pub(super) fn for_engines(client: &HeaderMap, engine_key: Option<&HeaderValue>) -> HeaderMap {
    let mut headers = client.clone();
    strip_hop_by_hop(&mut headers);
    for name in PER_LEG.into_iter().chain(REPLACED) {
        headers.remove(name);
    }
    if let Some(key) = engine_key {
        CREDENTIALS.iter().for_each(|name| drop(headers.remove(*name)));
        headers.insert(AUTHORIZATION, key.clone());
    }
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    headers
}

/// An engine's headers as they go to the client.
pub(super) fn for_client(mut engine: HeaderMap) -> HeaderMap {
    strip_hop_by_hop(&mut engine);
    engine.remove(X_REQUEST_ID);
    engine
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    named.iter().for_each(|name| drop(headers.remove(name)));
    HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(*name)));
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;

    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn what_belongs_to_a_connection_stays_there() {
        let client = map(&[
            ("connection", "keep-alive, x-secret"),
            ("x-secret", "1"),
            ("te", "trailers"),
            ("proxy-authorization", "x"),
            ("content-length", "5"),
            ("x-data-parallel-rank", "3"),
            ("x-request-id", "dup-1"),
            ("traceparent", "00-1"),
            ("authorization", "Bearer client"),
        ]);
        let expected = map(&[
            ("traceparent", "00-1"),
            ("authorization", "Bearer client"),
            ("content-type", "application/json"),
        ]);
        assert_eq!(for_engines(&client, None), expected);
    }

    #[test]
    fn the_engines_own_key_replaces_the_clients() {
        let key = HeaderValue::from_static("Bearer engine");
        let headers = for_engines(&map(&[("authorization", "Bearer client"), ("cookie", "s=1")]), Some(&key));
        assert_eq!((&headers[AUTHORIZATION], headers.get(COOKIE)), (&key, None));
    }

    #[test]
    fn answers_keep_their_other_headers_with_all_values() {
        let mut engine = map(&[("connection", "x-drop"), ("x-drop", "1"), ("keep-alive", "timeout=5")]);
        engine.append("set-cookie", HeaderValue::from_static("a=1"));
        engine.append("set-cookie", HeaderValue::from_static("b=2"));
        let value = HeaderValue::from_bytes(b"\xc4").unwrap();
        engine.insert("x-custom", value.clone());
        let out = for_client(engine);
        assert_eq!(out.len(), 3);
        assert_eq!(out.get_all("set-cookie").iter().count(), 2);
        assert_eq!(out["x-custom"], value);
    }
}
