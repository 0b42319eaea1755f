//! The documentation, the Lua scripts and the layout agree with what runs.

use std::fs;
use std::path::{Path, PathBuf};

mod guide;
mod layout;
mod lua;
mod metrics;
mod readme;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files of a folder and those below it.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path, extension));
        } else if path.extension() == Some(extension.as_ref()) {
            found.push(path);
        }
    }
    found
}
