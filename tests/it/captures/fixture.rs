//! One recorded exchange: `<name>.req.json`, `<name>.headers`, and `<name>.json`, `.sse` or `.txt`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde_json::Value;

/// A recorded request, and the answer to it.
pub(super) struct Fixture {
    /// The file name without its ending.
    pub(super) name: String,
    request: Value,
}

impl Fixture {
    /// All recorded exchanges, by name.
    pub(super) fn all() -> Result<Vec<Self>> {
        let mut names: Vec<String> = fs::read_dir(directory())?
            .filter_map(|entry| {
                entry.ok()?.file_name().to_str()?.strip_suffix(".req.json").map(str::to_owned)
            })
            .collect();
        names.sort();
        names.into_iter().map(Self::open).collect()
    }

    fn open(name: String) -> Result<Self> {
        let request = fs::read(directory().join(format!("{name}.req.json"))).context(name.clone())?;
        Ok(Self { name, request: serde_json::from_slice(&request)? })
    }

    pub(super) fn method(&self) -> String {
        self.request["method"].as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn path(&self) -> String {
        self.request["path"].as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn headers(&self) -> Vec<(String, String)> {
        let headers = self.request["headers"].as_object().into_iter().flatten();
        headers.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    }

    /// The request's body; one that is no JSON was recorded as a string.
    pub(super) fn body(&self) -> Bytes {
        match &self.request["body"] {
            Value::Null => Bytes::new(),
            Value::String(text) => text.clone().into(),
            json => json.to_string().into(),
        }
    }

    /// The prefill whose blocks this request names.
    pub(super) fn prefill_of(&self) -> Option<Self> {
        self.request.pointer("/body/kv_transfer_params/remote_block_ids")?.as_array()?;
        let (first, _) = self.name.rsplit_once("-2-").or_else(|| self.name.rsplit_once("-3-")).unzip();
        let name = first.map(|name| format!("{name}-1-prefill"));
        let name = name.or_else(|| Some(format!("p-ask-{}", self.name.strip_prefix("d-")?)));
        Self::open(name?).ok()
    }

    pub(super) fn status(&self) -> Result<u16> {
        let head = self.head()?;
        Ok(head.split_whitespace().nth(1).context("no status")?.parse()?)
    }

    pub(super) fn answer_header_names(&self) -> Result<Vec<String>> {
        let head = self.head()?;
        let names = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let mut names: Vec<String> = names.map(|(name, _)| name.to_owned()).collect();
        names.sort();
        Ok(names)
    }

    pub(super) fn answer_header(&self, name: &str) -> Result<Option<String>> {
        let head = self.head()?;
        let values = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        Ok(values.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next())
    }

    /// The answer's body, whichever kind it is.
    pub(super) fn answer(&self) -> Result<String> {
        let files = ["json", "sse", "txt"].map(|kind| directory().join(format!("{}.{kind}", self.name)));
        let file = files.iter().find(|file| file.exists()).context("no recorded body")?;
        Ok(fs::read_to_string(file)?)
    }

    fn head(&self) -> Result<String> {
        Ok(fs::read_to_string(directory().join(format!("{}.headers", self.name)))?)
    }
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/captures")
}
