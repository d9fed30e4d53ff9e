//! The client's request with references in place of its media.

use bytes::Bytes;
use edge_router_policy::Phase;
use edge_router_policy::connectors::ec::{self, Encoding, Modality};

use crate::body::media::{MediaItem, replaced};
use crate::body::scan::Object;
use crate::error::Error;

/// What the legs are made of instead of the client's body.
#[derive(Debug)]
pub(in crate::pipeline) struct Encoded {
    /// The body. Items whose place in the prompt the encoder has not said are in it as they were.
    pub(in crate::pipeline) object: Object,
    /// Where the encodings are, for whoever computes the prompt; `None` if the engines know.
    pub(in crate::pipeline) params: Option<String>,
    /// Whether they are where they are needed already.
    pub(in crate::pipeline) pushed: bool,
}

impl Encoded {
    /// `body` with `encodings`, one list for each of its `items`.
    pub(super) fn of(body: &Object, items: &[MediaItem], encodings: &[Vec<Encoding>]) -> Result<Self, Error> {
        let both = || items.iter().zip(encodings);
        let references: Vec<Option<String>> =
            both().map(|(item, found)| ec::reference(item.modality, found, &item.uuid)).collect();
        // What lays out a prompt with sound may look at the other media too: all of them, or none.
        let has_audio = items.iter().any(|item| item.modality == Modality::Audio);
        let stay = has_audio && references.iter().any(Option::is_none);
        let place = |(item, reference): (&MediaItem, Option<String>)| {
            let text = match reference {
                // Under its name, its encoding is found all the same.
                _ if stay => item.named().to_bytes(),
                reference => Bytes::from(reference?),
            };
            Some((item.span.clone(), text))
        };
        let places: Vec<_> = items.iter().zip(references).filter_map(place).collect();
        let text = replaced(body.bytes(), &places);
        let object = Object::scan(text)
            .map_err(|error| Error::Malformed { phase: Phase::Encode, source: Box::new(error) })?;
        Ok(Self { object, params: ec::transfer_params(encodings.iter().flatten()), pushed: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::media::items;

    fn rewritten(body: &str, answers: &[&str]) -> (String, Option<String>) {
        let object = Object::scan(Bytes::copy_from_slice(body.as_bytes())).unwrap();
        let items = items(&object).unwrap();
        let found: Vec<_> = items
            .iter()
            .zip(answers)
            .map(|(item, answer)| ec::encodings(answer, &[&item.uuid]).unwrap().remove(0))
            .collect();
        let encoded = Encoded::of(&object, &items, &found).unwrap();
        (String::from_utf8(encoded.object.bytes().to_vec()).unwrap(), encoded.params)
    }

    const BODY: &str = r#"{"seed": 1.0, "messages":[ {"content":[ {"type":"image_url", "uuid":"u"} ,
        {"type":"text","text":"\u0041"}, {"type":"PART", "x":1e0,"uuid":"w"}], "role":"user"}],"messages2":[]}"#;

    #[test]
    fn items_are_replaced_and_the_rest_stays() {
        let body = BODY.replace("PART", "video_url");
        let (text, params) =
            rewritten(&body, &[r#"{"h":{"metadata":{"grid":[[1,2]]}}}"#, r#"{"i":{"transfer_id":"t"}}"#]);
        let image = r#"{"type":"image_embeds","image_embeds":{"grid":[1,2]},"uuid":"u"}"#;
        assert_eq!(text, body.replace(r#"{"type":"image_url", "uuid":"u"}"#, image));
        assert_eq!(
            params.unwrap(),
            r#"{"h":{"metadata":{"grid":[[1,2]]}},"i":{"transfer_id":"t"},"ec_items":[{"mm_hash":"i","transfer_id":"t"}]}"#
        );
        assert_eq!(rewritten(&body, &["{}", "{}"]), (body, None));
    }

    #[test]
    fn with_audio_all_items_are_replaced_or_none() {
        let body = BODY.replace("PART", "input_audio");
        let known = r#"{"h":{"metadata":{"n":[1]}}}"#;
        let (text, params) = rewritten(&body, &[known, "{}"]);
        assert_eq!((text, params.is_some()), (body.clone(), true));
        let (text, _) = rewritten(&body, &[known, known]);
        assert!(text.contains("image_embeds") && text.contains("audio_embeds"), "{text}");
        let unnamed = body.replace(r#", "uuid":"u""#, "");
        let (text, _) = rewritten(&unnamed, &["{}", known]);
        assert!(text.contains(r#"{"type":"image_url","uuid":""#), "{text}");
    }
}
