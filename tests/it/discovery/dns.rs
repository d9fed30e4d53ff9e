//! `--prefill-dns` and `--decode-dns`.

use anyhow::Result;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::json;

use super::{consists_of, problem_of};
use crate::load::all_right;

fn port(address: &str) -> &str {
    address.rsplit_once(':').map_or("", |(_, port)| port)
}

#[tokio::test]
async fn what_a_name_resolves_to_is_used() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let (prefill, decode) = (fleet.prefill[0].address(), fleet.decode[0].address());
    let router = Router::builder()
        .arg("--prefill-dns")
        .arg(&format!("localhost:{}", port(&prefill)))
        .arg("--decode-dns")
        .arg(&format!("127.0.0.1:{},no-such-name.invalid:80", port(&decode)))
        .start()
        .await?;
    let instances = consists_of(&router, [&prefill, &decode]).await?;
    let sources: Vec<_> = instances.iter().map(|instance| instance["sources"].clone()).collect();
    assert!(sources.contains(&json!([format!("prefill dns localhost:{}", port(&prefill))])), "{sources:?}");
    let problem = problem_of(&router, "decode dns no-such-name.invalid:80").await?;
    assert!(problem.starts_with("no-such-name.invalid:80: "), "{problem}");
    all_right(&fleet, &router, 4, 2).await?;
    fleet.assert_quiescent().await;
    Ok(())
}
