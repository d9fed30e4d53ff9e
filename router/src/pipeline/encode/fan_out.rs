//! Spreads the media of a request over the encoders, and waits for all of them.

use std::collections::HashMap;

use edge_router_policy::connectors::ec::{Encoding, Modality};
use edge_router_policy::{InstanceId, Phase};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::leg::{Leg, LegEnd};
use super::push::Push;
use crate::body::media::MediaItem;
use crate::error::Error;
use crate::pipeline::answer::Answer;
use crate::pipeline::attempt::{Attempt, Retries};
use crate::pipeline::schedule::schedule;

/// How it ended.
pub(super) enum Ended {
    /// For each item, its features; and how many legs that took.
    Encoded {
        encodings: Vec<Vec<Encoding>>,
        legs: usize,
    },
    Refused(Answer),
    /// No encoder could be chosen.
    Nobody(Error),
}

/// Sends each item to the encoder that the policies choose for it, all at once. Legs that are still under
/// way when this returns, or is given up, are closed.
///
/// # Errors
/// If an item can't be encoded.
pub(super) async fn fan_out(
    attempt: &Attempt<'_>,
    push: Option<&Push>,
    retries: &mut Retries,
) -> Result<Ended, Error> {
    let items = &attempt.parsed.media;
    let same = Same::among(items);
    let mut waiting = same.firsts.clone();
    let mut found = vec![Vec::new(); items.len()];
    let (mut under_way, mut legs) = (FuturesUnordered::new(), 0);
    loop {
        match place(attempt, &mut waiting, &retries.tried) {
            Ok(placed) => {
                legs += placed.len();
                under_way.extend(placed.into_iter().map(|leg| send(attempt, push, leg)));
            }
            Err(error) if under_way.is_empty() => return Ok(Ended::Nobody(error)),
            // This request's own legs may be what the encoders are full of.
            Err(_) => {}
        }
        let Some((leg, end)) = under_way.next().await else { break };
        match end {
            Ok(LegEnd::Encoded(of_leg)) => {
                for (item, mut features) in leg.items.iter().copied().zip(of_leg) {
                    let ids = push.map(|push| &push.ids[item]).into_iter().flatten();
                    features.iter_mut().zip(ids).for_each(|(feature, id)| feature.pushed_as(id));
                    found[item] = features;
                }
            }
            Ok(LegEnd::Refused(answer)) => return Ok(Ended::Refused(answer)),
            Err(error) => {
                attempt.account.leg_failed(&error);
                if matches!(error, Error::Malformed { .. })
                    || !may_try_again(attempt, retries, leg.instance())
                {
                    return Err(error);
                }
                waiting.extend(leg.items);
            }
        }
    }
    let encodings = same.first_of.iter().map(|first| found[*first].clone()).collect();
    Ok(Ended::Encoded { encodings, legs })
}

async fn send(attempt: &Attempt<'_>, push: Option<&Push>, mut leg: Leg) -> (Leg, Result<LegEnd, Error>) {
    let request = leg.request(attempt, push);
    let uuids: Vec<&str> = leg.items.iter().map(|item| attempt.parsed.media[*item].uuid.as_str()).collect();
    let end = leg.send(attempt.app, &request, &uuids).await;
    (leg, end)
}

/// Puts as many of the `waiting` items on legs as there is room for now.
///
/// # Errors
/// If there is room for none.
fn place(attempt: &Attempt<'_>, waiting: &mut Vec<usize>, tried: &[InstanceId]) -> Result<Vec<Leg>, Error> {
    let mut legs: Vec<Leg> = Vec::new();
    let mut placed = 0;
    for item in waiting.iter().copied() {
        let scheduled = match schedule(attempt, Phase::Encode, tried) {
            Ok(scheduled) => scheduled,
            Err(error) if placed == 0 => return Err(error),
            Err(_) => break,
        };
        let (modality, max_batch) =
            (attempt.parsed.media[item].modality, attempt.app.config.encode_max_batch);
        match legs.iter_mut().find(|leg| leg.takes(&scheduled, modality, max_batch)) {
            Some(leg) => leg.items.push(item),
            None => legs.push(Leg::new(scheduled, item, modality)),
        }
        placed += 1;
    }
    waiting.drain(..placed);
    Ok(legs)
}

/// Whether what an instance has failed may be tried on another. However many legs it has failed, it costs
/// one try.
fn may_try_again(attempt: &Attempt<'_>, retries: &mut Retries, instance: InstanceId) -> bool {
    if retries.tried.contains(&instance) {
        let snapshot = attempt.app.fleet.snapshot();
        return snapshot.available(Phase::Encode, &retries.tried).next().is_some();
    }
    retries.failed(instance);
    retries.take(attempt.app, Phase::Encode)
}

/// Which items are the same: they are encoded once.
struct Same {
    /// The first of each kind.
    firsts: Vec<usize>,
    /// For each item, the first that is the same.
    first_of: Vec<usize>,
}

impl Same {
    fn among(items: &[MediaItem]) -> Self {
        let mut known: HashMap<(Modality, &str), usize> = HashMap::new();
        let first_of: Vec<usize> = items
            .iter()
            .enumerate()
            .map(|(at, item)| *known.entry((item.modality, &item.uuid)).or_insert(at))
            .collect();
        let firsts = first_of.iter().enumerate().filter(|(at, first)| at == *first).map(|(at, _)| at);
        Self { firsts: firsts.collect(), first_of: first_of.clone() }
    }
}
