//! What MoRIIO needs to know of an engine, from the instance's labels.

use std::fmt;

use crate::Instance;
use crate::connectors::address;
use crate::connectors::labels::{self, LabelError, malformed};

const REMEDY: &str =
    "engines that register bring it along (--registration-listen); else write it down with the instance";

/// Who moves the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Decode reads it from prefill.
    Read,
    /// Prefill writes it to decode.
    Write,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
        })
    }
}

/// One engine with the MoRIIO connector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of its HTTP server, which errors name it by.
    pub(super) address: String,
    pub(super) host: String,
    pub(super) handshake_port: u16,
    pub(super) notify_port: u16,
    pub(super) mode: Mode,
    pub(super) dp_size: u32,
    pub(super) tp_size: u32,
}

impl Peer {
    /// Reads the labels `transfer_mode` and `zmq_address`, as the engine
    /// announces it: `host:<ip>,handshake:<port>,notify:<port>`. In place of
    /// the latter there may be the labels `handshake_port` and `notify_port`,
    /// and `host` if it is not that of the instance's address.
    ///
    /// # Errors
    ///
    /// When one is missing or can't be read; the error names instance and
    /// label.
    pub fn of(instance: &Instance) -> Result<Self, LabelError> {
        let (host, handshake_port, notify_port) = match instance.label("zmq_address") {
            Some(text) => announced(instance, text)?,
            None => (
                instance.label("host").unwrap_or_else(|| address::host(&instance.address)).to_owned(),
                port(instance, "handshake_port")?,
                port(instance, "notify_port")?,
            ),
        };
        Ok(Self {
            address: instance.address.clone(),
            host,
            handshake_port,
            notify_port,
            mode: mode(instance)?,
            dp_size: instance.dp_size,
            tp_size: instance.tp_size,
        })
    }

    /// As the engine announces it.
    pub(super) fn zmq_address(&self) -> String {
        format!("host:{},handshake:{},notify:{}", self.host, self.handshake_port, self.notify_port)
    }
}

fn announced(instance: &Instance, text: &str) -> Result<(String, u16, u16), LabelError> {
    // At the first colon only: the host may be an IPv6 address.
    let segment = |name: &str| {
        let mut segments = text.split(',').filter_map(|segment| segment.split_once(':'));
        segments.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    let host = segment("host").filter(|host| !host.is_empty());
    host.zip(segment("handshake").and_then(labels::port))
        .zip(segment("notify").and_then(labels::port))
        .map(|((host, handshake), notify)| (host.to_owned(), handshake, notify))
        .ok_or_else(|| malformed(instance, "zmq_address", text, "`host:<ip>,handshake:<port>,notify:<port>`"))
}

fn port(instance: &Instance, label: &'static str) -> Result<u16, LabelError> {
    let value = required(instance, label)?;
    labels::port(value).ok_or_else(|| malformed(instance, label, value, "a port"))
}

fn mode(instance: &Instance) -> Result<Mode, LabelError> {
    match required(instance, "transfer_mode")? {
        "READ" => Ok(Mode::Read),
        "WRITE" => Ok(Mode::Write),
        other => Err(malformed(instance, "transfer_mode", other, "READ or WRITE")),
    }
}

fn required<'a>(instance: &'a Instance, label: &'static str) -> Result<&'a str, LabelError> {
    labels::required(instance, label, REMEDY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn peer(labels: &[(&str, &str)]) -> Result<Peer, String> {
        let fleet = testing::fleet().prefill("10.0.0.1:8000");
        let fleet = labels.iter().fold(fleet, |fleet, (name, value)| fleet.label(name, value));
        Peer::of(&fleet.instances()[0]).map_err(|error| error.to_string())
    }

    #[test]
    fn an_announced_address_is_split_at_the_first_colon_of_each_segment() {
        for (text, host) in [
            ("host:10.0.0.9,handshake:6301,notify:61005", "10.0.0.9"),
            (" host:2001:db8::7, handshake:6301 ,notify:61005,later:x:y", "2001:db8::7"),
        ] {
            let peer = peer(&[("zmq_address", text), ("transfer_mode", "READ")]).unwrap();
            assert_eq!((peer.host.as_str(), peer.handshake_port, peer.notify_port), (host, 6301, 61005));
        }
    }

    #[test]
    fn single_labels_do_as_well_and_the_host_is_the_instances() {
        let labels = [("handshake_port", "6301"), ("notify_port", "61005"), ("transfer_mode", "WRITE")];
        assert_eq!(peer(&labels).unwrap().zmq_address(), "host:10.0.0.1,handshake:6301,notify:61005");
        let with_host = [&labels[..], &[("host", "10.1.0.1")]].concat();
        assert_eq!(peer(&with_host).unwrap().host, "10.1.0.1");
    }

    #[test]
    fn a_missing_label_is_named_with_its_instance() {
        let zmq = ("zmq_address", "host:10.0.0.9,handshake:6301,notify:61005");
        for (labels, missing) in [(&[][..], "handshake_port"), (&[zmq], "transfer_mode")] {
            let refusal = peer(labels).unwrap_err();
            let expected = format!("instance 10.0.0.1:8000 has no label `{missing}`: {REMEDY}");
            assert_eq!(refusal, expected);
        }
    }

    #[test]
    fn a_label_that_makes_no_sense_is_named_with_what_it_may_be() {
        for text in [
            "10.0.0.9:6301",
            "host:h,handshake:x,notify:1",
            "host:h,handshake:1",
            "host:,handshake:1,notify:1",
        ] {
            let refusal = peer(&[("zmq_address", text)]).unwrap_err();
            assert!(refusal.contains("must be `host:<ip>,handshake:<port>,notify:<port>`"), "{refusal}");
        }
        let labels = [("handshake_port", "0"), ("notify_port", "1")];
        assert!(peer(&labels).unwrap_err().ends_with("label handshake_port=`0` must be a port"));
        let labels = [("handshake_port", "1"), ("notify_port", "1"), ("transfer_mode", "read")];
        assert!(peer(&labels).unwrap_err().ends_with("label transfer_mode=`read` must be READ or WRITE"));
    }
}
