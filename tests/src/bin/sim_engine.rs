//! `sim-engine`: a simulated vLLM engine on a port of its own, to try a router by hand.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use edge_router_tests::engine::{Connector, Engine, EngineBuilder};
use tokio::signal::unix::{SignalKind, signal};

/// A simulated vLLM engine. It holds no model: its words are made up, but follow from its KV cache alone.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// What the engine is for.
    #[arg(long, value_enum)]
    role: Role,
    /// Where to listen: 127.0.0.1, and a port; port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Name of the served model.
    #[arg(long, default_value = "sim")]
    model: String,
    /// Tokens per KV block.
    #[arg(long, default_value_t = 16)]
    block_size: usize,
    /// KV blocks per data-parallel rank.
    #[arg(long, default_value_t = 4096)]
    blocks: usize,
    /// Milliseconds per generated token.
    #[arg(long, default_value_t = 10)]
    token_delay_ms: u64,
    /// Milliseconds to compute 1000 prompt tokens.
    #[arg(long, default_value_t = 100)]
    prefill_ms_per_1k_tokens: u64,
    /// Data-parallel ranks.
    #[arg(long, default_value_t = 1)]
    dp_size: usize,
    /// Seconds before an idle connection is closed.
    #[arg(long, default_value_t = 5.0)]
    keep_alive_s: f64,
    /// KV connector; those that find KV caches by the prompt need one process, and are not here.
    #[arg(long, value_enum, default_value = "nixl-pull")]
    connector: Kind,
    /// With MoRIIO: where the router's --registration-listen is.
    #[arg(long)]
    register_with: Option<String>,
    /// Factor for lease, heartbeat and handshake timers.
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Prefill,
    Decode,
    Both,
    Render,
    Encode,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    None,
    NixlPull,
    NixlPush,
    MoriioRead,
    MoriioWrite,
    Mooncake,
}

impl From<Kind> for Connector {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::None => Self::None,
            Kind::NixlPull => Self::NixlPull,
            Kind::NixlPush => Self::NixlPush,
            Kind::MoriioRead => Self::MoriioRead,
            Kind::MoriioWrite => Self::MoriioWrite,
            Kind::Mooncake => Self::Mooncake,
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let engine =
        builder(&args)?.start().await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let role = format!("{:?}", args.role).to_lowercase();
    println!("sim-engine {role} listening on {}", engine.address());
    for (name, value) in engine.labels() {
        println!("label {name} = {value:?}");
    }
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(())
}

fn builder(args: &Args) -> anyhow::Result<EngineBuilder> {
    ensure!(args.listen.ip() == Ipv4Addr::LOCALHOST, "{} is not at 127.0.0.1", args.listen);
    let builder = match args.role {
        Role::Prefill => Engine::prefill(),
        Role::Decode => Engine::decode(),
        Role::Both => Engine::both(),
        Role::Render => Engine::render(),
        Role::Encode => Engine::encode(),
    };
    let builder = match &args.register_with {
        Some(router) => builder.register_with(router),
        None => builder,
    };
    Ok(builder
        .connector(args.connector.into())
        .model(&args.model)
        .port(args.listen.port())
        .block_size(args.block_size)
        .blocks(args.blocks)
        .token_delay(Duration::from_millis(args.token_delay_ms))
        .prefill_per_1k(Duration::from_millis(args.prefill_ms_per_1k_tokens))
        .dp_size(args.dp_size)
        .keep_alive(Duration::try_from_secs_f64(args.keep_alive_s)?)
        .time_scale(args.time_scale))
}
