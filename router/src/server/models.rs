//! `GET /v1/models`: the models that a request can be served with, which are those that every instance
//! serves. An adapter that is loaded on some engines only would fail on the others.

use bytes::Bytes;
use edge_router_policy::Phase;
use futures_util::future::join_all;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::app::App;
use crate::error::{Error, Unavailable};
use crate::pipeline::AnswerBody;

/// A list as engines write it. Cards keep their text.
#[derive(Deserialize, Serialize)]
struct List<'a> {
    object: &'a str,
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Card<'a> {
    id: std::borrow::Cow<'a, str>,
}

/// Asks all instances that can be used.
///
/// # Errors
/// [`Error::NoInstance`] if none answers.
pub(super) async fn models(app: &App, client: &HeaderMap) -> Result<Response<AnswerBody>, Error> {
    let auth = app.config.engine_auth.as_ref().or_else(|| client.get(AUTHORIZATION));
    let headers = HeaderMap::from_iter(auth.map(|auth| (AUTHORIZATION, auth.clone())));
    let snapshot = app.fleet.snapshot();
    let limit = app.config.fleet.health.timeout;
    // Decode first: its cards say how long an answer may be.
    let serving = snapshot.serving(Phase::Decode).chain(snapshot.serving(Phase::Prefill));
    let asked = serving
        .filter(|i| i.is_in_service())
        .map(|i| i.ask(Method::GET, "/v1/models", headers.clone(), Bytes::new(), limit));
    let answers: Vec<(StatusCode, Bytes)> =
        join_all(asked).await.into_iter().filter_map(Result::ok).collect();
    let lists: Vec<&Bytes> =
        answers.iter().filter(|(status, _)| status.is_success()).map(|(_, body)| body).collect();
    let (status, body) = match (common(&lists), answers.first()) {
        (Some(list), _) => (StatusCode::OK, list),
        (None, Some((status, body))) => (*status, body.clone()),
        (None, None) => return Err(Error::NoInstance { phase: Phase::Decode, why: Unavailable::Unhealthy }),
    };
    let mut response = Response::new(AnswerBody::own(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The first list, without the models that are not in all others. `None` if none is a list.
fn common(lists: &[&Bytes]) -> Option<Bytes> {
    let lists: Vec<List<'_>> = lists.iter().filter_map(|text| serde_json::from_slice(text).ok()).collect();
    let (first, others) = lists.split_first()?;
    let everywhere = |card: &&RawValue| {
        id(card).is_some_and(|wanted| {
            others.iter().all(|list| list.data.iter().any(|card| id(card).as_ref() == Some(&wanted)))
        })
    };
    let data = first.data.iter().copied().filter(everywhere).collect();
    serde_json::to_vec(&List { object: first.object, data }).ok().map(Bytes::from)
}

fn id(card: &RawValue) -> Option<String> {
    serde_json::from_str::<Card<'_>>(card.get()).ok().map(|card| card.id.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_all_serve_is_listed_and_cards_keep_their_text() {
        let decode = Bytes::from_static(br#"{"object":"list","data":[{"id":"base","max_model_len":1.0},{"id":"lora-a"},{"id":"lora-b"}]}"#);
        let prefill = Bytes::from_static(br#"{"data":[{"id":"lora-b"},{"id":"base"}],"object":"list"}"#);
        let listed = common(&[&decode, &prefill]).unwrap();
        assert_eq!(listed, r#"{"object":"list","data":[{"id":"base","max_model_len":1.0},{"id":"lora-b"}]}"#);
        assert_eq!(common(&[&decode]).unwrap(), decode);
        assert_eq!(common(&[&Bytes::from_static(b"oops")]), None);
        assert_eq!(common(&[]), None);
    }
}
