//! Tests that run in several processes: a test starts its own program again.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::{Process, Redis};

/// An ignored test of this test program that runs as a process of its own.
pub struct Worker(Process);

impl Worker {
    /// Starts the test of this name, for example `fleet::worker_process`. It finds the URL of the
    /// server in `WORKER_REDIS_URL`.
    pub fn start(test: &str, redis: &Redis) -> Self {
        Self::start_in(test, &[("WORKER_REDIS_URL", &redis.url())])
    }

    /// Starts the test of this name in an environment with these variables.
    pub fn start_in(test: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let arguments = ["--exact", test, "--ignored", "--nocapture"];
        let command = command.args(arguments).envs(environment.iter().copied());
        Self(Process::start(command.stdout(Stdio::piped())))
    }

    /// Waits until the worker ends, and returns the lines it printed.
    ///
    /// # Panics
    ///
    /// If the worker fails.
    pub fn lines(mut self) -> Vec<String> {
        let mut text = String::new();
        self.0.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.0.0.wait().unwrap().success(), "the worker fails: {text}");
        assert!(text.contains("running 1 test"), "there is no such worker: {text}");
        text.lines().map(str::to_owned).collect()
    }

    /// Sends the process a signal such as `STOP`.
    pub fn signal(&self, name: &str) {
        self.0.signal(name);
    }
}
