//! A request to generate, from its body to the start of its answer.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};
use serde_json::Value;

use super::answer::{stream, whole};
use super::body::SimBody;
use super::call::{Call, Endpoint};
use super::config::Role;
use super::encoder::encode;
use super::fault::Outcome;
use super::fields::Fields;
use super::generate::Generation;
use super::handoff::let_go;
use super::media::fetch;
use super::rank::Rank;
use super::rejection::Rejection;
use super::route::Service;
use super::strict::violations;

/// Answers a request to generate; all that can be known before the first token is known when this returns.
pub(crate) async fn infer(
    service: &Service,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &Bytes,
    outcomes: &[Outcome],
) -> Response<SimBody> {
    if service.config.strict {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        service.violations.add(violations(&service.config, &body));
    }
    if service.config.role == Role::Encode {
        return encode(service, headers, body).await;
    }
    let body = &match fetch(service, headers, body).await {
        Ok(body) => body,
        Err(rejection) => return rejection.respond(),
    };
    match answer(service, endpoint, headers, body, outcomes).await {
        Ok(response) => response,
        Err(rejection) => {
            if rejection.by_handler {
                let body: Value = serde_json::from_slice(body).unwrap_or_default();
                if let Some(rank) = service.ranks.first() {
                    let_go(rank, "", body.get("kv_transfer_params")).await;
                }
            }
            rejection.respond()
        }
    }
}

async fn answer(
    service: &Service,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &Bytes,
    outcomes: &[Outcome],
) -> Result<Response<SimBody>, Rejection> {
    let fields = Fields::parse(headers, body)?;
    let call = Call::parse(endpoint, headers, &fields, &service.config)?;
    if *service.dead.borrow() {
        return Err(Rejection::engine_dead());
    }
    let rank = choose(service, &call);
    let details = service.config.prompt_tokens_details;
    if call.stream {
        // The rank is looked at only inside the stream, so that a wrong one is an event and no status.
        if let Ok(rank) = &rank {
            admit(rank)?;
        }
        let generation = rank.map(|rank| Generation::start(&rank, &call, outcomes));
        return Ok(stream(call, generation, details));
    }
    let rank = rank?;
    admit(&rank)?;
    let generation = Generation::start(&rank, &call, outcomes);
    whole(&call, generation, &service.config, outcomes).await
}

/// The rank that the request names, else the one with the least to do.
fn choose(service: &Service, call: &Call) -> Result<Arc<Rank>, Rejection> {
    let ranks = &service.ranks;
    let named = match call.rank {
        Some(rank) => usize::try_from(rank).ok().and_then(|rank| ranks.get(rank)),
        None => ranks.iter().min_by_key(|rank| {
            let core = rank.core();
            core.running + core.waiting()
        }),
    };
    named.cloned().ok_or_else(|| {
        let rank = call.rank.unwrap_or_default();
        Rejection::bad_request(format!("data_parallel_rank {rank} is out of range [0, {}).", ranks.len()))
    })
}

fn admit(rank: &Rank) -> Result<(), Rejection> {
    let mut core = rank.core();
    let queued = core.waiting();
    if rank.config.max_queued.is_some_and(|limit| queued >= limit && core.running > 0) {
        core.counters.admission_rejections += 1;
        return Err(Rejection::overloaded(queued));
    }
    Ok(())
}
