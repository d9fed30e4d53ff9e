//! The host part of an instance's address.

/// The host of `host:port`, an IPv6 address without its brackets.
pub(crate) fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn names_and_both_kinds_of_addresses_have_a_host() {
        for (address, expected) in [
            ("10.0.0.1:8000", "10.0.0.1"),
            ("[2001:db8::7]:8000", "2001:db8::7"),
            ("prefill-0.pool:8000", "prefill-0.pool"),
            ("alone", "alone"),
        ] {
            assert_eq!(host(address), expected);
        }
    }
}
