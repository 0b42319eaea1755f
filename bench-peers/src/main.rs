//! Runs tower-sliding-window and its peers side by side, and prints what each costs.

mod cases;
mod memory;
mod micro;
mod peers;
mod process;
mod record;
mod redis_server;
mod script;
mod server;
mod table;
mod targets;
mod textbook;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::cases::Case;
use crate::memory::Keeper;

#[derive(Parser)]
#[command(about, version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// How many times each case is measured; the tables show medians.
    #[arg(long, global = true, default_value_t = 3)]
    rounds: usize,
}

#[derive(Subcommand)]
enum Command {
    Script,
    Memory,
    Micro,
    #[command(hide = true)]
    Serve {
        case: Case,
        #[arg(long)]
        redis: Option<String>,
        #[arg(long, default_value_t = 1)]
        workers: usize,
    },
    #[command(hide = true)]
    ProbeMemory { keeper: Keeper, admissions: usize },
    #[command(hide = true)]
    ProbeMicro,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let rounds = arguments.rounds;
    match arguments.command {
        Some(Command::Serve { case, redis, workers }) => {
            server::serve(case, redis.as_deref(), workers)
        }
        Some(Command::ProbeMemory { keeper, admissions }) => {
            println!("{}", serde_json::to_string(&memory::measure(keeper, admissions)?)?);
            Ok(())
        }
        Some(Command::ProbeMicro) => {
            println!("{}", serde_json::to_string(&micro::measure()?)?);
            Ok(())
        }
        command => {
            let runtime = tokio::runtime::Runtime::new()?;
            runtime.block_on(async {
                let mut figures = Vec::new();
                match command {
                    Some(Command::Script) => println!("{}", script::run(rounds, &mut figures).await?),
                    Some(Command::Memory) => println!("{}", memory::run(&mut figures).await?),
                    Some(Command::Micro) => println!("{}", micro::run(rounds, &mut figures).await?),
                    _ => {}
                }
                println!("{}", targets::table(&figures));
                Ok(())
            })
        }
    }
}
