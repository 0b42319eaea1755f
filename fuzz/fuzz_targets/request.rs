//! What a client sends: cookies, tokens, queries and forwarded addresses. `tests/input/extractors.rs` compares the same
//! extractors with the parsers that applications use, on requests that proptest writes.
#![no_main]

use std::net::{Ipv4Addr, SocketAddr};

use http::{HeaderValue, Request};
use libfuzzer_sys::fuzz_target;
use tower_sliding_window::key::{self, TrustedProxies};
use tower_sliding_window::{Key, KeyExtractor};

const NAMES: [&str; 4] = ["authorization", "cookie", "x-forwarded-for", "x-user-id"];

fuzz_target!(|data: &[u8]| {
    // A line for the query, and then a header a line: its name is the first byte.
    let mut lines = data.split(|byte| *byte == b'\n');
    let query = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let mut request = Request::builder().extension(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    if let Ok(uri) = format!("/?{query}").parse::<http::Uri>() {
        request = request.uri(uri);
    }
    for line in lines {
        let Some((name, value)) = line.split_first() else { continue };
        if let Ok(value) = HeaderValue::from_bytes(value) {
            request = request.header(NAMES[usize::from(*name) % NAMES.len()], value);
        }
    }
    let parts = request.body(()).expect("a request").into_parts().0;
    let proxies: TrustedProxies = "127.0.0.0/8, 10.0.0.0/8, 2001:db8:1::/48".parse().expect("networks");
    let extractors: [&dyn KeyExtractor; 6] = [
        &key::header("x-user-id"),
        &key::cookie("sid"),
        &key::query("user"),
        &key::bearer(|token| Some(Key::from(token))),
        &key::client_ip(proxies),
        &key::pair(key::cookie("sid"), key::hashed(key::header("x-user-id"))),
    ];
    for extractor in extractors {
        let key = extractor.extract(&parts);
        assert_eq!(key, extractor.extract(&parts), "the same request, the same key");
        assert!(key.is_ok_and(|key| key.as_bytes().len() <= 128) || extractor.extract(&parts).is_err());
    }
});
