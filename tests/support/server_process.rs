//! An example server as a user runs it: a process with flags, a port, logs and an exit code.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]

#[path = "program.rs"]
mod program;

use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use http::request::Builder;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::task::JoinHandle;

use program::Program;

/// How long a program may run that is to end by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server. It is killed if the test ends before it does.
pub struct Server {
    program: Program,
    pub url: String,
    /// The URL of its second listener, if it has one.
    pub admin_url: Option<String>,
    client: Client<HttpConnector, Body>,
}

impl Server {
    /// Starts an example on a free port and waits until it says that it listens.
    pub fn start(example: &'static str, arguments: &[&str]) -> Self {
        Self::start_logging(example, "info", arguments)
    }

    /// Starts an example whose logs go to someone who has left.
    pub fn start_unheard(example: &'static str, arguments: &[&str]) -> Self {
        Self::listening(example, "debug", arguments, Program::start_unheard)
    }

    /// Starts an example that logs at this level.
    pub fn start_logging(example: &'static str, level: &str, arguments: &[&str]) -> Self {
        Self::listening(example, level, arguments, Program::start)
    }

    fn listening(
        example: &'static str,
        level: &str,
        arguments: &[&str],
        start: impl FnOnce(&mut Command) -> Program,
    ) -> Self {
        let mut command = command(example, arguments);
        command.args(["--listen", "127.0.0.1:0"]).env("RUST_LOG", level);
        let program = start(&mut command);
        Self::announced(program, arguments.contains(&"--admin"))
    }

    /// Starts an example with these variables in its environment.
    pub fn start_in(
        example: &'static str,
        environment: &[(&str, &str)],
        arguments: &[&str],
    ) -> Self {
        let mut command = command(example, arguments);
        command.args(["--listen", "127.0.0.1:0"]).envs(environment.iter().copied());
        Self::announced(Program::start(&mut command), arguments.contains(&"--admin"))
    }

    /// Reads the lines that say where it listens.
    fn announced(mut program: Program, has_admin: bool) -> Self {
        let mut line = |start: &str| match program.line() {
            Ok(line) => match line.strip_prefix(start) {
                Some(url) => url.to_owned(),
                None => panic!("{line:?} stands on stdout, and not {start:?}"),
            },
            Err(error) => panic!("the server does not listen ({error}): {}", program.kill()),
        };
        let url = line("listening on ");
        let admin_url = has_admin.then(|| line("admin on "));
        Self { program, url, admin_url, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Begins a request.
    pub fn request(&self, method: &str, path: &str) -> Builder {
        Request::builder().method(method).uri(format!("{}{path}", self.url))
    }

    /// Begins a request to its second listener.
    pub fn admin_request(&self, method: &str, path: &str) -> Builder {
        let url = self.admin_url.as_deref().expect("it has an admin listener");
        Request::builder().method(method).uri(format!("{url}{path}"))
    }

    /// Sends a request and reads its answer to the end.
    pub async fn send(&self, request: Builder) -> Answer {
        send(&self.client, request, Body::empty()).await
    }

    /// Sends a request with a body.
    pub async fn send_body(&self, request: Builder, body: impl Into<Body>) -> Answer {
        send(&self.client, request, body.into()).await
    }

    /// Sends a request from a task of its own.
    pub fn spawn(&self, request: Builder) -> JoinHandle<Answer> {
        self.spawn_body(request, Body::empty())
    }

    /// Sends a request with a body from a task of its own.
    pub fn spawn_body(&self, request: Builder, body: impl Into<Body>) -> JoinHandle<Answer> {
        let (client, body) = (self.client.clone(), body.into());
        tokio::spawn(async move { send(&client, request, body).await })
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
        self.program.signal(name);
    }

    /// Waits until the server stops; returns how, what it logged, and what else it printed.
    pub fn stopped(self) -> (ExitStatus, String, Vec<String>) {
        self.program.stopped()
    }
}

/// Runs an example to its end, which is to come by itself.
pub fn run(example: &'static str, arguments: &[&str]) -> Output {
    let (stdout, stderr) = (Stdio::piped(), Stdio::piped());
    let mut child = command(example, arguments).stdout(stdout).stderr(stderr).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{arguments:?} keep {example} running");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

fn command(example: &'static str, arguments: &[&str]) -> Command {
    let mut command = program::command(example);
    for variable in ["REDIS", "ADMIN_TOKEN"] {
        command.env_remove(format!("{}_{variable}", example.to_uppercase()));
    }
    command.args(arguments);
    command
}

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

async fn send(client: &Client<HttpConnector, Body>, request: Builder, body: Body) -> Answer {
    let request = request.body(body).unwrap();
    let (head, body) = client.request(request).await.expect("an answer").into_parts();
    let body = body.collect().await.expect("a whole answer").to_bytes();
    Answer { status: head.status, headers: head.headers, body }
}

/// Checks that an example exits with 2 when it is given these flags, and names what is wrong.
pub fn refuses(example: &'static str, cases: &[(&[&str], &str)]) {
    for (flags, part) in cases {
        let output = run(example, flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {stderr}");
        assert!(stderr.contains(part), "{flags:?} should name {part:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
}

/// Checks that an example exits with 1 when its address is taken, its Redis down or no Redis, and
/// tells a way out but no password.
pub fn cannot_start(example: &'static str) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    // Nothing listens on port 1, which takes root to open.
    let down = ["--listen", "127.0.0.1:0", "--redis", "redis://:hunter2@127.0.0.1:1/0"];
    let no_url = ["--listen", "127.0.0.1:0", "--redis", "http://:hunter2@127.0.0.1"];
    let cases: &[(&[&str], &str)] = &[
        (&down, "127.0.0.1:1"),
        (&no_url, "not a Redis URL"),
        (&["--listen", &taken.1], &taken.1),
    ];
    for (flags, part) in cases {
        let output = run(example, flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{flags:?}: {stderr}");
        assert!(stderr.contains(part) && stderr.contains("hint: "), "{flags:?}: {stderr}");
        assert!(!stderr.contains("hunter2"), "{stderr}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
}
