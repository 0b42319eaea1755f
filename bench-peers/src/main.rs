//! Measures the flash sale, and this crate beside its peers, and prints tables.

mod bots;
mod exactness;
mod flagship;
mod fleet;
mod limiters;
mod load;
mod peers;
mod programs;
mod table;

use std::fs;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::process::Command as Program;
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::limiters::Case;
use crate::table::Table;

/// Measures the flash sale, and this crate beside its peers, and prints tables.
///
/// Everything runs on this machine over loopback: oha sends requests to servers in processes of their own, which use
/// redis-server processes of their own. All of them end with this program. Needs Linux, and `redis-server` and `oha`
/// on PATH: `tests/install.sh redis-server oha` installs them.
///
/// Compare ratios within one run, not figures of two machines. Run it on a machine that does nothing else.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// How often the servers are started. The tables show medians. `exactness` runs once.
    #[arg(long, global = true, default_value = "3", value_name = "N")]
    rounds: NonZeroUsize,
    /// The requests of a burst in `flagship` and `peers`.
    #[arg(long, global = true, default_value = "20000", value_name = "N")]
    requests: NonZeroU64,
    /// Also writes all single figures into this file, in place of the old ones of the same tables.
    #[arg(long, global = true, value_name = "FILE")]
    tsv: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Subcommand)]
enum Command {
    /// Everything below. Takes about five minutes a round.
    All,
    /// The flash sale: what a denial, an admission and a sold order cost. Needs
    /// `cargo build --release -p seckill` first.
    Flagship,
    /// What a decision costs Redis: sixteen connections with one request under way each, one with many, and a Cluster.
    Fleet,
    /// What a denial and an admission cost a server and Redis, for this crate, a textbook script and other crates.
    Peers,
    /// A few honest users among bots: their latency with and without the bots.
    Bots,
    /// What each limiter admits and denies wrongly under the same random traffic.
    Exactness,
    /// A server to measure: this program starts itself with it.
    #[command(hide = true)]
    Serve {
        case: Case,
        #[arg(long)]
        redis: Option<String>,
        #[arg(long)]
        workers: usize,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Command::Serve { case, redis, workers } = &arguments.command {
        return programs::serve(*case, redis.as_deref(), *workers);
    }
    for program in ["redis-server", "oha"] {
        version(program).with_context(|| {
            format!("can't run {program}: `tests/install.sh {program}` installs it")
        })?;
    }
    // However it ends, all processes that it has started end too.
    Runtime::new()?.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            done = measure(&arguments) => done,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminated.recv() => bail!("terminated"),
        }
    })
}

async fn measure(arguments: &Arguments) -> Result<()> {
    let (rounds, requests) = (arguments.rounds.get(), arguments.requests.get());
    let output = &Output::new(arguments)?;
    let wants = |one| arguments.command == one || arguments.command == Command::All;
    if wants(Command::Flagship) {
        output.write(rounds, flagship::run(rounds, requests)).await?;
    }
    if wants(Command::Fleet) {
        output.write(rounds, fleet::run(rounds)).await?;
    }
    if wants(Command::Peers) {
        output.write(rounds, peers::run(rounds, requests)).await?;
    }
    if wants(Command::Bots) {
        output.write(rounds, bots::run(rounds)).await?;
    }
    if wants(Command::Exactness) {
        output.write(1, exactness::run()).await?;
    }
    Ok(())
}

/// Where figures are written to, and what was measured on which machine.
struct Output {
    tsv: Option<PathBuf>,
    measured: String,
}

impl Output {
    fn new(arguments: &Arguments) -> Result<Self> {
        let program = Program::new("git").args(["describe", "--always", "--dirty"]).output()?;
        let processors = fs::read_to_string("/proc/cpuinfo")?;
        let processor = processors.lines().find_map(|it| it.strip_prefix("model name\t: "));
        let redis = version("redis-server")?.replace(" server v=", " ");
        let measured = format!(
            "Measured at `{}` on {} cores of {}, {}",
            String::from_utf8_lossy(&program.stdout).trim(),
            available_parallelism()?,
            processor.unwrap_or("an unknown processor"),
            redis.split(" sha=").next().unwrap_or_default(),
        );
        Ok(Self { tsv: arguments.tsv.clone(), measured })
    }

    /// Measures a table in so many rounds, prints it, and writes its figures into the file.
    async fn write(&self, rounds: usize, run: impl Future<Output = Result<Table>>) -> Result<()> {
        let load = fs::read_to_string("/proc/loadavg")?;
        let load = load.split_whitespace().next().unwrap_or_default();
        let table = run.await?;
        let caption = format!("{}, rounds {rounds}, load average before {load}.", self.measured);
        println!("\n## {}\n\n{caption}\n\n{table}", table.title);
        self.tsv.as_ref().map_or(Ok(()), |file| table.write_into(file))
    }
}

fn version(program: &str) -> Result<String> {
    let output = Program::new(program).arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
