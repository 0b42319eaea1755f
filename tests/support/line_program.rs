//! An example that reads lines and prints lines, as a process.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::process::{Command, Output, Stdio};

use crate::program::{self, Program};
use crate::support::Redis;

/// An example by its name, without the environment's word on which Redis it has.
pub struct LineProgram(pub &'static str);

impl LineProgram {
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program::command(self.0);
        command.args(arguments).env_remove(format!("{}_REDIS", self.0.to_uppercase()));
        command
    }

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

/// Holds a program to a promise: keeping its windows itself, and with a Redis.
pub async fn on_both(arguments: &[&str], promise: impl Fn(&[&str])) {
    promise(arguments);
    let redis = Redis::start().await;
    promise(&[arguments, &["--redis", &redis.url()]].concat());
}
