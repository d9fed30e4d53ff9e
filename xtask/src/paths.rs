//! Where things lie in this repository.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Target directory of the native builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Target directory of the policies: another compiler may build them, and
/// either would throw away what the other has built.
pub(crate) fn policies_target() -> PathBuf {
    target().join("policies")
}
