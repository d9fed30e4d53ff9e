//! Typed reading of a request's fields, refused in the words of the validation that real engines run first.

use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::{Map, Value};

use super::rejection::Rejection;

/// The top-level fields of a JSON request. An absent field and null are the same.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Checks the content type, parses the body.
    pub(crate) fn parse(headers: &HeaderMap, body: &Bytes) -> Result<Self, Rejection> {
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default();
        if !media_type.trim().eq_ignore_ascii_case("application/json") {
            return Err(Rejection::invalid(
                "Unsupported Media Type: Only 'application/json' is allowed",
                None,
            ));
        }
        if body.is_empty() {
            let detail = "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}";
            return Err(Rejection::invalid(detail, Some("body")));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => {
                let detail = "{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid \
                              dictionary or object to extract fields from'}";
                Err(Rejection::invalid(detail, Some("body")))
            }
            Err(error) => {
                let at = format!("body.{}", error.column());
                let detail = format!("{{'type': 'json_invalid', 'loc': '{at}', 'msg': 'JSON decode error'}}");
                Err(Rejection::invalid(&detail, Some(&at)))
            }
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>, Rejection> {
        self.typed(name, "float_parsing", "a valid number, unable to parse string as a number", Value::as_f64)
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, Rejection> {
        self.typed(
            name,
            "int_parsing",
            "a valid integer, unable to parse string as an integer",
            Value::as_i64,
        )
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&Value>, Rejection> {
        match self.get(name) {
            Some(value) if !value.is_object() => {
                Err(mistyped(name, "dict_type", "a valid dictionary", value))
            }
            other => Ok(other),
        }
    }

    /// The fields of an object inside.
    pub(crate) fn nested(&self, name: &str) -> Result<Option<Self>, Rejection> {
        Ok(self.object(name)?.and_then(Value::as_object).cloned().map(Self))
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&Vec<Value>>, Rejection> {
        match self.get(name) {
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(value) => Err(mistyped(name, "list_type", "a valid list", value)),
            None => Ok(None),
        }
    }

    pub(crate) fn missing(&self, name: &str) -> Rejection {
        let input = format!("<dict of {} items>", self.0.len());
        let detail = format!(
            "{{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required', 'input': '{input}'}}"
        );
        Rejection::invalid(&detail, Some(&format!("body.{name}")))
    }

    fn typed<T>(
        &self,
        name: &str,
        kind: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Rejection> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| mistyped(name, kind, wanted, value))
    }
}

fn mistyped(name: &str, kind: &str, wanted: &str, value: &Value) -> Rejection {
    let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let detail = format!(
        "{{'type': '{kind}', 'loc': 'body.{name}', 'msg': 'Input should be {wanted}', 'input': '{shown}'}}"
    );
    Rejection::invalid(&detail, Some(&format!("body.{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(content_type: &str, body: &'static str) -> Result<Fields, Rejection> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
        Fields::parse(&headers, &Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn a_content_type_may_have_parameters() {
        assert!(parse("application/json; charset=utf-8", "{}").is_ok());
        assert!(parse("text/plain", "{}").is_err());
    }

    #[test]
    fn null_is_absent_and_types_are_checked() {
        let fields = parse("application/json", r#"{"a":null,"b":"x","c":3}"#).ok().unwrap();
        assert!(fields.integer("a").is_ok_and(|value| value.is_none()));
        assert!(fields.integer("b").is_err());
        assert!(fields.integer("c").is_ok_and(|value| value == Some(3)));
        assert!(fields.object("b").is_err());
    }

    #[test]
    fn broken_bodies_are_refused() {
        for body in ["", "[1]", "{\"model\": \"tiny\", "] {
            assert!(parse("application/json", body).is_err(), "{body}");
        }
    }
}
