//! The command line. Every flag is also an environment variable and a key of the configuration file.

use std::path::PathBuf;

use clap::Parser;

use crate::config::file::Settings;

/// Routes OpenAI requests to LLM engines that run prefill and decode apart.
///
/// A setting given here wins over the environment, which wins over the file given by --config, where
/// it has the same name with underscores: --max-in-flight is max_in_flight.
#[derive(Debug, Parser)]
#[command(name = "edge-router", version, max_term_width = 100)]
pub struct Cli {
    /// TOML file with settings; its keys are the long flags with underscores
    #[arg(long, value_name = "FILE", env = "EDGE_ROUTER_CONFIG")]
    pub config: Option<PathBuf>,

    /// What can also stand in the file.
    #[command(flatten)]
    pub settings: Settings,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
