//! Runs tower-sliding-window and its peers side by side, and prints what each costs.

mod bots;
mod bursts;
mod cases;
mod cli;
mod exactness;
mod flagship;
mod fleet;
mod least;
mod load;
mod machine;
mod measure;
mod memory;
#[cfg(feature = "observed")]
mod observed;
mod peers;
mod problem;
mod process;
mod programs;
mod redis_server;
mod report;
mod scripts;
mod server;
mod setup;
mod table;
mod targets;
mod textbook;
mod workloads;

use anyhow::{Result, bail};
use clap::Parser;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Arguments, Command, Measurement, Probe};

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.command.clone() {
        Some(Command::Probe(Probe::Serve { case, redis, workers })) => {
            server::serve(case, redis.as_deref(), workers)
        }
        Some(Command::Probe(Probe::Memory { keeper, admissions })) => {
            println!("{}", serde_json::to_string(&memory::measure(keeper, admissions)?)?);
            Ok(())
        }
        Some(Command::Probe(Probe::Fleet { limiter, redis })) => fleet::work(limiter, &redis),
        Some(Command::Measure(measurement)) => run(&arguments, measurement),
        None => run(&arguments, Measurement::All),
    }
}

/// Measures until it is done or a signal stops it. Both ways, all processes that it started end.
fn run(arguments: &Arguments, measurement: Measurement) -> Result<()> {
    Runtime::new()?.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            report = report::run(arguments, measurement) => {
                print!("{}", report?);
                Ok(())
            }
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminated.recv() => bail!("terminated"),
        }
    })
}
