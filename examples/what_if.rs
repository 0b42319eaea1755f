//! Replays recorded decisions under other quotas: which requests would have been denied, and when?
//!
//! ```text
//! cargo run --example what_if -- --quota 5/60s --quota 20/10m < decisions.jsonl
//! cargo run --example what_if -- --quota 5/60s --denials --svg what_if.svg < decisions.jsonl
//! ```
//!
//! `history::Recorder` writes such a recording. A line is a decision:
//! `{"time":1790000000.5,"key":"alice","admitted":true}`.

use std::collections::BTreeSet;
use std::io::{self, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use example_support::plot::{Plot, per_second};
use tower_sliding_window::history::{Record, WhatIf, read, what_if};
use tower_sliding_window::{Policy, Quota};

/// The number of points of each line of the picture.
const PARTS: usize = 120;

/// Reads recorded decisions, one JSON line each, from the standard input, and prints what other quotas
/// would have decided.
#[derive(Parser)]
struct Args {
    #[arg(long, required = true, help = "Quota as LIMIT/WINDOW; all that are given must hold")]
    quota: Vec<Quota>,
    #[arg(long, help = "Replays this recorded policy only; required if there are several")]
    policy: Option<String>,
    #[arg(long, default_value_t = 20, help = "Prints this many keys, the most denials first")]
    top: usize,
    #[arg(long, help = "Prints each denial, with its time in seconds since the first record")]
    denials: bool,
    #[arg(long, value_name = "FILE", help = "Draws requests and denials per second as SVG")]
    svg: Option<PathBuf>,
}

fn print(args: &Args, start: Duration, replayed: &WhatIf) -> io::Result<()> {
    let (mut out, tally) = (stdout().lock(), replayed.tally);
    writeln!(out, "{:>10} requests of {} keys", tally.requests, replayed.keys.len())?;
    writeln!(out, "{:>10} were denied", tally.denied)?;
    writeln!(out, "{:>10} would have been denied", tally.would_deny)?;
    writeln!(out, "{:>10} of them were admitted", tally.newly_denied)?;
    writeln!(out, "{:>10} were denied and would have been admitted", tally.newly_admitted)?;
    for (quota, denials) in &replayed.quotas {
        writeln!(out, "{denials:>10} would have been denied by {quota}")?;
    }
    writeln!(out, "\n  requests    denied  would deny  newly denied  policy and key")?;
    for it in replayed.keys.iter().take(args.top) {
        let (tally, policy) = (it.tally, it.policy.as_deref().unwrap_or("-"));
        write!(out, "{:>10}{:>10}{:>12}", tally.requests, tally.denied, tally.would_deny)?;
        // Both are any text, so they are escaped.
        writeln!(out, "{:>14}  {policy:?} {:?}", tally.newly_denied, it.key)?;
    }
    for it in replayed.denials.iter().filter(|_| args.denials) {
        let (at, wait) = ((it.time - start).as_secs_f64(), it.retry_after.as_secs_f64());
        let recorded = if it.was_admitted { "admitted" } else { "denied" };
        writeln!(out, "denial at={at:.6} wait={wait:.6} recorded={recorded} key={:?}", it.key)?;
    }
    Ok(())
}

/// Returns the times of records in seconds since the first one.
fn seconds(start: Duration, times: impl Iterator<Item = Duration>) -> Vec<f64> {
    times.map(|time| (time - start).as_secs_f64()).collect()
}

/// Returns the records of one policy, "-" if it has no name. Whether a request was admitted is the decision
/// of all its policies together, so several are not replayed at once.
fn of_one_policy(mut history: Vec<Record>, name: Option<&str>) -> Result<Vec<Record>, String> {
    let name_of = |it: &Record| it.policy.as_deref().unwrap_or("-").to_owned();
    let names: BTreeSet<String> = history.iter().map(name_of).collect();
    match name {
        None if names.len() > 1 => Err(format!("choose a recorded policy, --policy: {names:?}")),
        Some(name) if !names.contains(name) => {
            Err(format!("no recorded policy is {name:?}, but these are: {names:?}"))
        }
        _ => {
            history.retain(|it| name.is_none_or(|name| name_of(it) == name));
            Ok(history)
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let policy = args.quota.iter().fold(Policy::new("replayed"), |it, quota| it.quota(*quota));
    let history = read(stdin().lock()).collect::<Result<Vec<Record>, _>>()?;
    let history = of_one_policy(history, args.policy.as_deref())?;
    let start = history.iter().map(|it| it.time).min().unwrap_or_default();
    let requests = seconds(start, history.iter().map(|it| it.time));
    let denied = seconds(start, history.iter().filter(|it| !it.admitted).map(|it| it.time));
    let replayed = what_if(&policy, history);

    if let Some(file) = &args.svg {
        let length = requests.iter().copied().fold(1.0, f64::max);
        let would_deny = seconds(start, replayed.denials.iter().map(|it| it.time));
        let title = format!("What if the quotas were {policy}?");
        let description = format!(
            "Of {} requests {} were denied, and {} would have been denied under {policy}.",
            replayed.tally.requests, replayed.tally.denied, replayed.tally.would_deny
        );
        let plot = Plot::new(title, description, "requests per second")
            .line("requests", per_second(requests, length, PARTS))
            .line("denied", per_second(denied, length, PARTS))
            .line("would have been denied", per_second(would_deny, length, PARTS));
        std::fs::write(file, plot.to_string()).map_err(|error| format!("{file:?}: {error}"))?;
    }
    Ok(print(args, start, &replayed)?)
}

fn main() -> ExitCode {
    let result = run(&Args::parse());
    let result = result.inspect_err(|error| eprintln!("error: {error}"));
    ExitCode::from(u8::from(result.is_err()))
}
