//! Encoders that fail, and consumers that can't get what was encoded.

use std::time::Duration;

use anyhow::Result;
use edge_router_tests::engine::Fault;
use edge_router_tests::patience::eventually;
use serde_json::json;

use super::{Scene, chat, image, parts_seen, sound, streamed, text, video};
use crate::failures::assert_error;
use crate::load::CHAT;

#[tokio::test]
async fn one_item_that_is_refused_ends_the_request_and_the_other_legs() -> Result<()> {
    let scene = Scene::new(2, 1, 1).await?;
    // The items take turns: the first encoder has the good one, most likely before the other has answered.
    scene.fleet.encode[0].fault(Fault::hang());
    scene.fleet.encode[1].fault(Fault::delay(Duration::from_millis(100)));
    for body in [chat(&[video("a"), video("b.broken")]), streamed(chat(&[text(), video("c.broken")]))] {
        let answer = scene.answer(&body).await?;
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("cannot identify the file"), "{}", answer.text());
        scene.fleet.encode[0].clear_faults();
    }
    let seen = || scene.fleet.encode.iter().flat_map(|encoder| encoder.requests());
    eventually("no leg is left", || seen().all(|request| request.end.is_some())).await?;
    assert_eq!(scene.legs()[1..], [0, 0], "nothing is half sent");
    assert_eq!(scene.fleet.encodings(), 0);
    assert_eq!(scene.router.metrics().await?.sum("edge_router_instance_in_flight", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn what_an_encoder_fails_is_encoded_by_another() -> Result<()> {
    let videos = [video("a"), video("b"), video("c"), video("d"), video("e"), video("f"), video("g")];
    for fault in [Fault::status(500), Fault::status(503), Fault::close_before_headers()] {
        let scene = Scene::new(2, 1, 1).await?;
        scene.fleet.encode[0].fault(fault.always());
        scene.served(&chat(&videos)).await?;
        scene.served(&streamed(chat(&[image("a"), image("b"), text()]))).await?;
        assert_eq!(scene.fleet.encode[1].encodings(), 0);
        assert_eq!(scene.legs()[1..], [2, 2]);
    }
    let scene = Scene::new(2, 1, 1).await?;
    scene.fleet.encode[0].kill().await;
    scene.served(&chat(&videos)).await?;
    assert_eq!(scene.count("retries", "leg=\"encode\"").await?, 1.0, "one encoder, one try");
    Ok(())
}

#[tokio::test]
async fn who_finds_no_encoder_that_works_is_told_so() -> Result<()> {
    let scene = Scene::new(2, 1, 1).await?;
    for (fault, status, code) in [
        (Fault::status(500), 502, "engine_failed"),
        (Fault::status(503), 503, "instances_saturated"),
        (Fault::close_before_headers(), 502, "engine_unreachable"),
    ] {
        for stream in [false, true] {
            scene.fleet.encode.iter().for_each(|encoder| encoder.fault(fault.clone().always()));
            let body = chat(&[text(), image("a")]);
            let answer = scene.answer(&if stream { streamed(body.clone()) } else { body.clone() }).await?;
            assert_error(&answer, status, code);
            assert!(answer.text().contains("encode"), "{}", answer.text());
            scene.fleet.encode.iter().for_each(|encoder| encoder.clear_faults());
        }
        // Failures in a row would take the encoders out.
        scene.served(&chat(&[image("a"), video("b"), video("c")])).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_fits_no_items_is_an_error() -> Result<()> {
    let scene = Scene::new(1, 1, 1).await?;
    let entry =
        |indices: &[i64]| json!({ "metadata": { "image_grid_thw": [[1, 2, 3]] }, "item_indices": indices });
    for params in [
        json!({ "a": entry(&[0]), "b": entry(&[2]) }),
        json!({ "a": entry(&[0]), "b": entry(&[-1]) }),
        json!({ "a": entry(&[0]), "b": entry(&[0]) }),
        json!({ "a": entry(&[0, 1]), "b": entry(&[1]) }),
        json!({ "a": entry(&[0]) }),
        json!({ "a": 7 }),
        json!([1]),
    ] {
        let answer = json!({ "choices": [], "ec_transfer_params": params });
        scene.fleet.encode[0].fault(Fault::status(200).json(&answer));
        let answer = scene.answer(&chat(&[image("a"), image("b")])).await?;
        assert_error(&answer, 502, "engine_answer_malformed");
    }
    assert_eq!(scene.legs(), [7, 0, 0]);
    scene.served(&chat(&[image("a"), image("b")])).await
}

#[tokio::test]
async fn a_client_that_leaves_takes_all_legs_with_it() -> Result<()> {
    let scene = Scene::new(2, 1, 1).await?;
    scene.fleet.encode.iter().for_each(|encoder| encoder.fault(Fault::hang().always()));
    let (client, body) = (scene.router.client(), chat(&[image("a"), video("b"), sound("c"), video("d")]));
    let request = tokio::spawn(async move { client.stream(CHAT, &body).await });
    eventually("all legs are under way", || scene.legs() == [4, 0, 0]).await?;
    request.abort();
    let aborted = || scene.fleet.encode.iter().flat_map(|e| e.requests()).all(|request| request.aborted());
    eventually("all legs are closed", aborted).await?;
    let mut in_flight = f64::NAN;
    while in_flight != 0.0 {
        in_flight = scene.router.metrics().await?.sum("edge_router_instance_in_flight", &[]);
    }
    Ok(())
}

#[tokio::test]
async fn a_decode_that_fails_is_tried_again_with_everything_anew() -> Result<()> {
    for stream in [false, true] {
        let body = chat(&[image("a"), video("b"), text()]);
        let body = if stream { streamed(body) } else { body };
        let mut scene = Scene::new(1, 1, 1).await?;
        scene.fleet.decode[0].fault(Fault::status(500).on_decode());
        scene.served(&body).await?;
        assert_eq!(scene.legs(), [4, 2, 2]);
        assert_eq!(scene.count("fallbacks", "").await?, 0.0);
        // The KV cache of the first try, which nobody has fetched.
        scene.fleet.expect_pinned(1);

        let scene = Scene::of_consumers(1, 1).await?;
        scene.fleet.decode[0].fault(Fault::status(500));
        scene.served(&body).await?;
        assert_eq!(scene.legs(), [4, 0, 2]);
        assert_eq!(scene.fleet.encodings(), 2, "of the try whose consumer did not get so far");
    }
    Ok(())
}

/// An encoding that is gone fails its consumer; a fresh one does not.
#[tokio::test]
async fn an_encoding_that_is_gone_is_made_anew() -> Result<()> {
    let scene = Scene::of_consumers(1, 1).await?;
    let stolen = json!({ "choices": [], "ec_transfer_params": { "mm-0": {
        "metadata": { "image_grid_thw": [[1, 2, 3]] }, "item_indices": [0],
        "peer_host": "127.0.0.1", "peer_port": 1, "sim_content": "x",
    } } });
    scene.fleet.encode[0].fault(Fault::status(200).json(&stolen));
    scene.served(&chat(&[image("a"), text()])).await?;
    assert_eq!(scene.legs(), [2, 0, 2]);
    Ok(())
}

#[tokio::test]
async fn a_prefill_that_fails_may_have_used_the_encodings_up() -> Result<()> {
    let scene = Scene::new(1, 2, 1).await?;
    let body = chat(&[image("a"), text()]);
    scene.fleet.prefill.iter().for_each(|prefill| prefill.fault(Fault::status(500)));
    scene.served(&body).await?;
    // Prefill has failed for good: decode is sent the image itself.
    assert_eq!(parts_seen(&scene.fleet.decode[0])[0]["type"], "image_url");
    assert_eq!(scene.legs(), [2, 2, 1]);
    assert_eq!(scene.count("fallbacks", "kind=\"prefill_failed\"").await?, 1.0);
    scene.fleet.prefill[0].fault(Fault::status(500));
    scene.served(&body).await?;
    scene.served(&body).await?;
    assert_eq!(parts_seen(&scene.fleet.decode[0])[0]["type"], "image_embeds");
    // What prefill keeps is told in a way that is of no use: it has used the encodings up.
    scene.fleet.prefill.iter().for_each(|prefill| prefill.fault(Fault::kv_params(json!(null)).always()));
    scene.served(&streamed(body)).await?;
    assert_eq!(parts_seen(&scene.fleet.decode[0])[0]["type"], "image_url");
    Ok(())
}

#[tokio::test]
async fn without_encoders_the_media_go_on_or_the_request_is_refused() -> Result<()> {
    for reject in [false, true] {
        let scene = Scene::with(1, 1, 1, |router| {
            let router = router.arg("--probe-interval-ms").arg("20").arg("--unhealthy-after").arg("1");
            if reject { router.arg("--without-encode").arg("reject") } else { router }
        })
        .await?;
        scene.fleet.encode[0].kill().await;
        let address = scene.fleet.encode[0].address();
        loop {
            let status = scene.router.status().await?;
            let all = status["instances"].as_array().cloned().unwrap_or_default();
            if all.iter().any(|i| i["address"] == address && i["state"] != "healthy") {
                break;
            }
        }
        let body = chat(&[image("a"), text()]);
        if reject {
            let answer = scene.answer(&body).await?;
            assert_error(&answer, 503, "no_instance");
            assert!(answer.text().contains("encode") && answer.header("retry-after").is_some());
            assert_eq!(scene.legs(), [0, 0, 0]);
        } else {
            scene.served(&body).await?;
            assert_eq!(scene.count("fallbacks", "kind=\"no_encode_instance\"").await?, 1.0);
            assert_eq!(parts_seen(&scene.fleet.decode[0])[0], image("a"));
        }
        scene.served(&chat(&[text()])).await?;
    }
    // Who wants no other engine to encode wants none where there are no encoders, either.
    let scene = Scene::with(0, 1, 1, |router| router.arg("--without-encode").arg("reject")).await?;
    assert_error(&scene.answer(&chat(&[image("a")])).await?, 503, "no_instance");
    scene.served(&chat(&[text()])).await
}
