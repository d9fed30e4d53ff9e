//! Project commands.

fn main() {}
