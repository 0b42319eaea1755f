//! A client that writes whatever bytes it likes.

use std::time::Duration;

use axum::body::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use test_support::server_process::{HttpResponse, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No connection that is to be closed may stay open longer.
const HANG: Duration = Duration::from_secs(30);

/// One connection to a server.
pub(crate) struct RawClient(TcpStream);

impl RawClient {
    /// Connects to a server.
    pub(crate) async fn connect(server: &Server) -> Self {
        let address = server.url.trim_start_matches("http://");
        Self(TcpStream::connect(address).await.expect("the server accepts connections"))
    }

    /// Writes bytes as they are. A server that has closed already does not have to read them.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
    }

    /// Closes this side of the connection only.
    pub(crate) async fn half_close(&mut self) {
        let _ = self.0.shutdown().await;
    }

    /// Reads until the server closes, and returns the responses. A reset is a close without one.
    pub(crate) async fn responses(&mut self) -> Vec<HttpResponse> {
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(HANG, self.0.read_to_end(&mut bytes));
        let _ = read.await.expect("the server closes the connection");
        let (mut rest, mut responses) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            responses.push(read_response(&mut rest));
        }
        responses
    }
}

/// Takes the first answer off what was read.
fn read_response(bytes: &mut &[u8]) -> HttpResponse {
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").expect("a whole head");
    let head = std::str::from_utf8(&bytes[..end]).expect("a head in ASCII");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|it| it.split(' ').nth(1)).expect("a status line");
    let status: StatusCode = status.parse().expect("a status");
    let headers: HeaderMap = lines
        .map(|line| {
            let (name, value) = line.split_once(": ").expect("a header");
            let name: HeaderName = name.parse().expect("a header name");
            (name, value.parse::<HeaderValue>().expect("a header value"))
        })
        .collect();
    let length = headers.get("content-length").map_or("0", |it| it.to_str().expect("digits"));
    let (from, length) = (end + 4, length.parse::<usize>().expect("a length"));
    let body = Bytes::copy_from_slice(&bytes[from..from + length]);
    *bytes = &bytes[from + length..];
    HttpResponse { status, headers, body }
}
