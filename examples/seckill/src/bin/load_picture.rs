//! Draws what `load.sh` has sent: responses per second over the run, by what they mean.
//!
//! ```text
//! oha --no-tui --output-format csv -m POST http://127.0.0.1:3000/seckill/iphone/orders > rush.csv
//! cargo run --release -p seckill --bin load_picture -- rush=rush.csv > rush.svg
//! ```

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use example_support::plot::{Plot, per_second};

/// In how many equal parts the run is counted.
const PARTS: usize = 120;

/// What the statuses of an order mean. Any other status is a failure.
const MEANINGS: [(&str, &[u16]); 3] = [
    ("admitted (201, 409)", &[201, 409]),
    ("refused by the quota (429)", &[429]),
    ("sold out (410)", &[410]),
];

/// Draws responses per second over one or more runs of `oha --output-format csv`, as SVG to stdout.
/// The runs stand one after another, without the pauses between them.
#[derive(Parser)]
#[command(name = "load_picture")]
struct Args {
    /// Name and CSV file of each run, in their order. Runs with the same name are marked once.
    #[arg(required = true, value_name = "NAME=FILE", value_parser = run)]
    runs: Vec<(String, PathBuf)>,

    /// Title of the picture.
    #[arg(long, value_name = "TEXT", default_value = "Responses of the sale")]
    title: String,
}

fn run(text: &str) -> Result<(String, PathBuf), &'static str> {
    let (name, file) = text.split_once('=').ok_or("write NAME=FILE, such as rush=rush.csv")?;
    Ok((name.to_owned(), file.into()))
}

/// A response: when it came, in seconds, and its status.
type Response = (f64, u16);

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{file:?} can't be read: {source}")]
    File { file: PathBuf, source: io::Error },
    #[error("{file:?} has no column {column:?}: make it with `oha --output-format csv`")]
    Column { file: PathBuf, column: &'static str },
    #[error("{file:?}, line {line}: {text:?} is not a response")]
    Line { file: PathBuf, line: usize, text: String },
}

/// Reads when each response came, counted from the start of the run.
fn read(file: &Path) -> Result<Vec<Response>, ReadError> {
    let text = fs::read_to_string(file)
        .map_err(|source| ReadError::File { file: file.to_owned(), source })?;
    let mut lines = text.lines().enumerate();
    let head: Vec<&str> = lines.next().map_or(Vec::new(), |(_, head)| head.split(',').collect());
    let column = |column: &'static str| {
        let missing = || ReadError::Column { file: file.to_owned(), column };
        head.iter().position(|name| *name == column).ok_or_else(missing)
    };
    let (start, took, status) =
        (column("request-start")?, column("request-duration")?, column("status")?);
    let response = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let seconds = |place: usize| fields.get(place)?.parse::<f64>().ok();
        Some((seconds(start)? + seconds(took)?, fields.get(status)?.parse().ok()?))
    };
    let wrong = |number: usize, text: &str| {
        let (file, text) = (file.to_owned(), text.to_owned());
        ReadError::Line { file, line: number + 1, text }
    };
    lines.map(|(number, line)| response(line).ok_or_else(|| wrong(number, line))).collect()
}

/// Puts the runs one after another.
fn plot(title: &str, runs: Vec<(String, Vec<Response>)>) -> Plot {
    let (mut all, mut marks, mut end) = (Vec::new(), Vec::<(f64, String)>::new(), 0.0);
    for (name, responses) in runs {
        let start = end;
        if marks.last().is_none_or(|(_, last)| *last != name) {
            marks.push((start, name));
        }
        for (at, status) in responses {
            end = f64::max(end, start + at);
            all.push((start + at, status));
        }
    }
    let of = |statuses: &[u16]| {
        let times: Vec<f64> =
            all.iter().filter(|(_, it)| statuses.contains(it)).map(|(at, _)| *at).collect();
        (!times.is_empty()).then(|| per_second(times, end, PARTS))
    };
    let known = MEANINGS.map(|(_, statuses)| statuses).concat();
    let failures: Vec<u16> =
        all.iter().map(|(_, status)| *status).filter(|it| !known.contains(it)).collect();

    let description = format!("Responses per second to {} orders, over {end:.1} s.", all.len());
    let requests = per_second(all.iter().map(|(at, _)| *at), end, PARTS);
    let mut plot = Plot::new(title, description, "responses per second").line("all", requests);
    for (name, statuses) in MEANINGS.into_iter().chain([("failed", &*failures)]) {
        if let Some(rates) = of(statuses) {
            plot = plot.line(name, rates);
        }
    }
    marks.into_iter().fold(plot, |plot, (at, name)| plot.mark(at, name))
}

fn main() -> ExitCode {
    let Args { runs, title } = Args::parse();
    let read = |(name, file): (String, PathBuf)| Ok((name, read(&file)?));
    let runs: Result<Vec<_>, ReadError> = runs.into_iter().map(read).collect();
    let written = runs.map_err(|error| error.to_string()).and_then(|runs| {
        let svg = plot(&title, runs).to_string();
        io::stdout().write_all(svg.as_bytes()).map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
