//! The simulated engine itself.
