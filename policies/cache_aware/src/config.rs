//! The parameters, and what they may be.

use edge_router_policy::{PolicyError, parse_config};

/// See README.md for what each is good for.
#[derive(serde::Deserialize, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) cache_threshold: f64,
    pub(crate) balance_abs: u32,
    pub(crate) balance_tokens_abs: u32,
    pub(crate) balance_rel: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { cache_threshold: 0.3, balance_abs: 64, balance_tokens_abs: 8192, balance_rel: 1.5 }
    }
}

impl Config {
    pub(crate) fn read(text: &str) -> Result<Self, PolicyError> {
        let config: Self = parse_config(text)?;
        if !(0.0..=1.0).contains(&config.cache_threshold) {
            return Err("`cache_threshold` must be from 0 to 1: a share of the prompt".into());
        }
        // JSON has no infinity, and NaN is not in any range.
        if !(1.0..).contains(&config.balance_rel) {
            return Err("`balance_rel` must be at least 1: a multiple of the least load".into());
        }
        Ok(config)
    }

    /// Whether enough of the prompt is cached to prefer an instance for it.
    pub(crate) fn is_useful(&self, cached_tokens: u32, prompt_tokens: u32) -> bool {
        cached_tokens > 0 && f64::from(cached_tokens) > self.cache_threshold * f64::from(prompt_tokens)
    }
}
