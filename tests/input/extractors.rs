//! Extractors against anything that a client may write, and addresses as proxies and clients may claim them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::extract::connect_info::MockConnectInfo;
use cookie::Cookie;
use headers::HeaderMapExt;
use headers::authorization::{Authorization, Bearer};
use http::request::{Builder, Parts};
use http::{HeaderValue, Request, Uri};
use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tonic::transport::server::TcpConnectInfo;
use tower_sliding_window::key::{self, TrustedProxies};
use tower_sliding_window::*;

fn parts(request: Builder) -> Parts {
    request.body(()).expect("a request").into_parts().0
}

/// What the tests of `client_ip` trust.
fn trusted() -> TrustedProxies {
    "10.0.0.0/8, 2001:db8:1::/48".parse().expect("networks")
}

fn header_value() -> impl Strategy<Value = HeaderValue> {
    vec(any::<u8>(), 0..200).prop_filter_map("a header's bytes", |bytes| {
        HeaderValue::from_bytes(&bytes.iter().map(|it| (*it).max(32)).collect::<Vec<_>>()).ok()
    })
}

/// Fewer pieces than a number, of those between the bars, in any order.
fn joined(pieces: &'static str, fewer_than: usize) -> impl Strategy<Value = String> {
    let pieces: Vec<_> = pieces.split('|').collect();
    vec(select(pieces), 0..fewer_than).prop_map(|it| it.concat())
}

/// Pieces of what the extractors look for.
fn near_miss() -> impl Strategy<Value = HeaderValue> {
    let pieces = "sid|=|;| |,|Bearer|bearer |10.0.0.1|7.7.7.7|::1|[|]|:80|\"|%|%zz|é|\t|0|unknown|\
                  2001:db8:1::1|sid=x";
    joined(pieces, 12).prop_map(|it| HeaderValue::from_bytes(it.as_bytes()).expect("a header"))
}

fn any_header() -> impl Strategy<Value = HeaderValue> {
    prop_oneof![header_value(), near_miss()]
}

/// Reads cookies as axum-extra's `CookieJar` does: lines that are not text are passed over, and so
/// are cookies that can't be parsed.
fn session(parts: &Parts) -> Vec<String> {
    let lines = parts.headers.get_all("cookie").iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(Cookie::split_parse_encoded)
        .filter_map(Result::ok)
        .filter(|cookie| cookie.name() == "sid")
        .map(|cookie| cookie.value_trimmed().to_owned())
        .collect()
}

/// Ways to write the cookie `sid` of a few users, and what is not quite it.
fn cookie_line() -> impl Strategy<Value = HeaderValue> {
    #[rustfmt::skip]
    const PIECES: &[&[u8]] = &[
        b"sid", b"s%69d", b"%73id", b"SID", b"sid%20", b"%ff", b"=", b"=", b"=", b";", b";",
        b"; ", b" ", b"\t", b"alice", b"al%69ce", b"%61lice", b"%22alice%22", b"\"alice\"", b"\"",
        b"bob", b"%zz", b"%", b"+", b"%2B", b"\xc3\xa9", b"%C3%A9", b",",
    ];
    let line = |pieces: Vec<&[u8]>| HeaderValue::from_bytes(&pieces.concat()).expect("a header");
    prop_oneof![
        vec(select(PIECES), 0..12).prop_map(line),
        (select(&PIECES[..5]), vec(select(&PIECES[11..]), 0..3), vec(select(PIECES), 0..6))
            .prop_map(move |(name, value, rest)| {
                line([vec![name, b"="], value, vec![b";"], rest].concat())
            }),
    ]
}

/// Pieces of a query, of which some make the parameter `user`.
fn query_text() -> impl Strategy<Value = String> {
    let pieces = "user|us%65r|%75ser|USER|user%20|user+|%ff|=|=|=|&|&|;|alice|%61lice|al%69ce|bob|+|\
                  %20|%2B|%fe|%EF%BF%BD|%C3%A9|é|%|%z|?";
    joined(pieces, 12)
}

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

fn from(peer: IpAddr) -> Builder {
    Request::builder().extension(ConnectInfo(SocketAddr::new(peer, 443)))
}

