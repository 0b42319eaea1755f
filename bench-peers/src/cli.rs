//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::cases::Case;
use crate::fleet::Limiter;
use crate::memory::Keeper;
use crate::programs::Program;

/// Runs tower-sliding-window and its peers side by side, and prints what each costs.
///
/// Everything runs on this machine over loopback: oha sends requests to axum servers in processes
/// of their own, and these use redis-server processes of their own. All of them end with this program.
/// Needs `redis-server` and `oha` (`cargo install oha --locked`) on PATH, and Linux.
///
/// Progress goes to standard error, tables to standard output. Only ratios within one run can be
/// compared. Run it on a machine that does nothing else.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = false)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Requests of one case in one round of `flood`; `admit` sends as many, but at most 100,000, and a
    /// burst of `flagship` and `ratios` is a tenth.
    #[arg(long, global = true, default_value_t = 200_000, value_name = "N")]
    pub(crate) requests: u64,
    /// How often each case is measured. The tables show medians.
    #[arg(long, global = true, default_value_t = 3, value_name = "N")]
    pub(crate) rounds: usize,
    /// Worker threads of each server.
    #[arg(long, global = true, default_value_t = 1, value_name = "N")]
    pub(crate) workers: usize,
    /// A further server for `scripts`, and its name in the tables. PATH is its `redis-server`, or the
    /// directory that holds it. Can be repeated. Defaults to none: only the system's is measured.
    #[arg(long = "server", global = true, value_name = "NAME=PATH")]
    pub(crate) servers: Vec<Program>,
    /// This program built with the feature `observed`, for the flood with metrics, tracing and top
    /// offenders in `ratios`. Defaults to none: these cases are left out.
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) observed: Option<PathBuf>,
    /// Prints the whole of BENCHMARKS.md: the tables, the machine, and how to read them.
    #[arg(long, global = true)]
    pub(crate) markdown: bool,
}

#[derive(Clone, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Measure(Measurement),
    #[command(flatten)]
    Probe(Probe),
}

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, Subcommand)]
pub(crate) enum Measurement {
    /// Everything below, in turn (the default). Takes about three quarters of an hour.
    All,
    /// The example server seckill as a program, with its two rules: what a denial, an admission and a
    /// sold order cost. Needs `cargo build --release -p seckill` first. Takes a minute.
    Flagship,
    /// Sixteen processes on one Redis, each with one request under way: what a decision costs Redis,
    /// beside the textbook script. Takes half a minute.
    Fleet,
    /// One user floods each server: what a denial costs the server and Redis.
    Flood,
    /// Many users, all admitted: what an admission costs the server and Redis.
    Admit,
    /// The CPU time of ours beside the bare routes and the textbook, in short bursts in turn.
    Ratios,
    /// A few honest users among bots: their latency with and without the bots.
    Bots,
    /// The scripts beside the textbook's on each `--server`: microseconds of Redis a decision and a
    /// message, bytes of Redis a key, and a cluster.
    Scripts,
    /// What each limiter admits and denies wrongly under the same random traffic. Takes half a minute.
    Exactness,
    /// Bytes a key in process.
    Memory,
}

/// Hidden commands: the program starts itself with them.
#[derive(Clone, Subcommand)]
pub(crate) enum Probe {
    #[command(hide = true)]
    Serve {
        case: Case,
        #[arg(long)]
        redis: Option<String>,
        #[arg(long)]
        workers: usize,
    },
    #[command(name = "probe-memory", hide = true)]
    Memory { keeper: Keeper, admissions: usize },
    #[command(name = "probe-fleet", hide = true)]
    Fleet {
        limiter: Limiter,
        #[arg(long)]
        redis: String,
    },
}
