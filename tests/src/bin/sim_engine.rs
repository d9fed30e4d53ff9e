//! A simulated vLLM engine on a port of its own.

fn main() {}