fn of_client(peer: IpAddr, forwarded: &[HeaderValue]) -> Result<Key, KeyError> {
    let with = |request: Builder, value| request.header("x-forwarded-for", value);
    key::client_ip(trusted()).extract(&parts(forwarded.iter().fold(from(peer), with)))
}

fn of_peer(peer: IpAddr) -> Result<Key, KeyError> {
    key::peer_ip().extract(&parts(from(peer)))
}

fn claim() -> impl Strategy<Value = String> {
    let pieces = "7.7.7.7|::1|2001:db8::7|::ffff:7.7.7.7|[|]|:|:80|:65536|%1|%eth0| |\t|0x7f.1|\
                  07.7.7.7|1|unknown|\"|for=|/24|\u{a0}";
    joined(pieces, 5)
}

fn forwarded(entries: &[IpAddr]) -> HeaderValue {
    let entries: Vec<_> = entries.iter().map(IpAddr::to_string).collect();
    entries.join(", ").parse().expect("a header")
}

/// Holds a clone of an extractor to a table.
fn hold(extractor: impl KeyExtractor + Clone, table: Vec<(&str, Builder, Result<Key, KeyError>)>) {
    let extractor = extractor.clone();
    for (name, request, expected) in table {
        assert_eq!(extractor.extract(&parts(request)), expected, "{name}");
    }
}

#[test]
fn large_cookies_and_queries_are_read() {
    let cookie = |text: &str| Request::builder().header("cookie", text);
    let query = |text: &str| Request::builder().uri(format!("/?{text}"));
    let long = "x".repeat(1_000_000);
    let many = "a=b; ".repeat(200_000) + "sid=x";
    let table = vec![
        ("1 MB", cookie(&format!("a=b; sid={long}")), Ok(Key::from(&long))),
        ("200,000 of them", cookie(&many), Ok(Key::from("x"))),
    ];
    hold(key::cookie("sid"), table);
    let long = &long[..60_000];
    let table = vec![
        ("60 kB", query(&format!("user={long}")), Ok(Key::from(long))),
        ("10,000 of them", query(&("a=b&".repeat(10_000) + "user=x")), Ok(Key::from("x"))),
    ];
    hold(key::query("user"), table);
}

#[test]
fn every_bearer_token_is_handled() {
    let bearer = |value: &[u8]| Request::builder().header("authorization", value);
    let twice = bearer(b"Bearer a").header("authorization", "Bearer a");
    let long = "x".repeat(1_000_000);
    let table = vec![
        ("none", Request::builder(), Err(KeyError::Missing)),
        ("empty", bearer(b""), Err(KeyError::Missing)),
        ("the scheme only", bearer(b"Bearer"), Err(KeyError::Missing)),
        ("another scheme", bearer(b"Basic a"), Err(KeyError::Missing)),
        ("refused by the closure", bearer(b"Bearer forged-a"), Err(KeyError::Missing)),
        ("no ASCII", bearer(b"Bearer a\xff"), Err(KeyError::Invalid)),
        ("twice", twice, Err(KeyError::Invalid)),
        ("1 MB", bearer(format!("Bearer {long}").as_bytes()), Ok(Key::hashed(&long))),
    ];
    hold(key::bearer(|token| (!token.starts_with("forged")).then(|| Key::from(token))), table);
}

