//! The `edge-router` program.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use edge_router::cli::Cli;
use edge_router::config::file::Settings;
use edge_router::{config, error, serve, telemetry};

/// Every request makes some hundred small allocations on one thread and frees many of them on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Logging may not have started, and whoever typed the command is looking here.
            #[expect(clippy::print_stderr, reason = "the program's last word")]
            {
                eprintln!("edge-router: {}", error::chain(failure.as_ref()));
            }
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let file = match &cli.config {
        Some(path) => {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
            toml::from_str::<Settings>(&text).with_context(|| path.display().to_string())?
        }
        None => Settings::default(),
    };
    let settings = cli.settings.or(file);
    let filter = settings.log.as_deref().unwrap_or("info");
    let (format, access) = (settings.log_format.unwrap_or_default(), settings.access_log.unwrap_or(false));
    telemetry::init(filter, format, access).map_err(anyhow::Error::msg)?;
    let config = config::resolve(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve::serve(config))
}
