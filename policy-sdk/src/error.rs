//! The one error type of a policy, and how its configuration is read.

use serde::de::DeserializeOwned;

/// Why a policy could not decide or be configured. The text reaches the
/// router's log, so it should say what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

impl PolicyError {
    /// An error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl From<String> for PolicyError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for PolicyError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<serde_json::Error> for PolicyError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// Reads the operator's configuration into a struct of the policy's own.
///
/// Give that struct `#[serde(deny_unknown_fields, default)]`: a misspelt key
/// then is an error that lists the known ones, and every key is optional.
///
/// ```
/// #[derive(serde::Deserialize, Default, Debug)]
/// #[serde(deny_unknown_fields, default)]
/// struct Config { choices: u32 }
///
/// let error = edge_router_policy::parse_config::<Config>(r#"{"choices": "two"}"#).unwrap_err();
/// assert!(error.to_string().starts_with("`choices`: invalid type: string"));
/// ```
///
/// # Errors
///
/// When the text is not a JSON object or doesn't fit `T`; the error names the
/// key.
pub fn parse_config<T: DeserializeOwned>(config: &str) -> Result<T, PolicyError> {
    // A derived struct would also be read from an array, by position.
    if !config.trim_ascii_start().starts_with('{') {
        return Err("the configuration must be a JSON object".into());
    }
    let mut json = serde_json::Deserializer::from_str(config);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.into_inner();
        // An unknown key is named by the cause already.
        if path == "." || cause.to_string().starts_with("unknown field") {
            PolicyError::from(cause)
        } else {
            PolicyError(format!("`{path}`: {cause}"))
        }
    })?;
    json.end()?;
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug, Default, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Config {
        choices: u32,
        limits: Limits,
    }

    #[derive(serde::Deserialize, Debug, Default, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Limits {
        tokens: u32,
    }

    fn refusal(config: &str) -> String {
        parse_config::<Config>(config).unwrap_err().to_string()
    }

    #[test]
    fn every_key_is_optional() {
        assert_eq!(parse_config::<Config>(" {} ").unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_known_ones() {
        assert_eq!(
            refusal(r#"{"choice": 2}"#),
            "unknown field `choice`, expected `choices` or `limits` at line 1 column 9"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_by_its_path() {
        assert!(refusal(r#"{"limits": {"tokens": -1}}"#).starts_with("`limits.tokens`: invalid value"));
    }

    #[test]
    fn anything_but_one_object_is_refused() {
        for config in ["", "null", "[1, {}]", "{} {}", "{"] {
            assert!(parse_config::<Config>(config).is_err(), "{config}");
        }
    }
}
