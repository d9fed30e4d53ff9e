//! Event streams, cut anywhere.
#![no_main]

use bytes::Bytes;
use edge_router_fuzz::body::scan::Object;
use edge_router_fuzz::body::sse::{EventFilter, PRIVATE_FIELDS, has_private_field};
use libfuzzer_sys::fuzz_target;

/// The first byte is the length of the pieces.
fuzz_target!(|data: &[u8]| {
    let Some((step, stream)) = data.split_first() else { return };
    let mut filter = EventFilter::default();
    let mut out = Vec::new();
    for piece in stream.chunks(usize::from(*step).max(1)) {
        out.extend_from_slice(&filter.push(Bytes::copy_from_slice(piece)));
    }
    out.extend_from_slice(&filter.finish());
    let _ = filter.usage();
    if !has_private_field(stream) {
        assert_eq!(out, stream);
    }
    for line in out.split(|b| *b == b'\n') {
        let Some(data) = line.strip_prefix(b"data:") else { continue };
        let Ok(object) = Object::scan(Bytes::copy_from_slice(data.trim_ascii())) else { continue };
        let plain = |name: &&&str| has_private_field(data) && object.is_set(name);
        assert!(PRIVATE_FIELDS.iter().find(plain).is_none(), "{:?}", String::from_utf8_lossy(line));
    }
});
