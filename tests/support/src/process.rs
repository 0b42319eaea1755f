//! A child process that does not outlive its test, and tests that run in several processes: a test starts its own
//! program again.

use std::process::{Child, Command, Stdio};

/// Reads how much memory a process takes, `VmRSS`, or has ever taken, `VmHWM`, in kB. `self` is this process.
pub fn memory_kb(process: &str, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.expect("the process runs, on Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.expect("a line of the kernel").parse().expect("a number")
}

pub struct Process(pub(crate) Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let program = command.get_program().to_owned();
        Self(command.spawn().unwrap_or_else(|error| panic!("cannot run {program:?}: {error}")))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal such as `TERM` or `STOP`.
    pub fn signal(&self, name: &str) {
        // A shell has `kill` also where no program of that name is.
        let kill = format!("kill -{name} {}", self.id());
        let status = Command::new("sh").args(["-c", &kill]).status();
        assert!(status.expect("there is a shell").success());
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs an ignored test of this test program, for example `faults::worker_process`, as a process of its own in an
/// environment with these variables. Returns what it printed.
pub fn run_worker(test: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(["--exact", test, "--ignored", "--nocapture"]);
    let command = command.envs(environment.iter().copied()).stderr(Stdio::inherit());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "the worker fails: {text}");
    assert!(text.contains("running 1 test"), "there is no such worker: {text}");
    text
}
