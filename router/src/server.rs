//! The side that faces clients: listening, connections, and which path leads where.

mod admin;
mod dispatch;
mod fanout;
pub mod listen;
mod models;
pub mod route;
mod stall;
mod status;

pub use dispatch::dispatch;
