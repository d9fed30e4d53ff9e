//! What a KV handle allows. Prefill's answer names KV blocks that it keeps for decode; naming them
//! wrongly kills or hangs a decode engine, and naming them late makes it read what has been written
//! there since, which shows as wrong text under a 200.

mod guard;
mod handle;
mod readback;
mod release;

pub use guard::{Destination, Keeps, Unsafe, check_decode, check_prefill};
pub use handle::Handle;
pub use readback::{Owner, Readback, Readbacks};
pub use release::Releaser;
