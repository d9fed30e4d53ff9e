//! Decode's end, or answer, while prefill is still at it.

use anyhow::Result;
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::patience::eventually;
use serde_json::json;

use super::{SYSTEMS, Scene, ask, kinds, same};
use crate::load::COMPLETIONS;
use crate::matrix::System;

/// How decode fails.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Killed,
    Status(u16),
}

impl Failure {
    /// To be called before the request, which is then held.
    fn prepare(self, engine: &Engine) {
        engine.fault(Fault::hold());
        if let Self::Status(code) = self {
            engine.fault(Fault::status(code));
        }
    }

    async fn happen(self, engine: &Engine) {
        match self {
            Self::Killed => engine.kill().await,
            Self::Status(_) => engine.clear_faults(),
        }
    }
}

async fn both_held(scene: &Scene) -> Result<()> {
    eventually("both are held", || scene.fleet.prefill[0].held() + scene.fleet.decode[0].held() == 2).await
}

/// Whether prefill is let go of, and another pair takes over.
async fn begins_anew(failure: Failure) -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::new(system, 2).await?;
        let (prefill, decode) = (&scene.fleet.prefill[0], &scene.fleet.decode[0]);
        prefill.fault(Fault::hold());
        failure.prepare(decode);
        let asked = scene.ask(stream);
        both_held(&scene).await?;
        failure.happen(decode).await;
        eventually("prefill is let go", || prefill.requests()[0].aborted()).await?;
        scene.right(asked, stream).await?;
        assert_eq!(scene.count("retries", "leg=\"decode\"").await?, 1.0, "{system:?}");
        assert_eq!(scene.count("fallbacks", "").await?, 0.0, "{system:?}");
    }
    Ok(())
}

#[tokio::test]
async fn when_decode_dies_another_pair_takes_over() -> Result<()> {
    begins_anew(Failure::Killed).await
}

#[tokio::test]
async fn when_decode_is_full_another_pair_takes_over() -> Result<()> {
    begins_anew(Failure::Status(503)).await
}

#[tokio::test]
async fn when_decode_could_not_load_another_pair_takes_over() -> Result<()> {
    begins_anew(Failure::Status(500)).await
}

#[tokio::test]
async fn without_another_the_client_is_told() -> Result<()> {
    for system in SYSTEMS {
        for (failure, stream, told) in [(Failure::Killed, false, 502), (Failure::Status(503), true, 503)] {
            let scene = Scene::new(system, 1).await?;
            let (prefill, decode) = (&scene.fleet.prefill[0], &scene.fleet.decode[0]);
            prefill.fault(Fault::hold());
            failure.prepare(decode);
            let (path, body) = super::story(stream);
            let fails = async {
                both_held(&scene).await?;
                failure.happen(decode).await;
                eventually("prefill is let go", || prefill.requests()[0].aborted()).await
            };
            let (answer, ()) = tokio::try_join!(scene.router.post_json(path, &body), fails)?;
            assert_eq!(answer.status, told, "{system:?} {failure:?}: {}", answer.text());
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_decode_could_not_load_it_computes() -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::new(system, 1).await?;
        let (prefill, decode) = (&scene.fleet.prefill[0], &scene.fleet.decode[0]);
        prefill.fault(Fault::hold());
        Failure::Status(500).prepare(decode);
        let asked = scene.ask(stream);
        both_held(&scene).await?;
        decode.clear_faults();
        scene.right(asked, stream).await?;
        eventually("prefill is let go", || prefill.requests()[0].aborted()).await?;
        assert_eq!((prefill.requests().len(), decode.counters().local_prefills), (1, 1), "{system:?}");
    }
    Ok(())
}

#[tokio::test]
async fn decode_that_has_all_of_the_prompt_needs_no_prefill() -> Result<()> {
    for stream in [false, true] {
        let mut scene = Scene::new(System::NixlPushTogether, 1).await?;
        // Decode tells prefill of what it does not need, which prefill has never begun.
        scene.fleet.expect_late_reads(1);
        // Two blocks, and the token that is never taken from a cache.
        let prompt: Vec<u32> = (300..333).collect();
        let mut body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 6, "seed": 3 });
        if stream {
            body["stream"] = json!(true);
        }
        let story = (COMPLETIONS, body);
        same(&scene.fleet, ask(scene.router.client(), story.clone()), &story).await?;
        let (prefill, decode) = (&scene.fleet.prefill[0], &scene.fleet.decode[0]);
        prefill.fault(Fault::hold());
        decode.fault(Fault::hold());
        let asked = ask(scene.router.client(), story.clone());
        both_held(&scene).await?;
        decode.clear_faults();
        same(&scene.fleet, asked, &story).await?;
        eventually("prefill is let go", || prefill.requests()[1].aborted()).await?;
        assert_eq!(decode.requests().len(), 2);
        assert_eq!(scene.count("fallbacks", "").await? + scene.count("retries", "").await?, 0.0);
    }
    Ok(())
}