#[test]
fn every_combination_has_its_key() {
    let both = || Request::builder().header("a", "1").header("b", "2");
    let only_b = || Request::builder().header("b", "1");
    let twice = || only_b().header("a", "1").header("a", "1");
    let joined = |first: &str, second: &str| Ok(Key::from(first).join(&Key::from(second)));
    let [a, b] = ["a", "b"].map(|name| move || key::header(name));
    let table = vec![
        ("both of a pair", both(), joined("1", "2")),
        ("one of a pair", only_b(), Err(KeyError::Missing)),
    ];
    hold(key::pair(a(), b()), table);
    let table = vec![
        ("the first of two", both(), joined("first", "1")),
        ("the second of two", only_b(), joined("else", "1")),
        ("the first twice", twice(), Err(KeyError::Invalid)),
        ("none of two", Request::builder(), Err(KeyError::Missing)),
    ];
    hold(key::first_of(a(), b()), table);
    let optional = key::first_of(key::optional(a()), b());
    hold(optional, vec![("the first does not apply", only_b(), joined("else", "1"))]);
    let table = vec![
        ("hashed", both(), Ok(Key::hashed("1"))),
        ("nothing to hash", only_b(), Err(KeyError::Missing)),
    ];
    hold(key::hashed(a()), table);
    let table = vec![
        ("optional", only_b(), Err(KeyError::NotApplicable)),
        ("optional and twice", twice(), Err(KeyError::Invalid)),
    ];
    hold(key::optional(a()), table);
    hold(key::constant("x"), vec![("constant", both(), Ok(Key::from("x")))]);

    let mistake = KeyError::NotProvided { fix: "change the server" };
    let of_server = move |_: &Parts| Err::<Key, _>(mistake);
    let table = || vec![("a mistake", both(), Err(mistake))];
    hold(key::optional(of_server), table());
    hold(key::first_of(of_server, key::constant("x")), table());
}

fn via(peer: &str, forwarded: &[u8]) -> Builder {
    from(peer.parse().expect("an address")).header("x-forwarded-for", forwarded)
}

#[test]
fn first_address_of_the_server_counts() {
    let at = |last| SocketAddr::from(([192, 0, 2, last], 443));
    let of_tonic = TcpConnectInfo { local_addr: Some(at(9)), remote_addr: Some(at(3)) };
    let sources: [(u8, &dyn Fn(Builder) -> Builder); 5] = [
        (1, &|it| it.extension(ConnectInfo(at(1)))),
        (2, &|it| it.extension(MockConnectInfo(at(2)))),
        (3, &|it| it.extension(of_tonic.clone())),
        (4, &|it| it.extension(at(4))),
        (5, &|it| it.extension(at(5).ip())),
    ];
    for first in 0..5 {
        let rest = &sources[first..];
        let request = rest.iter().fold(Request::builder(), |it, (_, insert)| insert(it));
        assert_eq!(key::peer_ip().extract(&parts(request)), Ok(Key::from(at(rest[0].0))));
    }
}

