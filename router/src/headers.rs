//! Kinds of HTTP headers, by what becomes of them at the router. Names in lower case.

/// Of one connection only (RFC 9110 §7.6.1), with those that never became standard: they end here, in
/// both directions.
pub const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What tells who the client is: never shown to a policy, and never set by one.
pub const CREDENTIALS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// What the router writes for each leg, or leaves out: a body that was decoded has no coding, and an
/// answer that is compressed could not be looked through for what must not reach the client.
pub const PER_LEG: [&str; 5] = ["host", "content-length", "content-encoding", "accept-encoding", "expect"];

/// Whether `name`, in any case, is one of `kind`.
pub fn is(name: &str, kind: &[&str]) -> bool {
    kind.iter().any(|one| one.eq_ignore_ascii_case(name))
}
