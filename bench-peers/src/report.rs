//! The report: all tables, with or without the text of BENCHMARKS.md.

use std::fmt::Write;

use anyhow::Result;

use crate::cli::{Arguments, Measurement};
use crate::measure::Plan;
use crate::programs::Program;
use crate::{
    bots, bursts, exactness, flagship, fleet, machine, memory, scripts, targets, workloads,
};

/// How to read the tables; the command line and the machine are filled in.
const PREAMBLE: &str = include_str!("preamble.md");
const NOTES: &str = include_str!("notes.md");

/// Measures what the arguments name, and returns the tables.
pub(crate) async fn run(arguments: &Arguments, wanted: Measurement) -> Result<String> {
    let &Arguments { requests, rounds, workers, markdown, .. } = arguments;
    let plan = Plan { requests, rounds, workers };
    let load_before = machine::load();
    let wants = |one| wanted == one || wanted == Measurement::All;

    let (mut leading, mut tables, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    if wants(Measurement::Flagship) {
        leading.push(flagship::run(plan).await?);
    }
    if wants(Measurement::Fleet) {
        leading.push(fleet::run(rounds).await?);
    }
    if wants(Measurement::Flood) {
        tables.push(workloads::flood(plan, &mut figures).await?);
    }
    if wants(Measurement::Admit) {
        tables.push(workloads::admit(plan).await?);
    }
    if wants(Measurement::Ratios) {
        tables.extend(bursts::run(plan, arguments.observed.as_deref(), &mut figures).await?);
    }
    if wants(Measurement::Bots) {
        tables.push(bots::run(rounds, workers, &mut figures).await?);
    }
    if wants(Measurement::Scripts) {
        let programs = [&[Program::of_system()?], &*arguments.servers].concat();
        tables.extend(scripts::run(&programs, rounds).await?);
    }
    if wants(Measurement::Exactness) {
        tables.push(exactness::run().await?);
    }
    if wants(Measurement::Memory) {
        tables.push(memory::run(&mut figures).await?);
    }

    let mut report = String::new();
    if markdown {
        let machine = machine::description(&load_before, &machine::load());
        report += &PREAMBLE
            .replace("{command}", &command(arguments))
            .replace("{machine}", machine.trim());
    }
    for table in leading {
        write!(report, "{table}")?;
    }
    if !figures.is_empty() {
        write!(report, "{}", targets::table(&figures))?;
    }
    for table in tables {
        write!(report, "{table}")?;
    }
    if markdown {
        report += NOTES;
    }
    Ok(report)
}

/// Returns the arguments of this run. Where its programs are on this machine does not matter.
fn command(given: &Arguments) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--server" | "--observed" => drop(arguments.next()),
            _ if argument.starts_with("--server=") || argument.starts_with("--observed=") => {}
            _ => words.push(argument),
        }
    }
    let servers = given.servers.iter();
    words.extend(servers.map(|Program { name, .. }| format!("--server {name}=DIR/{name}")));
    if given.observed.is_some() {
        words.push("--observed target/observed/release/bench-peers".to_owned());
    }
    words.join(" ")
}
