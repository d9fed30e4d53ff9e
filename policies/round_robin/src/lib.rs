//! Instances take turns.
