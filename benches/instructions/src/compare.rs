//! Measures all paths, and compares them with the committed figures or writes these anew.

use std::fs;
use std::path::Path as FilePath;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result};

use crate::figures::{Figures, with_features};
use crate::judge::judge;
use crate::measure::measure;
use crate::paths::{IsReported, Needs, Path};
use crate::redis_server::RedisServer;
use crate::toolchain;

/// A path and the program to measure it with.
struct Job<'a> {
    name: String,
    program: &'a FilePath,
    path: Path,
}

pub(crate) fn run(reported: &FilePath, file: &FilePath, update: bool) -> Result<ExitCode> {
    let here = Figures { toolchain: toolchain::describe()?, ..measure_all(reported)? };
    print!("{here}");
    let committed = if update {
        fs::write(file, here.to_string())?;
        here.clone()
    } else {
        let text = fs::read_to_string(file);
        text.with_context(|| format!("can't read {}", file.display()))?.parse()?
    };
    let flooded = Path::all().iter().filter(|path| path.is_reported == IsReported::Flooded);
    let flooded: Vec<&str> = flooded.map(|path| path.name).collect();
    let judgement = judge(&committed, &here, &flooded);
    println!();
    judgement.notes.iter().for_each(|note| println!("note: {note}"));
    judgement.failures.iter().for_each(|failure| println!("FAILED: {failure}"));
    Ok(if judgement.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures each path, several at a time: other programs do not change the number of instructions.
fn measure_all(reported: &FilePath) -> Result<Figures> {
    let plain = std::env::current_exe()?;
    let redis = RedisServer::start()?;
    let mut jobs = Vec::new();
    for path in Path::all() {
        jobs.push(Job { name: path.name.to_owned(), program: &plain, path: *path });
        if path.is_reported != IsReported::No {
            jobs.push(Job { name: with_features(path.name), program: reported, path: *path });
        }
    }
    let (jobs, costs) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        loop {
            let Some(job) = jobs.lock().expect("no panic").pop() else { return Ok(()) };
            let url = if job.path.needs == Needs::Redis { redis.url() } else { String::new() };
            let cost = measure(job.program, job.path, &url)?;
            costs.lock().expect("no panic").push((job.name, cost));
        }
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    let costs = costs.into_inner().expect("no panic").into_iter().collect();
    Ok(Figures { toolchain: String::new(), costs })
}