#[test]
fn every_forwarded_address_is_handled() {
    let client = || Ok(Key::from("7.7.7.7"));
    let forged = "6.6.6.6, ".repeat(50_000) + "7.7.7.7, 10.0.0.2";
    let proxies = "10.0.0.3, ".repeat(50_000) + "10.0.0.2";
    let forwarded_too = via("10.0.0.1", b"7.7.7.7").header("forwarded", "for=6.6.6.6");
    let table = vec![
        ("another header", forwarded_too, client()),
        ("50,000 forged", via("10.0.0.1", forged.as_bytes()), client()),
        ("50,000 proxies", via("10.0.0.1", proxies.as_bytes()), Ok(Key::from("10.0.0.3"))),
        ("by a mapped proxy", via("::ffff:10.0.0.1", b"6.6.6.6, 7.7.7.7"), client()),
        ("past a mapped proxy", via("10.0.0.1", b"7.7.7.7, ::ffff:10.0.0.2"), client()),
        ("past one trusted as mapped", via("192.168.0.1", b"7.7.7.7"), client()),
        ("all proxies", via("10.0.0.2", b"10.0.0.1, 10.0.0.3"), Ok(Key::from("10.0.0.1"))),
        ("nothing forwarded", from([10, 0, 0, 1].into()), Ok(Key::from("10.0.0.1"))),
        ("an empty entry", via("10.0.0.1", b"7.7.7.7,"), Err(KeyError::Invalid)),
        ("no UTF-8", via("10.0.0.1", b"7.7.7.7\xff"), Err(KeyError::Invalid)),
    ];
    hold(key::client_ip("10.0.0.0/8, ::ffff:192.168.0.0/112".parse().expect("networks")), table);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn a_header_is_the_key_byte_for_byte(value in any_header()) {
        let request = Request::builder().header("x-user-id", &value);
        let key = key::header("x-user-id").extract(&parts(request));
        if value.is_empty() {
            prop_assert_eq!(key, Err(KeyError::Missing));
        } else {
            prop_assert_eq!(key, Ok(Key::from(value.as_bytes())));
        }
    }

    #[test]
    fn one_session_of_the_cookie_jar_is_one_key(lines in vec(cookie_line(), 1..3)) {
        let add = |request: Builder, line| request.header("cookie", line);
        let parts = parts(lines.iter().fold(Request::builder(), add));
        let readable = lines.iter().all(|line| line.to_str().is_ok());
        match (key::cookie("sid").extract(&parts), &session(&parts)[..]) {
            // The same user whatever else the request holds: the key is the value alone.
            (Ok(key), [user]) if !user.is_empty() => prop_assert_eq!(key, Key::from(user)),
            (Err(KeyError::Missing), users) => {
                prop_assert!(readable && users.iter().all(String::is_empty), "{:?}", users);
            }
            (Err(KeyError::Invalid), users) => {
                // What the jar can't decode it passes over.
                let jar_fails = lines.iter().any(|line| line.as_bytes().contains(&b'%'));
                prop_assert!(!readable || users.len() > 1 || jar_fails, "{:?}", users);
            }
            (key, users) => prop_assert!(false, "{key:?} of {users:?}"),
        }
    }

    #[test]
    fn one_user_of_the_form_parser_is_one_key(query in query_text()) {
        let Ok(uri) = format!("/?{query}").parse::<Uri>() else { return Ok(()) };
        let users: Vec<_> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
            .filter(|(name, _)| name == "user")
            .map(|(_, value)| value.into_owned())
            .collect();
        match (key::query("user").extract(&parts(Request::builder().uri(uri))), &users[..]) {
            (Ok(key), [user]) if !user.is_empty() => prop_assert_eq!(key, Key::from(user)),
            (Err(KeyError::Missing), users) => {
                prop_assert!(users.iter().all(String::is_empty), "{:?}", users);
            }
            (Err(KeyError::Invalid), users) => {
                let replaced = users.iter().any(|user| user.contains('\u{fffd}'));
                prop_assert!(users.len() > 1 || replaced, "{:?}", users);
            }
            (key, users) => prop_assert!(false, "{key:?} of {users:?}"),
        }
    }

    #[test]
    fn a_token_is_the_one_of_the_headers_crate(
        scheme in select(vec!["Bearer", "bearer", "BEARER", "Basic", "Bearerx", ""]),
        gap in select(vec!["", " ", "  ", "\t", " \t"]),
        token in "[a-c =\\t]{0,4}|[A-Za-z0-9._~+/-]{1,80}=?",
        last in select(vec![&b""[..], b" ", b"\xff"]),
    ) {
        let value = [scheme.as_bytes(), gap.as_bytes(), token.as_bytes(), last].concat();
        let value = HeaderValue::from_bytes(&value).expect("a header");
        let request = parts(Request::builder().header("authorization", &value));
        let theirs = request.headers.typed_get::<Authorization<Bearer>>();
        let ours = key::bearer(|token| Some(Key::from(token))).extract(&request);
        prop_assert_eq!(ours.ok(), theirs.map(|it| Key::hashed(it.token())));
    }

    #[test]
    fn no_two_pairs_of_keys_join_into_one(
        text in vec(select(b"01:s\x00\xff".to_vec()), 0..12),
        cuts in any::<[prop::sample::Index; 2]>(),
        long in 0_usize..2,
    ) {
        // Cuts of one text are where a join without lengths would mix pairs up.
        let text = [vec![b'x'; long * 130], text].concat();
        let [one, other] = cuts.map(|cut| text.split_at(cut.index(text.len() + 1)));
        let join = |(a, b): (&[u8], &[u8])| Key::from(a).join(&Key::from(b));
        prop_assert_eq!(join(one) == join(other), one == other);
    }

    #[test]
    fn debug_never_shows_a_key(key in "[k-z]{6,60}") {
        let debug = format!("{:?}", Key::from(&key));
        prop_assert!(!debug.contains(&key));
    }

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
        prop_assert_eq!(extractor.extract(&parts(from(ip))), Ok(extractor.key_of(ip)));
        let behind = key::client_ip("10.0.0.1".parse().unwrap());
        let behind = behind.ipv4_prefix(v4).ipv6_prefix(v6);
        let forwarded = via("10.0.0.1", ip.to_string().as_bytes());
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
}
