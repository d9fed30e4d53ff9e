//! Settings from all their sources, and addresses in all their forms.

use anyhow::{Context, Result};
use edge_router_tests::client::Client;
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::{Router, RouterBuilder};
use serde_json::json;

use crate::load::{CHAT, COMPLETIONS, all_right, chat};

/// The longest body that the router takes, as its refusal says.
async fn max_body(router: &Router) -> Result<usize> {
    let long = json!({ "prompt": "x".repeat(6000) });
    let answer = router.post_json(COMPLETIONS, &long).await?;
    let text = answer.text();
    let (_, after) = text.split_once("larger than ").context(text.clone())?;
    Ok(after.split(' ').next().context("no number")?.parse()?)
}

#[tokio::test]
async fn flags_win_over_the_environment_which_wins_over_the_file() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let toml = format!(
        "max_body_bytes = 2000\nmodel = \"sim\"\npolicy = [\"round_robin\"]\nwithout_prefill = \"reject\"\n\
         [[instance]]\nrole = \"prefill\"\naddress = \"{}\"\n\
         [[instance]]\nrole = \"decode\"\naddress = \"http://{}/\"\nlabels = {{ rack = \"7\" }}\n\
         [policy_config.round_robin]\n",
        fleet.prefill[0].address(),
        fleet.decode[0].address()
    );
    let from_file = || Router::builder().config_toml(&toml);
    let from_env = || from_file().env("EDGE_ROUTER_MAX_BODY_BYTES", "3000");
    for (builder, limit) in
        [(from_file(), 2000), (from_env(), 3000), (from_env().arg("--max-body-bytes").arg("4000"), 4000)]
    {
        let router = builder.start().await?;
        assert_eq!(max_body(&router).await?, limit);
        // What only the file says holds in each case.
        assert_eq!(router.status().await?["policies"][0]["name"], "round_robin");
        all_right(&fleet, &router, 2, 1).await?;
    }
    assert_eq!(fleet.decode[0].counters().remote_loads, 6);
    Ok(())
}

#[tokio::test]
async fn a_setting_that_can_not_be_used_is_named() -> Result<()> {
    let refusal = async |builder: RouterBuilder| -> String {
        format!("{:#}", builder.start().await.err().expect("must not start"))
    };
    let builder = Router::builder;
    for (builder, said) in [
        (builder().config_toml("no_such_setting = 1"), "no_such_setting"),
        (builder().config_toml("max_body_bytes = \"many\""), "max_body_bytes"),
        (builder().config_toml("[[instance]]\nrole = \"cook\"\naddress = \"h:1\""), "'cook' is none of"),
        (builder().arg("--config").arg("/nowhere/router.toml"), "can't read /nowhere/router.toml"),
        (builder().arg("--prefill").arg("engine"), "prefill: 'engine': no port; give host:port"),
        (builder().arg("--decode").arg("::1:80"), "an IPv6 address needs brackets"),
        (builder().env("EDGE_ROUTER_RETRIES", "some"), "--retries"),
        (builder().arg("--kv-lease-s").arg("5"), "kv_lease_margin_s: must be below kv_lease_s"),
        (builder().arg("--listen").arg("203.0.113.1:1"), "can't bind 203.0.113.1:1"),
        (builder().arg("--session-key").arg("cookie:x"), "session_key: 'cookie:x'"),
        (builder().arg("--policy-config").arg("p={}"), "there is no policy 'p'"),
    ] {
        let error = refusal(builder).await;
        assert!(error.contains(said), "{said:?} is not in: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn engines_are_reached_by_name_and_over_ipv6() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let prefill = Engine::prefill().ipv6().start().await?;
    let decode = Engine::decode().ipv6().start().await?;
    let local = |engine: &Engine| engine.address().replace("127.0.0.1", "localhost");
    let router = Router::builder()
        .prefill(&prefill)
        .decode(&decode)
        .arg("--prefill")
        .arg(&local(&fleet.prefill[0]))
        .arg("--decode")
        .arg(&local(&fleet.decode[0]))
        .start()
        .await?;
    all_right(&fleet, &router, 8, 1).await?;
    for engine in [&fleet.prefill[0], &fleet.decode[0], &prefill, &decode] {
        assert_eq!(engine.requests().len(), 4, "{}", engine.address());
        assert_eq!(engine.pinned(), 0);
    }
    assert_eq!(decode.requests()[0].header("host"), Some(&*decode.address()));
    Ok(())
}

#[tokio::test]
async fn it_listens_on_several_addresses() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().arg("--listen").arg("[::1]:0").start().await?;
    let line = router.wait_for_log("listening on [::1]").await?;
    let (_, address) = line.split_once("listening on ").context("no address")?;
    let answer = Client::new(address.trim()).post_json(CHAT, &chat(1)).await?.ok()?;
    assert_eq!(answer.transcript().text(), fleet.baseline(CHAT, &chat(1)).await?.text());
    all_right(&fleet, &router, 2, 1).await
}
