//! HTTP/1.1 to one engine: a pool of connections that are retired before the engine closes them, and
//! sends that know whether anything can have reached the engine.
//!
//! Dropping a response body that is not at its end closes its connection. To the engines that is the
//! abort of the request (engine contract §0.5), so nothing here reads an unwanted answer to its end.

mod body;
mod connect;
mod pool;
mod send;

pub use body::{LegBody, ResponseBody};
pub use connect::ConnectError;
pub use pool::{Pool, PoolSettings};
pub use send::{LegRequest, SendError};
