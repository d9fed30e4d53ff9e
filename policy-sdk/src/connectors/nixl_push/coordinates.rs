//! Where prefill will be found, before it has answered.

use serde_json::json;

use crate::connectors::labels::{self, LabelError};
use crate::connectors::{DATA_PARALLEL_RANK, KV_TRANSFER_PARAMS, agreed};
use crate::{Instance, Leg, Placement, Request};

const SIDE_CHANNEL: &str = "side_channel";
const PP_SIZE: &str = "pp_size";
const REMEDY: &str = "write it down with the instance, or the legs run one after the other";

/// What decode must be told of a prefill instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// One for each data-parallel rank.
    engine_ids: Vec<String>,
    host: String,
    /// Of rank 0.
    port: u16,
    tp_size: u32,
    pp_size: u32,
}

impl Coordinates {
    /// Reads the labels `engine_id` (of more ranks `engine_id_dp1` and so on),
    /// `side_channel` (`host:port`, of rank 0; each rank has the next port)
    /// and `pp_size`, 1 if it is not there.
    ///
    /// # Errors
    ///
    /// When one is missing or can't be read.
    pub fn of(instance: &Instance) -> Result<Self, LabelError> {
        let engine_ids = labels::engine_ids(instance, REMEDY)?;
        let text = labels::required(instance, SIDE_CHANNEL, REMEDY)?;
        let last = u16::try_from(engine_ids.len().saturating_sub(1)).ok();
        let fits = |(_, port): &(&str, u16)| last.is_some_and(|last| port.checked_add(last).is_some());
        let Some((host, port)) = labels::host_and_port(text).filter(fits) else {
            return Err(labels::malformed(instance, SIDE_CHANNEL, text, "host:port"));
        };
        let pp_size = match instance.label(PP_SIZE) {
            None => 1,
            Some(text) => text
                .parse()
                .ok()
                .filter(|size| *size > 0)
                .ok_or_else(|| labels::malformed(instance, PP_SIZE, text, "a number above 0"))?,
        };
        Ok(Self { engine_ids, host: host.to_owned(), port, tp_size: instance.tp_size, pp_size })
    }

    /// The prefill leg on the rank that decode will be told.
    pub fn pinned(&self, leg: Leg, request: &Request<'_>, placement: Placement) -> Leg {
        if placement.dp_rank.is_some() || self.engine_ids.len() == 1 {
            return leg;
        }
        leg.header(DATA_PARALLEL_RANK, self.rank(request, placement).to_string())
    }

    /// The decode leg that starts together with prefill's. `None` if the
    /// instance has no such rank.
    pub fn decode_leg(&self, request: &Request<'_>, placement: Placement) -> Option<Leg> {
        let rank = u16::try_from(self.rank(request, placement)).ok()?;
        let params = json!({
            "do_remote_decode": false,
            "do_remote_prefill": true,
            "remote_engine_id": self.engine_ids.get(usize::from(rank))?,
            "remote_request_id": engines_request_id(request),
            "remote_host": self.host,
            "remote_port": self.port.checked_add(rank)?,
            "tp_size": self.tp_size,
            "pp_size": self.pp_size,
            "transfer_mode": "push",
        });
        Some(Leg::new().set_json(KV_TRANSFER_PARAMS, params))
    }

    fn rank(&self, request: &Request<'_>, placement: Placement) -> u32 {
        let ranks = u32::try_from(self.engine_ids.len()).unwrap_or(u32::MAX);
        placement.dp_rank.unwrap_or_else(|| agreed::rank(&request.id(), ranks))
    }
}

