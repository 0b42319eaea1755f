//! The seckill example as a user runs it: a process with flags, a port, logs and an exit code.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::{LazyLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use http::request::Builder;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// How long a server may take to be ready, or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server. It is killed if the test ends before it does.
pub struct Server {
    child: Child,
    logs: Option<JoinHandle<String>>,
    stdout: mpsc::Receiver<String>,
    pub url: String,
    client: Client<HttpConnector, Body>,
}

impl Server {
    /// Starts a server on a free port and waits until it says that it listens.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_logging("info", arguments)
    }

    /// Starts a server whose logs go to someone who has left.
    pub fn start_unheard(arguments: &[&str]) -> Self {
        Self::start_with("debug", arguments, |_| None)
    }

    /// Starts a server that logs at this level.
    pub fn start_logging(level: &str, arguments: &[&str]) -> Self {
        Self::start_with(level, arguments, |mut stderr| {
            Some(std::thread::spawn(move || {
                let mut logs = String::new();
                let _ = stderr.read_to_string(&mut logs);
                logs
            }))
        })
    }

    fn start_with(
        level: &str,
        arguments: &[&str],
        listen: impl FnOnce(ChildStderr) -> Option<JoinHandle<String>>,
    ) -> Self {
        let mut child = command(arguments)
            .args(["--listen", "127.0.0.1:0"])
            .env("RUST_LOG", level)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the example can be run");
        let (sender, stdout) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|it| sender.send(it)));
        let logs = listen(child.stderr.take().unwrap());
        let mut server = Self {
            child,
            logs,
            stdout,
            url: String::new(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        };
        match server.stdout.recv_timeout(PATIENCE) {
            Ok(line) => match line.strip_prefix("listening on ") {
                Some(url) => server.url = url.to_owned(),
                None => panic!("the first line on stdout is {line:?}"),
            },
            Err(error) => panic!("the server does not listen ({error}): {}", server.kill()),
        }
        server
    }

    /// Begins a request.
    pub fn request(&self, method: &str, path: &str) -> Builder {
        Request::builder().method(method).uri(format!("{}{path}", self.url))
    }

    /// Sends a request and reads its answer to the end.
    pub async fn send(&self, request: Builder) -> Answer {
        send(&self.client, request).await
    }

    /// Sends a request from a task of its own.
    pub fn spawn(&self, request: Builder) -> tokio::task::JoinHandle<Answer> {
        let client = self.client.clone();
        tokio::spawn(async move { send(&client, request).await })
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path)).await
    }

    /// Begins an order of a user named in `x-user-id`.
    pub fn order_request(&self, sku: &str, user: &str) -> Builder {
        self.request("POST", &format!("/seckill/{sku}/orders")).header("x-user-id", user)
    }

    pub async fn order(&self, sku: &str, user: &str) -> Answer {
        self.send(self.order_request(sku, user)).await
    }

    /// Sends `TERM` or `INT`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(status.expect("kill is a command").success());
    }

    /// Waits until the server stops; returns how, what it logged, and what else it printed.
    pub fn stopped(mut self) -> (ExitStatus, String, Vec<String>) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the server does not stop: {}", self.kill());
            std::thread::sleep(Duration::from_millis(10));
        };
        let logs = self.logs.take().map(|logs| logs.join().unwrap()).unwrap_or_default();
        (status, logs, self.stdout.iter().collect())
    }

    fn kill(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.logs.take().map(|logs| logs.join().unwrap()).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs the example to its end, which is to come by itself.
pub fn run(arguments: &[&str]) -> Output {
    let (stdout, stderr) = (Stdio::piped(), Stdio::piped());
    let mut child = command(arguments).stdout(stdout).stderr(stderr).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{arguments:?} keep the server running");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(&*BINARY);
    command.args(arguments).env_remove("RUST_LOG").env_remove("SECKILL_REDIS");
    command
}

/// The example, built now: `cargo test --all-targets` and `--test NAME` do not build it, and one
/// from an earlier build would be tested in place of the present code.
static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().unwrap();
    let directory = test.ancestors().nth(2).and_then(|it| it.file_name()).unwrap();
    let profile = if directory == "debug" { "dev".as_ref() } else { directory };
    let output = Command::new(env!("CARGO"))
        .args(["build", "--example", "seckill", "--message-format", "json-render-diagnostics"])
        .arg("--profile")
        .arg(profile)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "the seckill example does not build: see above");
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let built = messages
        .filter_map(|message| serde_json::from_slice::<Value>(message).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    built.expect("cargo says where it has put the example")
});

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// Reads a header that must be there.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no {name}: {self:?}"));
        value.to_str().unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the seconds of `Retry-After`, which are at least one.
    pub fn retry_after(&self) -> u64 {
        let seconds = self.header("retry-after").parse().unwrap();
        assert!(seconds >= 1, "{self:?}");
        seconds
    }

    /// Checks that this is a problem document of that status, and returns its type.
    pub fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        let body = self.json();
        assert_eq!(body["status"], status, "{body}");
        assert!(!body["title"].as_str().unwrap().is_empty(), "{body}");
        body["type"].as_str().unwrap().to_owned()
    }
}

async fn send(client: &Client<HttpConnector, Body>, request: Builder) -> Answer {
    let request = request.body(Body::empty()).unwrap();
    let (head, body) = client.request(request).await.expect("an answer").into_parts();
    let body = body.collect().await.expect("a whole answer").to_bytes();
    Answer { status: head.status, headers: head.headers, body }
}
