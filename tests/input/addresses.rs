//! Addresses of peers and clients, as proxies and clients may claim them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::request::Builder;
use http::{HeaderValue, Request};
use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_sliding_window::key::{self, TrustedProxies};
use tower_sliding_window::{Key, KeyError, KeyExtractor};

use crate::extractors::{any_header, parts, trusted};

fn proxy() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 3]>().prop_map(|[b, c, d]| Ipv4Addr::new(10, b, c, d).into()),
        any::<[u16; 5]>()
            .prop_map(|[d, e, f, g, h]| { Ipv6Addr::new(0x2001, 0xdb8, 1, d, e, f, g, h).into() }),
    ]
}

fn client() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>().prop_filter("no proxy", |ip| match ip.to_canonical() {
        IpAddr::V4(ip) => ip.octets()[0] != 10,
        IpAddr::V6(ip) => ip.segments()[..3] != [0x2001, 0xdb8, 1],
    })
}

fn of_client(peer: IpAddr, forwarded: &[HeaderValue]) -> Result<Key, KeyError> {
    let request = Request::builder().extension(SocketAddr::from((peer, 443)));
    let with = |request: Builder, value| request.header("x-forwarded-for", value);
    key::client_ip(trusted()).extract(&parts(forwarded.iter().fold(request, with)))
}

fn of_peer(peer: IpAddr) -> Result<Key, KeyError> {
    let request = Request::builder().extension(SocketAddr::from((peer, 443)));
    key::peer_ip().extract(&parts(request))
}

fn claim() -> impl Strategy<Value = String> {
    #[rustfmt::skip]
    const PIECES: &[&str] = &[
        "7.7.7.7", "::1", "2001:db8::7", "::ffff:7.7.7.7", "[", "]", ":", ":80", ":65536", "%1",
        "%eth0", " ", "\t", "0x7f.1", "07.7.7.7", "1", "unknown", "\"", "for=", "/24", "\u{a0}",
    ];
    vec(select(PIECES), 0..5).prop_map(|it| it.concat())
}

fn forwarded(entries: &[IpAddr]) -> HeaderValue {
    let entries: Vec<_> = entries.iter().map(IpAddr::to_string).collect();
    entries.join(", ").parse().expect("a header")
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_forwarded_address_is_read_as_std_reads_it(claim in claim(), peer in proxy()) {
        let line = HeaderValue::from_bytes(claim.as_bytes()).expect("a header");
        let text = claim.trim_matches([' ', '\t']);
        let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
        let address = text.parse::<IpAddr>().ok();
        let address = address.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()));
        let address = address.or_else(|| in_brackets().map(IpAddr::V6));
        prop_assert_eq!(of_client(peer, &[line]), address.map(Key::from).ok_or(KeyError::Invalid));
    }

    #[test]
    fn a_network_is_that_of_ipnet(
        ip in prop_oneof![any::<IpAddr>(), any::<Ipv4Addr>().prop_map(|it| it.to_ipv6_mapped().into())],
        (v4, v6) in (1_u8..=32, 1_u8..=128),
    ) {
        let extractor = key::peer_ip().ipv4_prefix(v4).ipv6_prefix(v6);
        let canonical = ip.to_canonical();
        let length = if canonical.is_ipv4() { v4 } else { v6 };
        let net = IpNet::new(canonical, length).unwrap().trunc();
        let text = if length == 32 && canonical.is_ipv4() { net.addr().to_string() } else { net.to_string() };
        prop_assert_eq!(extractor.key_of(ip), Key::from(text));
        let request = || Request::builder().extension(SocketAddr::from((ip, 443)));
        prop_assert_eq!(extractor.extract(&parts(request())), Ok(extractor.key_of(ip)));

        let behind = key::client_ip("10.0.0.1".parse().unwrap());
        let behind = behind.ipv4_prefix(v4).ipv6_prefix(v6);
        let proxy = Request::builder().extension(SocketAddr::from(([10, 0, 0, 1], 443)));
        let forwarded = proxy.header("x-forwarded-for", ip.to_string());
        prop_assert_eq!(behind.extract(&parts(forwarded)), Ok(extractor.key_of(ip)));
        prop_assert_eq!(of_peer(ip), Ok(Key::from(ip)), "the default");
    }

    #[test]
    fn forged_forwarded_for_changes_no_key(
        forged in vec(any_header(), 0..4),
        same_line in any::<bool>(),
        client in client(),
        proxies in vec(proxy(), 0..3),
        peer in proxy(),
    ) {
        let honest = forwarded(&[&[client][..], &proxies].concat());
        let mut lines = forged;
        if let (true, Some(last)) = (same_line, lines.last_mut()) {
            let joined = [last.as_bytes(), b",", honest.as_bytes()].concat();
            *last = HeaderValue::from_bytes(&joined).unwrap();
        } else {
            lines.push(honest);
        }
        prop_assert_eq!(of_client(peer, &lines), of_peer(client));
    }

    #[test]
    fn named_networks_are_trusted_and_no_others(
        v4 in any::<u32>(),
        bits in 1_u8..=32,
        (flip, ip) in (0_u8..33, any::<u32>()),
    ) {
        // Most of the addresses differ from the network in one bit only.
        let ip = 1_u32.checked_shl(flip.into()).map_or(ip, |bit| v4 ^ bit);
        let (net, ip) = (Ipv4Addr::from(v4), Ipv4Addr::from(ip));
        let proxies: TrustedProxies = format!(" ::1 ,{net}/{bits}").parse().unwrap();
        let request = Request::builder()
            .extension(SocketAddr::from((ip, 1)))
            .header("x-forwarded-for", "192.0.2.1");
        let within = u64::from(v4 ^ u32::from(ip)) >> (32 - bits) == 0;
        let client = if within { "192.0.2.1".parse().unwrap() } else { IpAddr::from(ip) };
        // Where the claim itself is trusted the answer is the same: it is the leftmost.
        let key = key::client_ip(proxies).extract(&parts(request));
        prop_assert_eq!(key, of_peer(client));
    }
}
