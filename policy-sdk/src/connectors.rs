//! What the KV connectors of the engines want in each leg, as pure functions.
//! Connector policies and the router's own defaults call the same code.

pub mod nixl;
