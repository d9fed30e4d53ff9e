//! What the system knows about a process.

use std::fs;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// Clock ticks per second of `/proc/<pid>/stat`: 100 on every Linux that Rust runs on.
const TICKS: f64 = 100.0;

pub(super) fn rss_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold spaces; what follows it does not.
    let (_, fields) = stat.rsplit_once(')').context("no command name")?;
    let ticks = |field: usize| -> Result<f64> {
        let text = fields.split_whitespace().nth(field).context("too few fields")?;
        Ok(text.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) / TICKS)
}

pub(super) async fn signal(pid: u32, name: &str) -> Result<()> {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().await?;
    ensure!(status.success(), "kill -{name} {pid}: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_time() {
        let pid = std::process::id();
        assert!(rss_bytes(pid).unwrap() > 1 << 16);
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
    }
}
