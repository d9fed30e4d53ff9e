//! Which headers cross the router.

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE,
    EXPECT, HOST, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Of one connection only (RFC 9110 §7.6.1), with the two that never became standard.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Written by the router for each leg, or of no use to an engine: its answers must come uncompressed,
/// and a data-parallel rank is the policy's choice.
const REPLACED: [HeaderName; 8] = [
    HOST,
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    ACCEPT_ENCODING,
    EXPECT,
    X_REQUEST_ID,
    X_DATA_PARALLEL_RANK,
    HeaderName::from_static("x-api-key"),
];

/// The id of a request.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Pins a request to a rank of an engine.
pub(super) const X_DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// The client's headers as they go to the engines. Where the engines have a key of their own, the
/// client's credentials stay here.
pub(super) fn for_engines(client: &HeaderMap, engine_key: Option<&HeaderValue>) -> HeaderMap {
    let mut headers = client.clone();
    strip_hop_by_hop(&mut headers);
    for name in REPLACED {
        headers.remove(name);
    }
    if let Some(key) = engine_key {
        headers.insert(AUTHORIZATION, key.clone());
        headers.remove(COOKIE);
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
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
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
