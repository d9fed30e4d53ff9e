//! One leg to an encoder: some of the request's media, and nothing of its text.

use bytes::Bytes;
use edge_router_policy::connectors::EC_TRANSFER_PARAMS;
use edge_router_policy::connectors::ec::{Encoding, Modality, encodings};
use edge_router_policy::{InstanceId, Phase};
use http::StatusCode;
use serde_json::{Value, json};

use super::push::Push;
use crate::app::App;
use crate::body::media::MediaItem;
use crate::body::scan::Object;
use crate::body::splice::Segments;
use crate::error::Error;
use crate::pipeline::answer::Answer;
use crate::pipeline::attempt::Attempt;
use crate::pipeline::exchange::exchange;
use crate::pipeline::schedule::Scheduled;
use crate::upstream::LegRequest;

/// Fields of the client's request that shape an encoding, or say how urgent it is (engine contract §7).
const PASSED: [&str; 4] = ["mm_processor_kwargs", "media_io_kwargs", "priority", "session_id"];

/// Items for one encoder: images together, others alone.
pub(super) struct Leg {
    scheduled: Scheduled,
    /// By their places among the request's items.
    pub(super) items: Vec<usize>,
    modality: Modality,
}

/// How the encoder has answered.
pub(super) enum LegEnd {
    /// For each of the leg's items, its features.
    Encoded(Vec<Vec<Encoding>>),
    Refused(Answer),
}

impl Leg {
    pub(super) fn new(scheduled: Scheduled, item: usize, modality: Modality) -> Self {
        Self { scheduled, items: vec![item], modality }
    }

    pub(super) fn instance(&self) -> InstanceId {
        self.scheduled.chosen.instance.id()
    }

    /// Whether another image for the instance in `scheduled` may go with it.
    pub(super) fn takes(&self, scheduled: &Scheduled, modality: Modality, max_batch: usize) -> bool {
        [self.modality, modality] == [Modality::Image; 2]
            && scheduled.chosen.placement() == self.scheduled.chosen.placement()
            && (max_batch == 0 || self.items.len() < max_batch)
    }

    /// Sends the leg and reads its answer.
    ///
    /// # Errors
    /// If the instance has failed it; another may be tried, unless its answer is [`Error::Malformed`].
    pub(super) async fn send(
        &mut self,
        app: &App,
        request: &LegRequest,
        uuids: &[&str],
    ) -> Result<LegEnd, Error> {
        let asked = (Phase::Encode, app.config.timeouts.prefill);
        let failed = |status: StatusCode| status != StatusCode::OK && !status.is_client_error();
        let (head, body) = exchange(&mut self.scheduled, request, asked, failed, true).await?;
        if head.status != StatusCode::OK {
            return Ok(LegEnd::Refused(Answer::whole(head, body)));
        }
        read(body, uuids).map(LegEnd::Encoded)
    }

    /// The leg as it goes to its instance.
    pub(super) fn request(&self, attempt: &Attempt<'_>, push: Option<&Push>) -> LegRequest {
        let parsed = attempt.parsed;
        // Unlike any other leg's: the engines take it for the id of the whole request.
        let random = attempt.app.new_id();
        let first = self.items.first().copied().unwrap_or_default();
        let id = format!("{}:{first}:{}", attempt.facts.id, random.get(..6).unwrap_or_default());
        let headers = parsed.headers_of_leg(&id, self.scheduled.chosen.dp_rank);
        let items = self.items.iter().map(|item| &parsed.media[*item]);
        LegRequest {
            method: parsed.method.clone(),
            uri: parsed.uri.clone(),
            headers,
            body: body(&parsed.client.object, items, push.map(|push| self.destination(push))),
            repeatable: true,
        }
    }
}

impl Leg {
    /// `ec_transfer_params` that say where this leg's encodings are to go to.
    fn destination(&self, push: &Push) -> String {
        let ids = self.items.iter().flat_map(|item| &push.ids[*item]);
        let items: Vec<Value> = ids.map(|id| json!({ "transfer_id": id })).collect();
        json!({ "consumer_zmq": push.consumer, "ec_items": items }).to_string()
    }
}

/// What the encoder is asked. It samples nothing, so there is no limit to say.
fn body<'a>(
    client: &Object,
    items: impl Iterator<Item = &'a MediaItem>,
    destination: Option<String>,
) -> Segments {
    let own = |text: &'static str| Bytes::from_static(text.as_bytes());
    let theirs = |text: &str| client.bytes().slice_ref(text.as_bytes());
    let mut pieces = vec![own("{")];
    if let Some(model) = client.get("model") {
        pieces.extend([own("\"model\":"), theirs(model), own(",")]);
    }
    pieces.push(own("\"messages\":[{\"role\":\"user\",\"content\":["));
    for (at, item) in items.enumerate() {
        if at > 0 {
            pieces.push(own(","));
        }
        pieces.extend(item.named().into_inner());
    }
    pieces.push(own("]}],\"stream\":false"));
    for name in PASSED {
        if let Some(value) = client.get(name) {
            pieces.extend([own(",\""), own(name), own("\":"), theirs(value)]);
        }
    }
    if let Some(destination) = destination {
        pieces.extend([own(",\"ec_transfer_params\":"), Bytes::from(destination)]);
    }
    pieces.push(own("}"));
    pieces.into()
}

/// What became of the items called `uuids`.
fn read(answer: Bytes, uuids: &[&str]) -> Result<Vec<Vec<Encoding>>, Error> {
    let malformed = |source| Error::Malformed { phase: Phase::Encode, source };
    let answer = Object::scan(answer).map_err(|error| malformed(error.into()))?;
    let params = answer.get(EC_TRANSFER_PARAMS).filter(|params| *params != "null").unwrap_or("{}");
    encodings(params, uuids).map_err(|error| malformed(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::media::items;

    #[test]
    fn an_encoder_sees_media_and_what_shapes_their_encodings() {
        let client = r#"{"messages":[{"content":[{"type":"text","text":"secret"},{"type":"image_url","uuid":"a"}]},
            {"content":[{"uuid":"b","type":"image_url"}]}], "max_tokens":5,"stream":true,"priority":-1,"n":2,
            "mm_processor_kwargs":{"x":1.0},"ec_transfer_params":{"x":1},"model":"m\/1"}"#;
        let client = Object::scan(Bytes::from_static(client.as_bytes())).unwrap();
        let items = items(&client).unwrap();
        let text =
            String::from_utf8(body(&client, items.iter(), Some("7".to_owned())).to_bytes().to_vec()).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"model":"m\/1","messages":[{"role":"user","content":[{"type":"image_url","uuid":"a"},"#,
                r#"{"uuid":"b","type":"image_url"}]}],"stream":false,"mm_processor_kwargs":{"x":1.0},"priority":-1,"ec_transfer_params":7}"#
            )
        );
    }

    #[test]
    fn an_answer_without_encodings_is_one_and_nonsense_is_none() {
        let read = |text: &'static str| read(Bytes::from_static(text.as_bytes()), &["u"]);
        for nothing in ["{}", r#"{"ec_transfer_params":null}"#, r#"{"ec_transfer_params":{}}"#] {
            assert_eq!(read(nothing).unwrap(), [[]], "{nothing}");
        }
        for nonsense in
            ["", "[]", r#"{"ec_transfer_params":7}"#, r#"{"ec_transfer_params":{"h":{"item_indices":[1]}}}"#]
        {
            assert!(matches!(read(nonsense), Err(Error::Malformed { .. })), "{nonsense}");
        }
    }
}
