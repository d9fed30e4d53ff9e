//! Starts the parts in order, and stops them in order.

use std::sync::Arc;

use anyhow::Context as _;
use edge_router_policy::Outcome;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::config::Config;
use crate::discovery::Roster;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::policy::{self, Chain, PolicyEngine, Watched};
use crate::server::listen::{accept, bind};

/// Outcomes that wait for the policies; more are dropped.
const OUTCOMES: usize = 4096;
/// Outcomes are handed over this often.
const OBSERVE_EVERY: Duration = Duration::from_millis(100);

/// Runs the router until SIGTERM or SIGINT.
///
/// # Errors
/// When a policy can't be loaded or an address can't be bound. A router that has started does not fail.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let fleet = Fleet::new(config.fleet.clone());
    let metrics = Arc::new(Metrics::new(&fleet));
    let (chain, watched, engine) = load_policies(&config, &metrics).await?;
    let listeners = config.listen.iter().map(|a| bind(*a).with_context(|| format!("listen: can't bind {a}")));
    let listeners = listeners.collect::<anyhow::Result<Vec<_>>>()?;
    let (outcomes, received) = mpsc::channel(OUTCOMES);
    let app = Arc::new(App::new(config, fleet, chain, metrics, outcomes));
    app.discovery.source("config").announce(Roster::new(app.config.instances.clone())?);
    app.discovery
        .start(&app.config.discovery, &app.metrics.discovery)
        .await
        .context("registration_listen")?;
    tokio::spawn(observe(Arc::clone(&app), received));
    if let Some(engine) = engine {
        tokio::spawn(policy::watch(watched, engine));
    }
    tokio::spawn(announce_readiness(Arc::clone(&app)));

    let connections = Arc::new(GracefulShutdown::new());
    let (stop, mut accepting) = (CancellationToken::new(), JoinSet::new());
    for listener in listeners {
        let address = listener.local_addr()?;
        tracing::info!("listening on {address}");
        accepting.spawn(accept(listener, Arc::clone(&app), Arc::clone(&connections), stop.clone()));
    }
    if app.config.instances.is_empty() && !app.config.discovery.is_any() {
        match app.config.admin_key {
            Some(_) => tracing::info!("no instance is known yet; waiting for POST /instances/add"),
            None => tracing::warn!(
                "no instance is known, and none can be added without a key of the admin API: \
                 give --prefill and --decode or --instances-file, or set ADMIN_API_KEY"
            ),
        }
    }
    shutdown_signal().await?;
    // Readiness goes first, then the listeners, then the connections.
    app.start_draining();
    tracing::info!(delay = ?app.config.drain.delay, timeout = ?app.config.drain.timeout, "shutting down");
    sleep(app.config.drain.delay).await;
    stop.cancel();
    while accepting.join_next().await.is_some() {}
    // Those who accepted held the other references.
    if let Ok(connections) = Arc::try_unwrap(connections) {
        drain(connections, app.config.drain.timeout).await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Loads all policies, each on a thread of its own: compiling takes its time.
async fn load_policies(
    config: &Config,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(Chain, Vec<Watched>, Option<PolicyEngine>)> {
    if config.policies.is_empty() {
        tracing::info!("no policy given; the built-in one decides");
        return Ok((Chain::new(Vec::new())?, Vec::new(), None));
    }
    let engine =
        PolicyEngine::new(config.policy).map_err(|e| anyhow::anyhow!("WebAssembly can't run here: {e:#}"))?;
    let mut watched = Vec::new();
    for source in &config.policies {
        let (from, engine, metrics) = (source.clone(), engine.clone(), Arc::clone(&metrics.policy));
        let loaded = tokio::task::spawn_blocking(move || from.load(&engine, metrics)).await?;
        let loaded = loaded.with_context(|| format!("policy {}", source.path.display()))?;
        let manifest = loaded.slot.manifest();
        tracing::info!(policy = manifest.name, version = manifest.version, file = %source.path.display(), "policy loaded");
        watched.push(loaded);
    }
    let chain = Chain::new(watched.iter().map(|w| Arc::clone(&w.slot)).collect())?;
    Ok((chain, watched, Some(engine)))
}

/// Hands outcomes to the policies, in batches and off the request path.
async fn observe(app: Arc<App>, mut received: mpsc::Receiver<Outcome>) {
    let mut batch = Vec::new();
    while received.recv_many(&mut batch, OUTCOMES).await > 0 {
        app.chain.observe(&batch, &app.fleet.snapshot());
        batch.clear();
        sleep(OBSERVE_EVERY).await;
    }
}

/// Says once when requests can be served, and when they can't any more.
async fn announce_readiness(app: Arc<App>) {
    let mut changes = app.fleet.subscribe();
    let mut was_ready = false;
    loop {
        match app.ready() {
            Ok(()) if !was_ready => tracing::info!("ready"),
            Err(why) if was_ready => tracing::warn!(why, "not ready"),
            _ => {}
        }
        was_ready = app.ready().is_ok();
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn shutdown_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    // Whoever asks twice does not want to wait.
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::warn!("second signal: stopping at once");
        std::process::exit(1);
    });
    Ok(())
}

/// The connections go as their requests end. What is left at the end of the time is cut; dropping it stops its
/// engines.
async fn drain(connections: GracefulShutdown, limit: Duration) {
    if timeout(limit, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time and were cut");
    }
}
