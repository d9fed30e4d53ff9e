//! Runs other programs, and says how long they take.

use std::process::{Command, ExitStatus};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How often a long step says that it is still at it.
const REPORT_EVERY: Duration = Duration::from_secs(15);

/// Time since it was made.
pub(crate) struct Stopwatch(#[allow(clippy::disallowed_types, reason = "no tokio here")] std::time::Instant);

impl Stopwatch {
    #[allow(clippy::disallowed_types, reason = "no tokio here")]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Such as `12.3 s`.
    pub(crate) fn seconds(&self) -> String {
        format!("{:.1} s", self.elapsed().as_secs_f32())
    }
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::paths::root());
    cargo
}

/// Runs `command` to its end with the terminal as its own.
///
/// # Errors
///
/// When it can't be started or fails.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<()> {
    let stopwatch = Stopwatch::start();
    println!("{what} ...");
    let mut child = command.spawn().with_context(|| format!("can't start {}", shown(command)))?;
    let mut next_report = REPORT_EVERY;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if stopwatch.elapsed() >= next_report {
            println!("{what}: {:.0} s so far", stopwatch.elapsed().as_secs_f32());
            next_report += REPORT_EVERY;
        }
        thread::sleep(Duration::from_millis(20));
    };
    succeeded(status, command)?;
    println!("{what}: done in {}", stopwatch.seconds());
    Ok(())
}

/// What `command` prints, without the line end.
///
/// # Errors
///
/// When it can't be started, fails or prints no text.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("can't start {}", shown(command)))?;
    succeeded(output.status, command)?;
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// # Errors
///
/// When `status` is not that of a success.
pub(crate) fn succeeded(status: ExitStatus, command: &Command) -> Result<()> {
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Whether a program is found and answers `--version`.
pub(crate) fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}