/// The request's id within prefill, but for the random digits that the engine
/// appends. Decode's heartbeats name it, and prefill knows requests by their
/// whole id only: they prolong a lease where the engine appends none
/// (`VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1`), and are ignored otherwise.
fn engines_request_id(request: &Request<'_>) -> String {
    let id = request.id();
    match request.endpoint().as_ref() {
        "/v1/chat/completions" => format!("chatcmpl-{id}"),
        "/v1/completions" => format!("cmpl-{id}-0"),
        "/inference/v1/generate" => format!("generate-tokens-{id}"),
        _ => id.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::golden::{assert_leg, edited, golden};
    use crate::testing::{self, Fleet};

    fn unlabelled() -> Fleet {
        testing::fleet().prefill("10.0.0.7:8000").tp_size(2)
    }

    fn labelled() -> Fleet {
        unlabelled().label("side_channel", "10.0.0.7:5600").label("engine_id", "5cd1")
    }

    fn of(fleet: &Fleet) -> Result<Coordinates, String> {
        Coordinates::of(&fleet.instances()[0]).map_err(|error| error.to_string())
    }

    fn at(dp_rank: Option<u32>) -> Placement {
        Placement { instance: 1, dp_rank }
    }

    #[test]
    fn the_golden_leg() {
        let client = golden!("nixl_push/client");
        let request = testing::request("/v1/completions").json(client);
        let leg = of(&labelled()).unwrap().decode_leg(&request.as_request(), at(None)).unwrap();
        assert_leg(client, &leg, golden!("nixl_push/decode_leg_concurrent"));
    }

    #[test]
    fn both_legs_speak_of_one_rank() {
        let two = of(&labelled().dp_size(2).label("engine_id_dp1", "e_dp1").label("pp_size", "4")).unwrap();
        for pinned in [None, Some(0), Some(1)] {
            for id in 0..8 {
                let request = testing::request("/v1/chat/completions").json("{}").id(&format!("r-{id}"));
                let request = request.as_request();
                let header = two.pinned(Leg::new(), &request, at(pinned)).headers.pop();
                assert_eq!(header.is_none(), pinned.is_some(), "what is pinned already has its header");
                let rank = pinned.unwrap_or_else(|| header.unwrap().1.parse().unwrap());
                let told = edited("{}", &two.decode_leg(&request, at(pinned)).unwrap())["kv_transfer_params"]
                    .clone();
                let expected = if rank == 0 { ("5cd1", 5600) } else { ("e_dp1", 5601) };
                assert_eq!(
                    (&told["remote_engine_id"], &told["remote_port"]),
                    (&json!(expected.0), &json!(expected.1))
                );
                assert_eq!((&told["pp_size"], &told["tp_size"]), (&json!(4), &json!(2)));
            }
        }
        let request = testing::request("/v1/chat/completions").json("{}");
        assert_eq!(two.decode_leg(&request.as_request(), at(Some(2))), None);
    }

    #[test]
    fn the_only_rank_is_not_pinned() {
        let request = testing::request("/v1/completions");
        let leg = of(&labelled()).unwrap().pinned(Leg::new(), &request.as_request(), at(None));
        assert_eq!(leg, Leg::new());
    }

    #[test]
    fn the_request_is_named_as_prefill_names_it() {
        for (endpoint, expected) in [
            ("/v1/chat/completions", "chatcmpl-request-1"),
            ("/v1/completions", "cmpl-request-1-0"),
            ("/inference/v1/generate", "generate-tokens-request-1"),
            ("/v1/other", "request-1"),
        ] {
            assert_eq!(engines_request_id(&testing::request(endpoint).as_request()), expected);
        }
    }

    #[test]
    fn a_label_that_is_missing_or_makes_no_sense_is_named() {
        for (fleet, said) in [
            (unlabelled(), "has no label `engine_id`: "),
            (unlabelled().label("engine_id", "e"), "has no label `side_channel`: "),
            (labelled().dp_size(2), "has no label `engine_id_dp1`: "),
            (labelled().label("pp_size", "0"), "label pp_size=`0` must be a number above 0"),
        ] {
            let refusal = of(&fleet).unwrap_err();
            assert!(refusal.contains(said), "{refusal}");
        }
        let high = unlabelled().dp_size(2).label("engine_id", "a").label("engine_id_dp1", "b");
        for side_channel in ["10.0.0.7", "h:65535"] {
            let refusal = of(&high.clone().label("side_channel", side_channel)).unwrap_err();
            assert!(refusal.ends_with("must be host:port"), "{refusal}");
        }
    }
}
