//! [`exit_code`]: runs a program from its start to its exit code.

use std::error::Error;
use std::process::ExitCode;

use crate::logs;

/// Runs a program to its end, and returns its exit code. An error is printed to stderr.
///
/// Logs to stderr what `RUST_LOG` asks for, or else from `info` on. Stdout carries only what the
/// program is run for.
pub async fn exit_code(program: impl Future<Output = Result<(), Box<dyn Error>>>) -> ExitCode {
    logs::to_stderr();
    if let Err(error) = program.await {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    tracing::info!("stopped");
    ExitCode::SUCCESS
}
