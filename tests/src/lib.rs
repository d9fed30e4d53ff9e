//! Everything the end-to-end tests of edge-router stand on.
