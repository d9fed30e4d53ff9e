//! The integration tests, one file per theme.
