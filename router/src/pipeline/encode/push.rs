//! Encoders that push: before they encode, they must be told where to (engine contract §7). So who will
//! compute the prompt is chosen first, down to its rank, and keeps its place until it is sent the prompt.

use std::sync::atomic::{AtomicUsize, Ordering};

use edge_router_policy::Phase;
use edge_router_policy::connectors::ec::Modality;
use serde::Deserialize;

use crate::error::Error;
use crate::fleet::EC_ZMQ_ADDRS;
use crate::pipeline::attempt::{Attempt, Retries};
use crate::pipeline::prefill::has_pair;
use crate::pipeline::schedule::{Scheduled, schedule};

/// Ranks take turns where no policy names one.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// Where encodings are pushed to, and as what.
#[derive(Debug)]
pub(super) struct Push {
    /// Control address of the consumer's rank.
    pub(super) consumer: String,
    /// For each item, the transfer ids of its features.
    pub(super) ids: Vec<Vec<String>>,
}

/// Chooses who computes the prompt, if any of those who may is one that encodings are pushed to. `None` if it
/// fetches them.
///
/// # Errors
/// If there is nobody to choose.
pub(super) fn choose(attempt: &mut Attempt<'_>, retries: &Retries) -> Result<Option<Push>, Error> {
    let phase = if attempt.parsed.two_legs && has_pair(attempt) { Phase::Prefill } else { Phase::Decode };
    let snapshot = attempt.app.fleet.snapshot();
    if !snapshot.serving(phase).any(|instance| instance.spec().label(EC_ZMQ_ADDRS).is_some()) {
        return Ok(None);
    }
    let mut scheduled = schedule(attempt, phase, &retries.tried)?;
    let consumer = consumer(&mut scheduled);
    match phase {
        Phase::Prefill => attempt.prefill_ahead = Some(scheduled),
        Phase::Decode | Phase::Encode => attempt.decode_ahead = Some(scheduled),
    }
    Ok(consumer.map(|consumer| Push { consumer, ids: ids(attempt) }))
}

/// Address of the chosen rank, which is pinned.
fn consumer(scheduled: &mut Scheduled) -> Option<String> {
    let spec = scheduled.chosen.instance.spec();
    let addresses: Vec<&str> = spec.label(EC_ZMQ_ADDRS)?.split(',').map(str::trim).collect();
    let ranks = addresses.len().min(spec.dp_size as usize);
    let rank = match scheduled.chosen.dp_rank {
        Some(rank) => rank as usize,
        None => TURN.fetch_add(1, Ordering::Relaxed) % ranks.max(1),
    };
    let address = (*addresses.get(rank)?).to_owned();
    if ranks > 1 {
        scheduled.chosen.dp_rank = u32::try_from(rank).ok();
    }
    Some(address)
}

/// A fresh id for each feature: a video whose sound is used has two.
fn ids(attempt: &Attempt<'_>) -> Vec<Vec<String>> {
    #[derive(Deserialize)]
    struct Kwargs {
        use_audio_in_video: Option<bool>,
    }
    let kwargs = attempt.parsed.client.object.get("mm_processor_kwargs");
    let kwargs = kwargs.and_then(|text| serde_json::from_str::<Kwargs>(text).ok());
    let with_sound = kwargs.and_then(|kwargs| kwargs.use_audio_in_video) == Some(true);
    let features = |modality| if modality == Modality::Video && with_sound { 2 } else { 1 };
    let items = attempt.parsed.media.iter();
    items.map(|item| (0..features(item.modality)).map(|_| attempt.app.new_id()).collect()).collect()
}
