//! Host bindings generated from `wit/`.
#![allow(unsafe_code, missing_docs, unreachable_pub, reason = "generated code")]
#![allow(clippy::pedantic, clippy::too_many_lines, unused_qualifications, reason = "generated code")]

wasmtime::component::bindgen!({
    path: "../wit",
    world: "policy",
    imports: { default: trappable },
    exports: { default: async },
    with: { "edge-router:policy/request.request": super::host::Lent },
});
