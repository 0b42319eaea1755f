//! A server as a user runs it: a process with flags, a port, logs and an exit code.

use std::process::ExitStatus;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::{Json, Router};
use http::Request;
use http::request::Builder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::program::{Program, command};
use crate::requests::HttpResponse;

pub const TOKEN: &str = "0123456789abcdef-the-token";
pub const ADMIN: [&str; 4] = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];

/// A running server. It is killed if the test ends before it does.
pub struct Server {
    program: Program,
    pub url: String,
    pub admin_url: Option<String>,
    client: Client<HttpConnector, Body>,
}

impl Server {
    /// Starts a server on a free port and waits until it says that it listens.
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        Self::start_logging(program, "info", arguments)
    }

    pub fn start_logging(program: &str, level: &str, arguments: &[&str]) -> Self {
        Self::start_in(program, &[("RUST_LOG", level)], arguments)
    }

    pub fn start_in(program: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut command = command(program, arguments);
        command.args(["--listen", "127.0.0.1:0"]).envs(environment.iter().copied());
        let mut program = Program::start(&mut command);
        let mut line = |start: &str| match program.line() {
            Ok(line) => match line.strip_prefix(start) {
                Some(url) => url.to_owned(),
                None => panic!("{line:?} stands on stdout, and not {start:?}"),
            },
            Err(error) => panic!("the server does not listen ({error}): {}", program.kill()),
        };
        let url = line("listening on ");
        let admin_url = arguments.contains(&"--admin").then(|| line("admin on "));
        Self { program, url, admin_url, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub fn request(&self, method: &str, path: &str) -> Builder {
        Request::builder().method(method).uri(format!("{}{path}", self.url))
    }

    pub fn admin_request(&self, method: &str, path: &str) -> Builder {
        let url = self.admin_url.as_deref().expect("it has an admin listener");
        Request::builder().method(method).uri(format!("{url}{path}"))
    }

    /// Sends a request with [`TOKEN`] and a body to its second listener.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let request = self.admin_request(method, path);
        let request = request.header("authorization", format!("Bearer {TOKEN}"));
        self.send_body(request, body.to_owned()).await
    }

    /// Sends a request and reads its answer to the end.
    pub async fn send(&self, request: Builder) -> HttpResponse {
        send(&self.client, request, Body::empty()).await
    }

    pub async fn send_body(&self, request: Builder, body: impl Into<Body>) -> HttpResponse {
        send(&self.client, request, body.into()).await
    }

    pub fn spawn(&self, request: Builder) -> JoinHandle<HttpResponse> {
        self.spawn_body(request, Body::empty())
    }

    pub fn spawn_body(&self, request: Builder, body: impl Into<Body>) -> JoinHandle<HttpResponse> {
        let (client, body) = (self.client.clone(), body.into());
        tokio::spawn(async move { send(&client, request, body).await })
    }

    pub async fn get(&self, path: &str) -> HttpResponse {
        self.send(self.request("GET", path)).await
    }

    pub fn order_request(&self, sku: &str, user: &str) -> Builder {
        self.request("POST", &format!("/seckill/{sku}/orders")).header("x-user-id", user)
    }

    pub async fn order(&self, sku: &str, user: &str) -> HttpResponse {
        self.send(self.order_request(sku, user)).await
    }

    pub fn logs(&self) -> String {
        self.program.logs()
    }

    pub fn signal(&self, name: &str) {
        self.program.signal(name);
    }

    /// Waits until the server stops; returns how, what it logged, and what else it printed.
    pub fn stopped(self) -> (ExitStatus, String, Vec<String>) {
        self.program.stopped()
    }

    /// Asks the server to stop, which it does well, and returns its logs.
    pub fn stop(self) -> String {
        self.signal("TERM");
        let (status, logs, printed) = self.stopped();
        assert_eq!((status.code(), printed.len()), (Some(0), 0), "{logs}");
        assert!(!logs.contains("panicked"), "{logs}");
        logs
    }
}

/// Takes alerts on a port of its own. Returns the URL, and what it has taken.
pub async fn webhook() -> (String, Arc<Mutex<Vec<Value>>>) {
    let alerts = Arc::<Mutex<Vec<Value>>>::default();
    let taken = alerts.clone();
    let take = async move |Json(alert): Json<Value>| taken.lock().unwrap().push(alert);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/secret-path", listener.local_addr().unwrap());
    let app = Router::new().route("/secret-path", axum::routing::post(take));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, alerts)
}

async fn send(client: &Client<HttpConnector, Body>, request: Builder, body: Body) -> HttpResponse {
    let response = client.request(request.body(body).unwrap()).await.expect("an answer");
    HttpResponse::read(response).await
}

/// Checks that a program ends with a code when it is given these flags, names what is wrong and prints
/// nothing. Returns its logs.
pub fn fails(program: &str, flags: &[&str], code: i32, part: &str) -> String {
    let (ended, lines, logs) = Program::fed(program, flags, "");
    assert_eq!(ended, Some(code), "{flags:?}: {logs}");
    assert!(logs.contains(part), "{flags:?} should name {part:?}: {logs}");
    assert!(lines.is_empty(), "{flags:?}: {lines:?}");
    logs
}

/// Checks that a program exits with 2 when it is given these flags, and names what is wrong.
pub fn refuses(program: &str, cases: &[(&[&str], &str)]) {
    for (flags, part) in cases {
        fails(program, flags, 2, part);
    }
}

/// Checks that a program exits with 1 when its address is taken, its Redis down or no Redis, and
/// names a way out but no password.
pub fn cannot_start(program: &str) {
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
        let logs = fails(program, flags, 1, part);
        assert!(logs.contains("hint: ") && !logs.contains("hunter2"), "{flags:?}: {logs}");
    }
    refuses(program, &[(&["--response-timeout", "0s"], "it is zero")]);
}
