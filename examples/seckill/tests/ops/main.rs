//! `ops/`: each part of it runs here without containers. The commands of `compose.yaml` are started, with the
//! addresses and files of the test in place of those of the containers.

mod compose;
mod dashboard;
mod image;
mod prometheus;
mod rules;
mod sale;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const SECKILL: &str = env!("CARGO_BIN_EXE_seckill");

/// Returns the path of a file of `ops/`.
fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ops").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Reads a YAML file, with its anchors and merges resolved.
fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the elements of a list.
#[track_caller]
fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is not a list"))
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text"))
}

/// Begins a command that `tests/install.sh` installs.
fn tool(name: &str) -> Command {
    // Where cargo puts what it installs, which need not be on PATH.
    let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    let installed = cargo.map(|cargo| cargo.join("bin").join(name)).filter(|it| it.exists());
    Command::new(installed.unwrap_or_else(|| name.into()))
}

/// Runs a command to its end. A program that is missing is an error, with the way to install it.
fn output(command: &mut Command) -> Output {
    let name = command.get_program().display().to_string();
    command.output().unwrap_or_else(|error| {
        panic!("{name}: {error}: run tests/install.sh redis-server prometheus oha")
    })
}

/// Returns what a command printed, if it ended well.
#[track_caller]
fn printed(command: &mut Command) -> String {
    let output = output(command);
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out.into_owned()
}
