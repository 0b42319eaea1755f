//! At most two exports of a tenant at a time, over all servers. A background job shares the places.
//!
//! An export counts until its body is over: until the last frame was sent, or the client has hung up.
//!
//! ```text
//! cargo run --example in_flight
//! ```

use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::{Router, routing::get};
use http_body_util::channel::Channel;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota, SlidingWindowLayer, key};

const HELP: &str = "\
Starts a server with slow exports, at most two of a tenant at a time, and is its own client: a third
export is refused, a client hangs up, and a background job takes its place. Takes no options.";

/// A line every 50 ms, for a second.
async fn export() -> Body {
    let (mut lines, body) = Channel::<Bytes, io::Error>::new(1);
    tokio::spawn(async move {
        for number in 1..=20 {
            sleep(Duration::from_millis(50)).await;
            if lines.send_data(format!("row {number}\n").into()).await.is_err() {
                return; // the client has hung up
            }
        }
    });
    Body::new(body)
}

/// The response to an export as the client reads it. To drop it is to hang up.
type Response = Lines<BufReader<TcpStream>>;

async fn begin(server: SocketAddr, tenant: &str) -> io::Result<Response> {
    let mut connection = TcpStream::connect(server).await?;
    let head = format!("GET /export HTTP/1.1\r\nhost: localhost\r\nx-tenant: {tenant}\r\n");
    connection.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await?;
    let mut response = BufReader::new(connection).lines();
    while let Some(line) = response.next_line().await? {
        match line.split_once(' ') {
            // A denial has no `retry-after`: nobody knows when an export will be over.
            Some(("HTTP/1.1", status)) => println!("export of {tenant}: {status}"),
            Some(("ratelimit-policy:" | "retry-after:", _)) => println!("  {line}"),
            Some(_) => {}
            None => break,
        }
    }
    Ok(response)
}

async fn read_to_end(mut export: Response) -> io::Result<()> {
    while export.next_line().await?.is_some() {}
    println!("an export of acme has ended");
    Ok(())
}

/// A job takes a place in the same log, and gives it back when the permit is dropped.
async fn report(exports: Limiter) {
    let began = Instant::now();
    match exports.acquire("acme", Duration::from_secs(10)).await {
        Ok(_permit) => {
            println!("the report of acme begins after {:?}", began.elapsed());
            sleep(Duration::from_millis(200)).await;
            println!("the report of acme has ended");
        }
        Err(error) => eprintln!("error: no report of acme: {error}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    // For several servers: RedisStore::connect("redis://127.0.0.1:6379").await
    let store = MemoryStore::new();
    // The window is the lease. It is renewed while an export runs, for hours if need be. A server that
    // dies does not renew its leases: its places are free 30 seconds later.
    let exports = Policy::new("exports").quota(Quota::new(2, Duration::from_secs(30))).in_flight();
    let limiter = Limiter::new(exports.clone(), store.clone());
    let limit = SlidingWindowLayer::new(exports, key::header("x-tenant"), store);
    let app = Router::new().route("/export", get(export)).layer(limit);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());

    let (first, second) = (begin(server, "acme").await?, begin(server, "acme").await?);
    drop(begin(server, "acme").await?); // refused
    drop(begin(server, "zenith").await?);
    let report = tokio::spawn(report(limiter));
    println!("a client of acme hangs up");
    drop(first);
    report.await?;
    read_to_end(second).await?;
    read_to_end(begin(server, "acme").await?).await
}
