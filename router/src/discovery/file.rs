//! A roster in a file, read again whenever the file changes.
//!
//! The file is read when it has stood still for a while, so that one that is written in parts is not taken
//! for whole: the first part of a list is a list as well, and an empty file is a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use tokio::time::sleep;

use super::{Roster, RosterError, Source};
use crate::config::file::InstanceTable;
use crate::config::{self, ConfigError};
use crate::watch::{Changes, Looks};

/// The file is read when it has looked the same for this long.
const SETTLE: Duration = Duration::from_millis(200);
/// A thousand times what a large fleet needs.
const MAX_FILE: u64 = 64 << 20;

/// Why a file is no roster.
#[derive(Debug, Error)]
pub(super) enum FileError {
    #[error("can't be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("is larger than {MAX_FILE} bytes")]
    TooLarge,
    #[error("is not UTF-8")]
    NotText,
    #[error("{}: {}", .0.to_string().lines().next().unwrap_or_default(), .0.message())]
    Toml(#[from] toml::de::Error),
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Instance(#[from] ConfigError),
    #[error(transparent)]
    Roster(#[from] RosterError),
}

/// An empty roster must be written as one, `instance = []`: a file without a word is most likely one that
/// somebody is about to fill.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    instance: Vec<InstanceTable>,
}

fn parse(bytes: &[u8]) -> Result<Roster, FileError> {
    let text = std::str::from_utf8(bytes).map_err(|_| FileError::NotText)?;
    // No TOML begins with a brace.
    let tables: Tables =
        if text.trim_start().starts_with('{') { serde_json::from_str(text)? } else { toml::from_str(text)? };
    let instances: Result<Vec<_>, _> = tables.instance.iter().map(config::instance).collect();
    Ok(Roster::new(instances?)?)
}

async fn read(path: &Path) -> Result<Roster, FileError> {
    if tokio::fs::metadata(path).await?.len() > MAX_FILE {
        return Err(FileError::TooLarge);
    }
    parse(&tokio::fs::read(path).await?)
}

/// Announces what the file says, now and whenever it has changed, until the task is dropped.
pub(super) async fn watch(path: PathBuf, source: Source) {
    let mut changes = Changes::of([path.as_path()]);
    let mut read_as = None;
    loop {
        changes.next().await;
        let looks = Looks::of(&path);
        if read_as.as_ref() == Some(&looks) {
            continue;
        }
        sleep(SETTLE).await;
        let roster = read(&path).await;
        if Looks::of(&path) != looks {
            continue;
        }
        read_as = Some(looks);
        match roster {
            Ok(roster) => source.announce(roster),
            Err(error) => source.failed(format!("{}: {error}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_and_json_say_the_same() {
        let toml = "[[instance]]\nrole = 'prefill'\naddress = 'a:1'\ndp_size = 2\nlabels = { zone = 'b' }\n";
        let json = r#" {"instance": [{"role": "prefill", "address": "http://a:1/", "dp_size": 2, "labels": {"zone": "b"}}]}"#;
        assert_eq!(parse(toml.as_bytes()).unwrap(), parse(json.as_bytes()).unwrap());
        assert_eq!(parse(b"instance = []").unwrap(), Roster::default());
    }

    #[test]
    fn what_is_no_roster_is_told_with_its_place() {
        let one = "[[instance]]\nrole = 'prefill'\naddress = 'a:1'\n";
        for (text, said) in [
            ("", "missing field `instance`"),
            ("{", "JSON: EOF while parsing"),
            ("[[instance]]\nrole = 'pre", "TOML parse error at line 2"),
            ("[[instance]]\nrole = 'x'\naddress = 'a:1'", "instance.role: 'x' is none of"),
            ("[[instance]]\nrole = 'decode'\naddress = 'a'", "instance.address: 'a': no port"),
            (&format!("{one}{one}"), "instance a:1 is named twice"),
            (&format!("{one}more = 1"), "unknown field `more`"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
        assert_eq!(parse(b"\xff").unwrap_err().to_string(), "is not UTF-8");
    }
}
