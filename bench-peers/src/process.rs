//! Figures of a process from the kernel, and child processes that end with their handle.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use tokio::process::{Child, Command};

/// Returns the CPU time of all threads of a process, in user and kernel mode.
///
/// In nanoseconds. `/proc/PID/stat` has it in steps of 10 ms, which is a twentieth of a burst.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let times = fs::read_to_string(thread?.path().join("schedstat"))?;
        let running = times.split_whitespace().next().context("nothing in schedstat")?;
        nanoseconds += running.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Returns how many bytes of a process are in memory.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes.context("no VmRSS in /proc/PID/status")?.parse::<u64>()? * 1024)
}

/// Starts this program again with a hidden subcommand. The child ends when its handle is dropped. If
/// this process is killed, the child ends because its standard input closes.
pub(crate) fn again(arguments: &[String]) -> Result<Child> {
    start(&std::env::current_exe()?, arguments)
}

/// Starts this program, or a build of it with other features, as [`again`] does.
pub(crate) fn start(program: &Path, arguments: &[String]) -> Result<Child> {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("can't start {}", program.display()))
}

/// Runs this program again with a hidden subcommand and reads the JSON that it prints.
pub(crate) async fn run_again<T: DeserializeOwned>(arguments: &[String]) -> Result<T> {
    let output = again(arguments)?.wait_with_output().await?;
    anyhow::ensure!(output.status.success(), "{arguments:?} failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}
