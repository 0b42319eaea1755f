//! An example that reads lines and prints lines, as a process.

use std::process::{Command, Output, Stdio};

use crate::Redis;
use crate::program::{self, Program};

/// A program, as [`program::command`] names it.
pub struct LineProgram(pub &'static str);

impl LineProgram {
    /// Begins a command that runs it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program::command(self.0);
        command.args(arguments);
        command
    }

    /// Starts it.
    pub fn start(&self, arguments: &[&str]) -> Program {
        Program::start(&mut self.command(arguments))
    }

    /// Gives the program all of its input at once, and returns its exit code, its lines and its logs.
    pub fn fed(
        &self,
        arguments: &[&str],
        input: impl AsRef<[u8]>,
    ) -> (Option<i32>, Vec<String>, String) {
        let mut program = self.start(arguments);
        program.write(input);
        program.end_input();
        let (status, logs, lines) = program.stopped();
        (status.code(), lines, logs)
    }

    /// Runs the program without input.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().expect("the example can be run")
    }
}

/// Runs a test of a program without Redis and with one.
pub async fn on_both(arguments: &[&str], test: impl Fn(&[&str])) {
    test(arguments);
    let redis = Redis::start().await;
    test(&[arguments, &["--redis", &redis.url()]].concat());
}
