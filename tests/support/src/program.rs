//! A program as a user runs it: a process with flags, input, output, logs and an exit code.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::Process;

/// How long a program may take to print what it is to print, or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running program. It is killed if the test ends before it does.
pub struct Program {
    process: Process,
    stdin: Option<ChildStdin>,
    stdout: mpsc::Receiver<String>,
    stderr: NamedTempFile,
}

impl Program {
    pub fn start(command: &mut Command) -> Self {
        let stderr = NamedTempFile::new().unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr.reopen().unwrap());
        let mut process = Process::start(command);
        let stdin = process.0.stdin.take();
        let (sender, stdout) = mpsc::channel();
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|it| sender.send(it)));
        Self { process, stdin, stdout, stderr }
    }

    /// Runs a program with all of its input at once, and returns its exit code, its lines and its logs.
    pub fn fed(
        program: &str,
        arguments: &[&str],
        input: impl AsRef<[u8]>,
    ) -> (Option<i32>, Vec<String>, String) {
        let mut program = Self::start(&mut command(program, arguments));
        program.write(input);
        program.end_input();
        let (status, logs, lines) = program.stopped();
        (status.code(), lines, logs)
    }

    pub fn write(&mut self, text: impl AsRef<[u8]>) {
        let stdin = self.stdin.as_mut().expect("the input has not been ended");
        stdin.write_all(text.as_ref()).and_then(|()| stdin.flush()).expect("it reads its input");
    }

    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    pub fn line(&self) -> Result<String, RecvTimeoutError> {
        self.stdout.recv_timeout(PATIENCE)
    }

    pub fn logs(&self) -> String {
        let logs = std::fs::read(self.stderr.path()).unwrap();
        String::from_utf8_lossy(&logs).into_owned()
    }

    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits until it stops; returns how, what it logged, and what else it printed.
    pub fn stopped(mut self) -> (ExitStatus, String, Vec<String>) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.0.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the program does not stop: {}", self.kill());
            std::thread::sleep(Duration::from_millis(10));
        };
        (status, self.logs(), self.stdout.iter().collect())
    }

    pub fn kill(&mut self) -> String {
        self.process.kill();
        self.logs()
    }
}

/// Begins a command that runs a program with these arguments, and with the log level and the settings
/// it has by default.
///
/// The program is the path of an executable, such as `env!("CARGO_BIN_EXE_seckill")`, or the name of
/// an example of tower-sliding-window, which is built now.
pub fn command(program: &str, arguments: &[&str]) -> Command {
    static BUILT: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);
    let path = if program.contains('/') {
        PathBuf::from(program)
    } else {
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        built.entry(program.to_owned()).or_insert_with(|| build(program)).clone()
    };
    let name = path.file_stem().unwrap().to_str().unwrap();
    let prefix = name.to_uppercase().replace('-', "_");
    let mut command = Command::new(&path);
    command.args(arguments);
    for variable in ["RUST_LOG", &format!("{prefix}_REDIS"), &format!("{prefix}_ADMIN_TOKEN")] {
        command.env_remove(variable);
    }
    command
}

/// Returns the `target` directory of this test program.
pub fn target_directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(3).expect("target/PROFILE/deps/TEST").to_owned()
}

/// Builds an example, if it is not built yet: `cargo test --test NAME` does not build it, and one
/// from an earlier build would be tested in place of the present code. The packages and features are
/// those of `tests/run.sh`: with others cargo would build every dependency anew.
fn build(example: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let directory = test.ancestors().nth(2).and_then(|it| it.file_name()).unwrap();
    let profile = if directory == "debug" { "dev".as_ref() } else { directory };
    let mut cargo = Command::new(env!("CARGO"));
    // With these variables of a test some build scripts would run anew.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let target = target_directory();
    let status = cargo
        .args(["build", "--example", example, "--profile"])
        .arg(profile)
        .arg("--target-dir")
        .arg(&target)
        .env_remove("CARGO_BUILD_TARGET")
        .args(["--workspace", "--exclude", "bench-peers", "--features", "seckill/metrics"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "the example {example} does not build: see above");
    target.join(directory).join("examples").join(example)
}
