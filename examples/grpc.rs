//! HTTP and gRPC on one port with one budget, and a client that reads how long it has to wait.
//!
//! ```text
//! cargo run --example grpc
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};

const HELP: &str = "\
Serves GET / and the gRPC service grpc.health.v1.Health on http://127.0.0.1:3000: three requests a
minute for each user, whatever the protocol. Then alice calls four times, and the quota is full.
  curl -i -H 'x-user-id: alice' http://127.0.0.1:3000/";

fn limit() -> SlidingWindowLayer {
    let user = Policy::new("user").quota(Quota::per_minute(3));
    let address = Policy::new("address").quota(Quota::per_minute(100));
    SlidingWindowLayer::new(user, key::header("x-user-id"), MemoryStore::new())
        .rule(address, key::peer_ip())
        // A call of an unknown service is free. The status of a call that sends no message is in the
        // headers; any other comes after the body, which is too late.
        .cancel_if(|response| {
            response.headers().get("grpc-status").is_some_and(|status| status == "5")
        })
}

/// Serves both protocols, the layer in front of both.
///
/// The layer also fits tonic's own server, `Server::builder().layer(limit())`. With the feature `tonic`
/// `key::peer_ip` finds the address there too. Layers with the same policy and store share the budget.
async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let (_, health) = tonic_health::server::health_reporter();
    let grpc = Routes::new(health).prepare().into_axum_router();
    let app = Router::new().route("/", get(async || "hello\n")).merge(grpc).layer(limit());
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}

/// Calls the service and says what a client can read.
async fn call(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let channel = Endpoint::from_shared(format!("http://{server}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for number in 1..=4 {
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-user-id", "alice".parse()?);
        match client.check(request).await {
            Ok(_) => println!("call {number}: ok"),
            Err(status) => println!("call {number}: {}", reason(&status)),
        }
    }
    Ok(())
}

fn reason(status: &Status) -> String {
    // The same wait is in `grpc-retry-pushback-ms`, which gRPC libraries with a retry policy follow.
    let wait = status.get_details_retry_info().and_then(|it| it.retry_delay);
    match wait {
        Some(wait) => format!("{:?}, again in {wait:.0?}: {}", status.code(), status.message()),
        None => format!("{:?}: {}", status.code(), status.message()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let server = listener.local_addr()?;
    let serving = tokio::spawn(serve(listener));
    call(server).await?;
    Ok(serving.await??)
}
