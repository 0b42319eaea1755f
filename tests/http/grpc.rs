//! gRPC requests: what a tonic client gets from the layer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;
use tonic_types::StatusExt;
use tower_sliding_window::store::Store;
use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};

use test_support::requests::by_user;

type Client = HealthClient<Channel>;

fn per_user(limit: u32, store: impl Store) -> SlidingWindowLayer {
    by_user(Policy::new("user").quota(Quota::per_hour(limit)), store)
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Serves a gRPC service with axum's server.
async fn serve(layer: SlidingWindowLayer) -> SocketAddr {
    let (_, health) = health_reporter();
    let grpc = Routes::new(health).prepare().into_axum_router();
    let (listener, address) = listen().await;
    tokio::spawn(async move { axum::serve(listener, grpc.layer(layer)).await });
    address
}

/// Serves a gRPC service with tonic's server.
async fn serve_tonic(layer: SlidingWindowLayer) -> SocketAddr {
    let (_, health) = health_reporter();
    let (listener, address) = listen().await;
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

async fn connect(server: SocketAddr, from: &str) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let endpoint = endpoint.local_address(Some(from.parse::<IpAddr>().unwrap()));
    HealthClient::new(endpoint.connect().await.unwrap())
}

async fn call(client: &mut Client, user: &str, service: &str) -> Result<(), Status> {
    let mut request = Request::new(HealthCheckRequest { service: service.to_owned() });
    if !user.is_empty() {
        request.metadata_mut().insert("x-user-id", user.parse().unwrap());
    }
    client.check(request).await.map(drop)
}

async fn code(client: &mut Client, user: &str) -> Code {
    call(client, user, "").await.map_or_else(|status| status.code(), |()| Code::Ok)
}

#[tokio::test]
async fn tonic_client_reads_a_denial() {
    let layer = || per_user(1, MemoryStore::new());
    for server in [serve(layer()).await, serve_tonic(layer()).await] {
        let mut client = connect(server, "127.0.0.1").await;
        call(&mut client, "alice", "").await.unwrap();
        let status = call(&mut client, "alice", "").await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let hour = Duration::from_secs(3_590)..=Duration::from_secs(3_600);
        let delay = status.get_details_retry_info().and_then(|it| it.retry_delay);
        assert!(delay.is_some_and(|it| hour.contains(&it)), "{delay:?}");
        assert_eq!(status.metadata().get("ratelimit-policy").unwrap(), r#""user";q=1;w=3600"#);
        assert_eq!(code(&mut client, "").await, Code::Unauthenticated);
    }
}

/// A call that fails without a message has its status in the headers.
#[tokio::test]
async fn cancel_if_sees_the_status_of_a_call() {
    let ok = |response: &http::Response<()>| !response.headers().contains_key("grpc-status");
    let layer = per_user(2, MemoryStore::new()).cancel_if(ok);
    let mut client = connect(serve_tonic(layer).await, "127.0.0.1").await;
    for _ in 0..5 {
        call(&mut client, "alice", "").await.unwrap();
    }
    for expected in [Code::NotFound, Code::NotFound, Code::ResourceExhausted] {
        let status = call(&mut client, "alice", "unknown").await.unwrap_err();
        assert_eq!(status.code(), expected, "only failed calls count");
    }
}

#[tokio::test]
#[cfg_attr(not(target_os = "linux"), ignore = "only Linux has all of 127.0.0.0/8")]
async fn peer_address_of_a_tonic_server() {
    let policy = Policy::new("ip").quota(Quota::per_hour(1));
    let layer = SlidingWindowLayer::new(policy, key::peer_ip(), MemoryStore::new());
    let server = serve_tonic(layer).await;
    for address in ["127.0.0.1", "127.0.0.2"] {
        let mut client = connect(server, address).await;
        assert_eq!(code(&mut client, "").await, Code::Ok);
        assert_eq!(code(&mut client, "").await, Code::ResourceExhausted);
    }
}
