use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::body::WholeBody;

/// No answer may take longer. The timeouts of the server are longer still, so they help no one here.
const HANG: Duration = Duration::from_secs(20);
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n";

async fn bind(max_connections: u32) -> Server {
    let flags = ListenFlags {
        listen: "127.0.0.1:0".parse().unwrap(),
        idle_timeout: 10 * HANG,
        io_timeout: 10 * HANG,
        max_connections: NonZeroU32::new(max_connections).unwrap(),
    };
    Server::bind(&flags).await.unwrap()
}

/// Serves an app that has a `/healthz` besides these routes.
async fn serve(max_connections: u32, routes: Router) -> SocketAddr {
    let server = bind(max_connections).await;
    let address = server.address;
    tokio::spawn(server.serve(routes.route("/healthz", get(|| async { "ok" }))));
    address
}

/// Connects from an address of its own, 127.0.0.N.
async fn connect_from(client: u8, server: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let own = IpAddr::from(Ipv4Addr::new(127, 0, 0, client));
    socket.bind((own, 0).into()).unwrap();
    socket.connect(server).await.unwrap()
}

async fn connect_and_send(client: u8, server: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = connect_from(client, server).await;
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads until a text has come. Fails if the server closes the connection before that.
async fn read_until(stream: &mut TcpStream, text: &str) {
    let read = async {
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(text) {
            let length = stream.read_buf(&mut all).await.expect("an open connection");
            assert!(length > 0, "it is closed: {}", String::from_utf8_lossy(&all));
        }
    };
    timeout(HANG, read).await.expect("an answer");
}

async fn is_served(client: u8, server: SocketAddr) {
    let mut stream = connect_and_send(client, server, HEALTH).await;
    read_until(&mut stream, "200 OK").await;
}

#[tokio::test]
async fn unfinished_bodies_make_room() {
    let routes = Router::new().route("/", post(async |_: WholeBody| "read"));
    let server = serve(8, routes).await;
    let mut held = Vec::new();
    for _ in 0..32 {
        let half = b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nhalf";
        held.push(connect_and_send(1, server, half).await);
    }
    is_served(1, server).await;
}

#[tokio::test]
async fn bodies_that_take_all_room_make_room() {
    let server = serve(1024, Router::new().route("/", post(async |_: WholeBody| "read"))).await;
    let half = b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 2000000\r\n\r\n".to_vec();
    let half = [half, vec![b'a'; 1_000_000]].concat();
    let mut held = Vec::new();
    for _ in 0..70 {
        let mut stream = connect_from(1, server).await;
        // The last ones are answered before that.
        let _ = stream.write_all(&half).await;
        held.push(stream);
    }
    let whole = b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 999999\r\n\r\n".to_vec();
    let whole = [whole, vec![b'a'; 999_999]].concat();
    let mut statuses = Vec::new();
    while !statuses.contains(&"HTTP/1.1 200".to_owned()) {
        assert!(statuses.len() < 10, "{statuses:?}");
        let mut other = connect_from(2, server).await;
        let _ = other.write_all(&whole).await;
        let mut status = [0; 12];
        timeout(HANG, other.read_exact(&mut status)).await.expect("an answer").unwrap();
        statuses.push(String::from_utf8_lossy(&status).into_owned());
    }
}

#[tokio::test]
async fn responses_that_are_not_taken_make_room() {
    let large = Bytes::from(vec![b'a'; 64 * 1024]);
    let server = serve(2, Router::new().route("/", get(async move || large))).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect_from(1, server).await;
        let pipeline = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n".repeat(500);
        // Until the server takes no more.
        while timeout(Duration::from_secs(1), stream.write_all(&pipeline)).await.is_ok() {}
        held.push(stream);
    }
    is_served(1, server).await;
}

#[tokio::test]
async fn the_address_with_the_most_connections_makes_room() {
    let server = serve(64, Router::new()).await;
    let mut honest = Vec::new();
    for client in 2..6 {
        let mut stream = connect_and_send(client, server, HEALTH).await;
        read_until(&mut stream, "200 OK").await;
        honest.push(stream);
    }
    let mut flood = Vec::new();
    for _ in 0..700 {
        flood.push(connect_from(1, server).await);
    }
    is_served(6, server).await;
    for stream in &mut honest {
        stream.write_all(HEALTH).await.unwrap();
        read_until(stream, "200 OK").await;
    }
}

#[tokio::test]
async fn request_whose_body_is_whole_is_not_closed() {
    let (handle, handled) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begun, go_on) = (handle.clone(), handled.clone());
    let work = async move |_: WholeBody| {
        begun.notify_one();
        go_on.notified().await;
        "handled"
    };
    let server = serve(8, Router::new().route("/", post(work))).await;
    let half = b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 8\r\n\r\nhalf";
    let mut order = connect_and_send(1, server, half).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    order.write_all(b"half").await.unwrap();
    handle.notified().await;
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(connect_from(1, server).await);
    }
    is_served(1, server).await;
    handled.notify_one();
    read_until(&mut order, "handled").await;
}

#[tokio::test]
async fn stream_that_is_read_is_not_closed() {
    let (next, part) = tokio::sync::mpsc::channel::<Bytes>(1);
    let part = Arc::new(tokio::sync::Mutex::new(Some(part)));
    let stream = async move || {
        let part = part.lock().await.take().unwrap();
        Body::new(Parts(part))
    };
    let server = serve(8, Router::new().route("/", get(stream))).await;
    let mut viewer = connect_and_send(1, server, b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    next.send("first".into()).await.unwrap();
    read_until(&mut viewer, "first").await;
    let mut others = Vec::new();
    for _ in 0..80 {
        others.push(connect_from(1, server).await);
    }
    is_served(1, server).await;
    next.send("second".into()).await.unwrap();
    read_until(&mut viewer, "second").await;
}

/// A body whose frames come when someone sends them.
struct Parts(tokio::sync::mpsc::Receiver<Bytes>);

impl hyper::body::Body for Parts {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| Ok(hyper::body::Frame::data(part))))
    }
}

#[tokio::test]
async fn a_thousand_clients_can_queue_at_the_listener() {
    let server = bind(1).await;
    let mut queued = Vec::new();
    for _ in 0..1000 {
        let mut stream =
            timeout(HANG / 20, connect_from(1, server.address)).await.expect("a place");
        stream.write_all(HEALTH).await.unwrap();
        queued.push(stream);
    }
}
