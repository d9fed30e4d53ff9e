//! Prefill's end while decode waits for it.

use anyhow::Result;
use edge_router_tests::engine::Fault;
use edge_router_tests::patience::eventually;

use super::{Scene, has_params, ids, kinds};
use crate::matrix::System;

#[tokio::test]
async fn another_pair_takes_over_with_ids_of_its_own() -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::new(system, 2).await?;
        let [first, second] = &scene.fleet.prefill[..] else { panic!("two") };
        first.fault(Fault::hold());
        let asked = scene.ask(stream);
        scene.both_wait().await?;
        first.kill().await;
        scene.right(asked, stream).await?;
        let legs = scene.let_go().await?;
        assert_eq!((second.requests().len(), legs.len()), (1, 2), "{system:?}");
        assert_eq!(ids(&first.requests()[0]), ids(&legs[0]), "{system:?}");
        assert_eq!(ids(&second.requests()[0]), ids(&legs[1]), "{system:?}");
        assert_ne!(ids(&legs[0]).0, ids(&legs[1]).0, "{system:?}");
        if system != System::NixlPushTogether {
            assert_ne!(ids(&legs[0]).1, ids(&legs[1]).1, "{system:?}");
        }
        assert_eq!(scene.count("retries", "").await?, 1.0, "{system:?}");
        assert_eq!(scene.count("fallbacks", "").await?, 0.0, "{system:?}");
        // Mooncake's decode may notice by itself first.
        assert!(legs[0].aborted() || system == System::MooncakeTogether, "{system:?}: {:?}", legs[0]);
    }
    Ok(())
}

#[tokio::test]
async fn without_another_decode_computes_the_prompt() -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::new(system, 1).await?;
        scene.fleet.prefill[0].fault(Fault::hold());
        let asked = scene.ask(stream);
        scene.both_wait().await?;
        scene.fleet.prefill[0].kill().await;
        scene.right(asked, stream).await?;
        let [waited, alone] = &scene.let_go().await?[..] else { panic!("{:?}", scene.decode_legs()) };
        assert!(waited.aborted() || system == System::MooncakeTogether, "{system:?}: {waited:?}");
        assert!(has_params(waited) && !has_params(alone), "{system:?}");
        assert_eq!(scene.count("fallbacks", "").await?, 1.0, "{system:?}");
        assert_eq!(scene.fleet.decode[0].counters().local_prefills, 1, "{system:?}");
    }
    Ok(())
}

#[tokio::test]
async fn decode_does_not_wait_for_what_prefill_has_not_kept() -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::new(system, 1).await?;
        let prefill = &scene.fleet.prefill[0];
        prefill.fault(Fault::hold());
        prefill.fault(Fault::abort_after(1));
        let asked = scene.ask(stream);
        scene.both_wait().await?;
        prefill.clear_faults();
        scene.right(asked, stream).await?;
        let [waited, alone] = &scene.let_go().await?[..] else { panic!("{:?}", scene.decode_legs()) };
        assert!(waited.aborted(), "{system:?}: {waited:?}");
        assert!(has_params(waited) && !has_params(alone), "{system:?}");
        assert_eq!(scene.count("fallbacks", "kind=\"no_handle\"").await?, 1.0, "{system:?}");
        assert_eq!(scene.count("fallbacks", "").await? + scene.count("retries", "").await?, 1.0);
    }
    Ok(())
}

#[tokio::test]
async fn what_prefill_refuses_decode_is_let_go_of_and_the_client_is_told() -> Result<()> {
    for (system, stream) in kinds() {
        let scene = Scene::new(system, 1).await?;
        let prefill = &scene.fleet.prefill[0];
        prefill.fault(Fault::hold());
        prefill.fault(Fault::status(413));
        let (path, body) = super::story(stream);
        let refused = scene.router.post_json(path, &body);
        let meanwhile = async {
            scene.both_wait().await?;
            prefill.clear_faults();
            anyhow::Ok(())
        };
        let (refused, ()) = tokio::try_join!(refused, meanwhile)?;
        assert_eq!(refused.status, 413, "{system:?}: {}", refused.text());
        eventually("decode is let go", || scene.decode_legs()[0].aborted()).await?;
        assert_eq!(scene.decode_legs().len(), 1, "{system:?}");
    }
    Ok(())
}
