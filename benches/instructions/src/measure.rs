//! Runs one path under valgrind and reads what it cost.

use std::path::Path as FilePath;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::figures::Cost;
use crate::paths::{MORE, Path, SHORT};

/// Valgrind's tool for instructions, which simulates no caches.
const INSTRUCTIONS: [&str; 3] =
    ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"];
/// The one for allocations. It checks nothing else, because that takes time.
const ALLOCATIONS: [&str; 3] = ["--tool=memcheck", "--undef-value-errors=no", "--leak-check=no"];

const ATTEMPTS: u32 = 3;

/// Returns what taking a path once costs: the difference between a longer and a shorter run, so that
/// the start of the program and the preparation of the path do not count.
pub(crate) fn measure(program: &FilePath, path: Path, redis: &str) -> Result<Cost> {
    let difference = |tool: &[&str], label: &str| -> Result<f64> {
        let total = |times| {
            let output = run(program, tool, path, times, redis)?;
            total(&output, label).with_context(|| format!("no `{label}` in: {output}"))
        };
        Ok((total(SHORT + MORE)? - total(SHORT)?) / f64::from(MORE))
    };
    Ok(Cost {
        instructions: difference(&INSTRUCTIONS, "I   refs:")?,
        allocations: difference(&ALLOCATIONS, "total heap usage:")?,
    })
}

/// Runs a path until it succeeds: on a machine that is too busy, a connection can time out.
fn run(program: &FilePath, tool: &[&str], path: Path, times: u32, redis: &str) -> Result<String> {
    let once = || run_once(program, tool, path, times, redis);
    (1..ATTEMPTS).fold(once(), |result, _| result.or_else(|_| once()))
}

/// Returns what valgrind writes to standard error.
fn run_once(
    program: &FilePath,
    tool: &[&str],
    path: Path,
    times: u32,
    redis: &str,
) -> Result<String> {
    let output = Command::new("valgrind")
        .args(tool)
        .arg(program)
        .args(["run", "--path", path.name, "--times", &times.to_string(), "--redis", redis])
        .output()
        .context("can't start valgrind: is it on PATH?")?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{path:?} fails under valgrind:\n{text}");
    Ok(text)
}

/// Returns the number after a label, such as in `==7== I   refs:      1,234,567`.
fn total(output: &str, label: &str) -> Option<f64> {
    let (_, after) = output.split_once(label)?;
    after.split_whitespace().next()?.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_valgrind_are_read() {
        let output =
            "==7== I   refs:      1,234,567\n==7==   total heap usage: 1,018 allocs, 7 frees";
        assert_eq!(total(output, "I   refs:"), Some(1_234_567.0));
        assert_eq!(total(output, "total heap usage:"), Some(1_018.0));
        assert_eq!(total(output, "D refs:"), None);
    }
}
