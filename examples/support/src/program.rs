//! [`exit_code`]: runs a program from its start to its exit code.

use std::error::Error;
use std::process::ExitCode;

use crate::logs;

/// Runs a program to its end, and returns its exit code. An error is printed to stderr.
///
/// Logs to stderr what `RUST_LOG` asks for, or else from `info` on. A program never waits for whoever
/// reads that. Stdout carries only what the program is run for.
pub async fn exit_code(program: impl Future<Output = Result<(), Box<dyn Error>>>) -> ExitCode {
    let mut logs = match logs::to_stderr() {
        Ok(logs) => logs,
        Err(error) => {
            eprintln!("error: can't write logs: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = program.await;
    let code = match ended {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            logs.push(format!("error: {error}\n"));
            ExitCode::FAILURE
        }
    };
    logs.flush_all();
    code
}
