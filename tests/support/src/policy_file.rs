//! The file of a server's `--policies`.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::server_process::Server;

/// What each reload logs.
pub const READ_AGAIN: &str = "the policies were read again";
/// What each reload logs that changes nothing because of an error.
pub const BROKEN: &str = "the policies stay as they were";

/// A file of policies. It is removed when it is dropped.
pub struct PolicyFile {
    _directory: TempDir,
    path: PathBuf,
}

impl PolicyFile {
    /// Writes a file of this name.
    pub fn new(name: &str, text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        Self { _directory: directory, path }
    }

    /// Returns the flags that name the file.
    pub fn flags(&self) -> [&str; 2] {
        ["--policies", self.path.to_str().unwrap()]
    }

    /// Puts another file in its place, and has a server read it.
    pub fn replace(&self, text: &str, server: &Server) {
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.path).unwrap();
        server.signal("HUP");
    }

    /// Removes the file.
    pub fn remove(&self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}
