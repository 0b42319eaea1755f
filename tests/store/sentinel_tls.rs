//! TLS behind Sentinels: the master gets no plain text either.

use std::fs::read;

use test_support::proxy::Proxy;
use test_support::tls::{self, Certificates};
use test_support::{MASTER, Redis, Sentinel, patient};
use tower_sliding_window::store::RedisServers;

/// The first byte of a TLS connection: a handshake record (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

#[tokio::test]
async fn master_named_by_sentinels_gets_tls() {
    let master = Redis::start().await;
    let proxy = Proxy::to(master.port()).await;
    let sentinel = Sentinel::start(proxy.port()).await;
    let files = Certificates::make();
    let Certificates { certificate, key, authority, .. } = &files;
    let port = tls::in_front_of(sentinel.server.port(), &files).await;
    let servers = RedisServers::sentinel([format!("rediss://127.0.0.1:{port}")], MASTER)
        .unwrap()
        .root_certificate(read(authority).unwrap())
        .client_certificate(read(certificate).unwrap(), read(key).unwrap());

    // The master knows no TLS.
    patient().connect(servers).await.expect_err("a master without TLS");
    let beginnings = proxy.beginnings();
    let (tls, plain): (Vec<_>, Vec<_>) =
        beginnings.iter().partition(|bytes| bytes.first() == Some(&HANDSHAKE));
    assert!(!tls.is_empty(), "the store has not found the master");
    for bytes in plain {
        let text = String::from_utf8_lossy(bytes);
        assert!(text.contains("sentinel-"), "not from the Sentinel: {text:?}");
    }
}
