//! A client that writes whatever bytes it likes, and leaves when it likes.

use std::time::Duration;

use axum::body::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

use crate::server_process::{HttpResponse, Server};

/// No answer may take longer, nor may a connection that is to be closed stay open.
const HANG: Duration = Duration::from_secs(30);

/// A server that takes nothing for so long is full.
const FULL: Duration = Duration::from_secs(1);

/// One connection to a server.
pub struct RawClient(TcpStream);

impl RawClient {
    /// Connects to a server.
    pub async fn connect(server: &Server) -> Self {
        Self::connect_to(&server.url).await
    }

    /// Connects to the listener at a URL.
    pub async fn connect_to(url: &str) -> Self {
        let address = url.trim_start_matches("http://");
        Self(TcpStream::connect(address).await.expect("the server accepts connections"))
    }

    /// Writes bytes as they are. A server that has closed already does not have to read them.
    pub async fn write(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
    }

    /// Writes bytes again and again until the server no longer takes any.
    pub async fn write_until_full(&mut self, bytes: &[u8]) {
        while let Ok(written) = tokio::time::timeout(FULL, self.0.write_all(bytes)).await {
            written.expect("the server keeps the connection");
        }
    }

    /// Closes this side of the connection only.
    pub async fn half_close(&mut self) {
        let _ = self.0.shutdown().await;
    }

    /// Breaks the connection, as a machine does that has never heard of it.
    pub fn reset(self) {
        self.0.set_zero_linger().expect("a connection that can be reset");
    }

    /// Waits until the server has sent something, and leaves it unread.
    pub async fn has_answered(&self) {
        let readable = tokio::time::timeout(HANG, self.0.readable()).await;
        readable.expect("the server answers").expect("an open connection");
    }

    /// Waits until the server has closed the connection, without reading what it has sent before.
    pub async fn is_closed(&self) {
        let closed = tokio::time::timeout(HANG, self.0.ready(Interest::ERROR)).await;
        closed.expect("the server closes the connection").expect("a connection");
    }

    /// Reads until a text has come.
    pub async fn read_until(&mut self, text: &str) {
        let mut bytes = Vec::new();
        let read = async {
            while !String::from_utf8_lossy(&bytes).contains(text) {
                let length = self.0.read_buf(&mut bytes).await.expect("an open connection");
                assert!(length > 0, "it is closed before {text:?}");
            }
        };
        let read = tokio::time::timeout(HANG, read).await;
        assert!(read.is_ok(), "no {text:?} in {}", String::from_utf8_lossy(&bytes));
    }

    /// Reads until the server closes, and returns the responses. A reset is a close without one.
    pub async fn responses(&mut self) -> Vec<HttpResponse> {
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
