//! TLS behind Sentinels: the master gets no plain text either.

use std::fs::read;
use std::sync::{Arc, Mutex};

use test_support::tls::{self, Certificates};
use test_support::{MASTER, Redis, Sentinel, patient};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tower_sliding_window::store::RedisServers;

/// The first byte of a TLS connection: a handshake record (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

/// What each connection begins with.
type Beginnings = Arc<Mutex<Vec<Vec<u8>>>>;

/// Passes connections on to a server, and records what each begins with. Returns the port.
async fn recorded(server_port: u16) -> (u16, Beginnings) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let beginnings = Beginnings::default();
    let log = beginnings.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let log = log.clone();
            tokio::spawn(async move {
                let mut bytes = vec![0; 4096];
                let Ok(length @ 1..) = client.read(&mut bytes).await else { return };
                log.lock().unwrap().push(bytes[..length].to_vec());
                let mut server = TcpStream::connect(("127.0.0.1", server_port)).await.unwrap();
                let _ = server.write_all(&bytes[..length]).await;
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (port, beginnings)
}

#[tokio::test]
async fn master_named_by_sentinels_gets_tls() {
    let master = Redis::start().await;
    let (plain_port, beginnings) = recorded(master.port()).await;
    let sentinel = Sentinel::start(plain_port).await;
    let files = Certificates::make();
    let Certificates { certificate, key, authority, .. } = &files;
    let port = tls::in_front_of(sentinel.server.port(), certificate, key, authority).await;
    let servers = RedisServers::sentinel([format!("rediss://127.0.0.1:{port}")], MASTER)
        .unwrap()
        .root_certificate(read(authority).unwrap())
        .client_certificate(read(certificate).unwrap(), read(key).unwrap());

    // The master knows no TLS.
    patient().connect(servers).await.expect_err("a master without TLS");
    let beginnings = beginnings.lock().unwrap();
    let (tls, plain): (Vec<_>, Vec<_>) =
        beginnings.iter().partition(|bytes| bytes.first() == Some(&HANDSHAKE));
    assert!(!tls.is_empty(), "the store has not found the master");
    for bytes in plain {
        let text = String::from_utf8_lossy(bytes);
        assert!(text.contains("sentinel-"), "not from the Sentinel: {text:?}");
    }
}
