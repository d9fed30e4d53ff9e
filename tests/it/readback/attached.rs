//! Turns of token ids that go on from the last one.

use anyhow::Result;
use edge_router_tests::fleet::Fleet;
use serde_json::json;

use super::{ANSWERED, GENERATE, Scene, completion, generate, ids, next, opening};
use crate::load::COMPLETIONS;

#[tokio::test]
async fn a_conversation_in_token_ids_reads_each_turn_back() -> Result<()> {
    let mut scene = Scene::new().await?;
    let mut prompt = opening();
    // Of the third turn its prefill knows the first: what is missing is rather computed than read, and let go of.
    for expected in [(0.0, 0), (1.0, 1), (2.0, 1)] {
        let answer = scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
        assert_eq!(scene.readbacks().await?, expected);
        prompt = next(&prompt, &ids(&answer.json()["choices"][0]["token_ids"])?);
    }
    // Of what a turn has read nothing is left; the last one's is there for a next turn.
    scene.fleet.expect_readbacks(1);
    scene.fleet.assert_quiescent().await;
    // The second turn computed what came after the first one's answer, but for its last token, whose KV is not there.
    assert_eq!(scene.fleet.prefill[1].counters().prompt_tokens_computed, 3);
    assert_eq!(scene.orphans().await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn completions_read_back_whole_and_streamed_and_show_no_token_ids() -> Result<()> {
    for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut scene = Scene::with(|router| router.patient().policy("nixl.wasm")).await?;
        let answer = scene.right(&scene.client, COMPLETIONS, &completion(&opening(), first)).await?;
        assert!(!answer.text().contains("token_ids\":["), "{}", answer.text());
        let prompt = next(&opening(), &scene.follows(&opening()).await?);
        let answer = scene.right(&scene.client, COMPLETIONS, &completion(&prompt, second)).await?;
        assert!(!answer.text().contains("token_ids\":["), "{}", answer.text());
        assert_eq!(scene.readbacks().await?, (1.0, 1), "{first} {second}");
        scene.fleet.expect_readbacks(1);
    }
    Ok(())
}

#[tokio::test]
async fn token_ids_that_the_client_asks_for_are_shown() -> Result<()> {
    for stream in [false, true] {
        let mut scene = Scene::new().await?;
        let mut body = completion(&opening(), stream);
        body["return_token_ids"] = json!(true);
        let answer = scene.right(&scene.client, COMPLETIONS, &body).await?;
        let shown = answer.text().matches("\"token_ids\":[").count();
        assert_eq!(shown, if stream { ANSWERED as usize } else { 1 }, "{}", answer.text());
        assert!(answer.text().contains("\"prompt_token_ids\":["), "{}", answer.text());
        let prompt = next(&opening(), &scene.follows(&opening()).await?);
        scene.right(&scene.client, COMPLETIONS, &completion(&prompt, stream)).await?;
        assert_eq!(scene.readbacks().await?, (1.0, 1));
        scene.fleet.expect_readbacks(1);
    }
    Ok(())
}

#[tokio::test]
async fn one_endpoints_turn_goes_on_from_the_others() -> Result<()> {
    let mut scene = Scene::new().await?;
    scene.right(&scene.client, COMPLETIONS, &completion(&opening(), true)).await?;
    let prompt = next(&opening(), &scene.follows(&opening()).await?);
    scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
    assert_eq!(scene.readbacks().await?, (1.0, 1));
    scene.fleet.expect_readbacks(1);
    Ok(())
}

#[tokio::test]
async fn an_event_that_names_all_tokens_of_a_long_prompt_is_hidden_too() -> Result<()> {
    let fleet =
        Fleet::start_with(2, 1, |engine| engine.bidirectional().max_model_len(200_000).blocks(40_000))
            .await?;
    let router = fleet.labelled_router();
    let mut scene = Scene::of(fleet, router).await?;
    let opening: Vec<u32> = (10_000..60_000).cycle().take(150_000).collect();
    let answer = scene.right(&scene.client, COMPLETIONS, &completion(&opening, true)).await?;
    assert!(answer.body.len() < 10_000, "{} bytes", answer.body.len());
    let prompt = next(&opening, &scene.follows(&opening).await?);
    scene.right(&scene.client, COMPLETIONS, &completion(&prompt, true)).await?;
    assert_eq!(scene.readbacks().await?, (1.0, 1));
    scene.fleet.expect_readbacks(1);
    Ok(())
}
