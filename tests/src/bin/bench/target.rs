//! What the load is sent to.

use anyhow::{Context, Result};
use bytes::Bytes;
use edge_router_tests::client::{Answer, Client, Connection};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

/// Something that answers requests.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    kind: Kind,
}

enum Kind {
    /// One engine, alone.
    Engine(String),
    /// Prefill and decode, called by the load itself: the least that any router could cost.
    TwoLegs(Vec<(String, String)>),
    Router(Box<Router>),
}

/// The connections of one worker.
pub(crate) enum Line {
    One(Connection),
    Two { prefill: Connection, decode: Connection },
}

impl Target {
    pub(crate) fn engine(fleet: &Fleet) -> Self {
        Self { name: "one engine, direct", kind: Kind::Engine(fleet.baseline.address()) }
    }

    pub(crate) fn two_legs(fleet: &Fleet) -> Self {
        let pairs = fleet.prefill.iter().zip(&fleet.decode).map(|(p, d)| (p.address(), d.address()));
        Self { name: "two legs, direct", kind: Kind::TwoLegs(pairs.collect()) }
    }

    pub(crate) async fn router(fleet: &Fleet, name: &'static str, policies: &[&str]) -> Result<Self> {
        let router = policies.iter().fold(fleet.router(), |router, policy| router.policy(policy));
        Ok(Self { name, kind: Kind::Router(Box::new(router.start().await?)) })
    }

    pub(crate) fn has_router(&self) -> bool {
        matches!(self.kind, Kind::Router(_))
    }

    /// CPU seconds of the router so far.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        match &self.kind {
            Kind::Router(router) => router.cpu_seconds(),
            _ => Ok(0.0),
        }
    }

    /// Connections for worker number `worker`.
    pub(crate) async fn connect(&self, worker: usize) -> Result<Line> {
        match &self.kind {
            Kind::Engine(address) => Ok(Line::One(Client::new(address).connect().await?)),
            Kind::Router(router) => Ok(Line::One(router.client().connect().await?)),
            Kind::TwoLegs(pairs) => {
                let (prefill, decode) = &pairs[worker % pairs.len()];
                Ok(Line::Two {
                    prefill: Client::new(prefill).connect().await?,
                    decode: Client::new(decode).connect().await?,
                })
            }
        }
    }
}

impl Line {
    /// Sends a request and reads its whole answer.
    pub(crate) async fn send(&mut self, path: &str, body: &Value) -> Result<Answer> {
        match self {
            Self::One(connection) => connection.exchange(post(path, body)?).await,
            Self::Two { prefill, decode } => {
                let mut leg = body.clone();
                leg["max_tokens"] = json!(1);
                leg["stream"] = json!(false);
                leg["kv_transfer_params"] = json!({ "do_remote_decode": true });
                let answer = prefill.exchange(post(path, &leg)?).await?.ok()?;
                let mut leg = body.clone();
                leg["kv_transfer_params"] = answer.json()["kv_transfer_params"].clone();
                decode.exchange(post(path, &leg)?).await
            }
        }
    }
}

fn post(path: &str, body: &Value) -> Result<Request<Full<Bytes>>> {
    let request = Request::post(path).header("host", "bench").header("content-type", "application/json");
    request.body(Full::from(body.to_string())).context("request")
}
