//! Counts instructions and allocations of the paths that matter, and compares them with committed figures.
//!
//! `.ci/instructions` builds this program twice, with and without the feature `reported`, and runs it.

mod compare;
mod figures;
mod judge;
mod measure;
mod paths;
mod redis_server;
mod reporting;
mod toolchain;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::paths::Path;

/// Counts instructions and allocations with valgrind.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Takes one path several times. Valgrind runs this.
    Run {
        /// Which path
        #[arg(long, value_parser = Path::by_name)]
        path: Path,
        /// How often
        #[arg(long)]
        times: u32,
        /// The address of the Redis server, for the paths that need one
        #[arg(long, default_value = "")]
        redis: String,
    },
    /// Measures all paths and compares them with the committed figures.
    Compare {
        /// This program, built with the feature `reported`
        #[arg(long)]
        reported: PathBuf,
        /// The file with the committed figures
        #[arg(long)]
        figures: PathBuf,
        /// Writes the file anew instead of comparing
        #[arg(long)]
        update: bool,
    },
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().command {
        Command::Run { path, times, redis } => {
            reporting::install();
            path.take(times, &redis);
            Ok(ExitCode::SUCCESS)
        }
        Command::Compare { reported, figures, update } => compare::run(&reported, &figures, update),
    }
}
