//! Whatever strangers send to the registration port.
#![no_main]

use edge_router_fuzz::registration::survives;
use libfuzzer_sys::fuzz_target;

/// The first byte says whether a proper greeting goes ahead.
fuzz_target!(|data: &[u8]| {
    let Some((mode, bytes)) = data.split_first() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.unwrap().block_on(survives(bytes, mode & 1 == 1));
});
