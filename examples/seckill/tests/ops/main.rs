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
use std::process::Command;

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

/// Begins a command. A program that is missing is an error, with the way to install it.
fn tool(name: &str) -> Command {
    if name.contains('/') {
        return Command::new(name);
    }
    // Cargo installs into a folder that need not be on PATH.
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders).chain(cargo.map(|cargo| cargo.join("bin")));
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    Command::new(found.unwrap_or_else(|| {
        panic!("there is no {name}: run tests/install.sh redis-server prometheus oha")
    }))
}

/// Returns what a command printed, if it ended well.
#[track_caller]
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out.into_owned()
}
