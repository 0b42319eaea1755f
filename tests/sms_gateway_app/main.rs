//! What the SMS gateway promises, taken to pieces, in process and under a clock that the tests turn.
#![allow(clippy::unwrap_used, reason = "a test that can't go on is to panic")]
#![allow(dead_code, reason = "the example's modules are taken in as they are")]

mod adapting;
mod alerting;
#[path = "../../examples/sms_gateway/alerts.rs"]
mod alerts;
#[path = "../../examples/sms_gateway/args.rs"]
mod args;
#[path = "../../examples/sms_gateway/bucket.rs"]
mod bucket;
mod changing;
#[path = "../../examples/common/mod.rs"]
mod common;
#[path = "../../examples/sms_gateway/controller.rs"]
mod controller;
#[path = "../../examples/sms_gateway/downstream.rs"]
mod downstream;
#[path = "../../examples/sms_gateway/gateway.rs"]
mod gateway;
mod hanging_up;
#[path = "../../examples/sms_gateway/levels.rs"]
mod levels;
#[path = "../../examples/sms_gateway/message.rs"]
mod message;
#[path = "../../examples/sms_gateway/name.rs"]
mod name;
#[path = "../../examples/sms_gateway/policies.rs"]
mod policies;
#[path = "../../examples/sms_gateway/problem.rs"]
mod problem;
#[path = "../../examples/sms_gateway/routes.rs"]
mod routes;
mod sending;
#[path = "../../examples/sms_gateway/share.rs"]
mod share;
#[path = "../../examples/sms_gateway/shared.rs"]
mod shared;
#[path = "../../examples/sms_gateway/start.rs"]
mod start;
#[path = "../../examples/sms_gateway/sum.rs"]
mod sum;
#[path = "../../examples/sms_gateway/tally.rs"]
mod tally;
#[path = "../../examples/sms_gateway/thresholds.rs"]
mod thresholds;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use clap::Parser;
use http::Request;
use serde_json::{Value, json};

use test_support::requests::{Answer, send};

const SECOND: Duration = Duration::from_secs(1);

/// The whole server, started with these flags and without a Redis.
#[derive(Clone)]
struct App(Router);

impl App {
    async fn start(flags: &[&str]) -> Self {
        let flags = [&["sms_gateway", "--downstream-latency", "0ms"], flags].concat();
        let args = args::Args::try_parse_from(flags).unwrap_or_else(|error| panic!("{error}"));
        Self(start::app(args).await.unwrap_or_else(|error| panic!("{error}")))
    }

    fn request(method: &str, path: &str, peer: &str, body: &str) -> Request<Body> {
        let mut request =
            Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
        let peer: SocketAddr = peer.parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        request
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        send(&self.0, Self::request(method, path, "127.0.0.1:9", body)).await
    }

    async fn sms(&self, institution: &str, channel: &str, to: &str) -> Answer {
        self.ask("POST", "/sms", &body(institution, channel, to)).await
    }

    async fn policies(&self) -> Value {
        serde_json::from_str(&self.ask("GET", "/policies", "").await.body).unwrap()
    }
}

fn body(institution: &str, channel: &str, to: &str) -> String {
    json!({ "institution": institution, "channel": channel, "to": to, "text": "Hello" }).to_string()
}

fn violated(answer: &Answer) -> Value {
    assert_eq!(answer.status, 429, "{answer:?}");
    answer.problem()["violated-policies"].clone()
}

/// Flags that leave only the receiver's level to refuse anything.
const ROOMY: [&str; 6] =
    ["--global", "9999/1s", "--institution-limit", "999/1s", "--channel-limit", "999/1s"];
