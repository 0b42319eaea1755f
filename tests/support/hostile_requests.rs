//! Requests that nobody honest sends, and what the seckill server is to make of each.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

/// Part of every user id: no answer may show it but that to an order, and no log.
pub const USER: &str = "Lysistrata";

pub const SOLD: Expected = Expected::Sold;
const NO_USER: Expected = Expected::Problem(401, "/problems/no-user");
const BAD_USER: Expected = Expected::Problem(400, "/problems/bad-user");
const NO_SKU: Expected = Expected::Problem(404, "/problems/unknown-sku");
const NO_ORDER: Expected = Expected::Problem(404, "/problems/unknown-order");
const NO_PAGE: Expected = Expected::Problem(404, "about:blank");
const NO_METHOD: Expected = Expected::Problem(405, "about:blank");
const MALFORMED: Expected = Expected::Refused(400);
const HEAD_TOO_LARGE: Expected = Expected::Refused(431);
const URI_TOO_LONG: Expected = Expected::Refused(414);

/// What a request is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// The order is placed.
    Sold,
    /// A problem document of this status and type.
    Problem(u16, &'static str),
    /// It is no request to the server, which says so in no more than a status and closes.
    Refused(u16),
    /// It is no request at all, and the server closes.
    Closed,
}

pub struct Case {
    pub name: String,
    pub request: Vec<u8>,
    pub expected: Expected,
    /// What the request leaves in Redis until it runs out.
    pub windows: Vec<Vec<u8>>,
}

/// A request of these bytes, which leaves no window.
fn raw(name: &str, request: impl Into<Vec<u8>>, expected: Expected) -> Case {
    Case { name: name.into(), request: request.into(), expected, windows: Vec::new() }
}

/// An order with these header lines, which leaves a window if it is well-formed.
fn order(name: &str, lines: impl AsRef<[u8]>, expected: Expected, user: &str) -> Case {
    order_of("iphone", name, lines, expected, user)
}

fn order_of(
    sku: &str,
    name: &str,
    lines: impl AsRef<[u8]>,
    expected: Expected,
    user: &str,
) -> Case {
    let line = format!("POST /seckill/{sku}/orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    let request = [line.as_bytes(), lines.as_ref(), b"\r\n"].concat();
    Case { windows: windows(expected, user.as_bytes()), ..raw(name, request, expected) }
}

/// The window of a user, if what is answered so has passed the limit.
fn windows(expected: Expected, user: &[u8]) -> Vec<Vec<u8>> {
    let counted = matches!(expected, SOLD | NO_SKU);
    counted.then(|| [b"seckill:{=", user, b"}:user"].concat()).into_iter().collect()
}

fn get(path: &str, expected: Expected) -> Case {
    raw(path, format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"), expected)
}

/// Puts the user of a case where the lines have `@`.
fn line(name: &str, lines: &str, expected: Expected) -> Case {
    let user = format!("{USER}-{}", name.replace(' ', "-"));
    order(name, lines.replace('@', &user) + "\r\n", expected, &user)
}

pub fn user_ids() -> Vec<Case> {
    let id = |name: &str, id: &[u8], expected| {
        let window = String::from_utf8_lossy(id).replace('%', "%25").replace('}', "%7D");
        order(name, [b"x-user-id: ", id, b"\r\n"].concat(), expected, window.trim())
    };
    let of_length = |length: usize| USER.repeat(length / USER.len() + 1)[..length].to_owned();
    vec![
        order("no user", "", NO_USER, ""),
        id("empty", b"", NO_USER),
        id("spaces only", b" \t ", NO_USER),
        id("spaces around", b"  Lysistrata \t", SOLD),
        id("a comma, which is no second user", b"Lysistrata, Lampito", SOLD),
        line("twice the same", "x-user-id: @\r\nX-USER-ID: @", BAD_USER),
        line("twice", "x-user-id: @\r\nx-user-id: Lampito", BAD_USER),
        line("twice and one empty", "x-user-id:\r\nx-user-id: @", BAD_USER),
        id("latin-1", b"Lysistrat\xeb", BAD_USER),
        id("half a character", b"Lysistrata\xe9\x99", BAD_USER),
        id("an overlong encoding", b"Lysistrata\xc0\xaf", BAD_USER),
        id("a surrogate", b"Lysistrata\xed\xa0\x80", BAD_USER),
        id("the replacement character", b"Lysistrata\xef\xbf\xbd", BAD_USER),
        id("every script", "Lysistrata-Λυσιστράτη-利西翠姐-🕊".as_bytes(), SOLD),
        id("braces", b"{Lysistrata}{}", SOLD),
        id("the name of another's window", b"Lampito}:user", SOLD),
        id("its escaped name", b"Lampito%7D:user", SOLD),
        id("a quotation", br#"","role":"Lysistrata"}\"#, SOLD),
        id("markup", b"<script>Lysistrata</script>", SOLD),
        id("commands", b"Lysistrata; FLUSHALL *1 $8 $(id) `id` ../../ %s%n", SOLD),
        id("128 bytes", of_length(128).as_bytes(), SOLD),
        id("129 bytes", of_length(129).as_bytes(), BAD_USER),
        id("what hashes begin with", b"sha256:Lysistrata", BAD_USER),
        id("129 bytes whose hash is UTF-8", format!("{:0129}", 50_784_758).as_bytes(), BAD_USER),
        id("100 kB", of_length(100_000).as_bytes(), BAD_USER),
        id("1 MB", of_length(1_000_000).as_bytes(), HEAD_TOO_LARGE),
        id("NUL", b"Lysi\0strata", MALFORMED),
        id("a carriage return", b"Lysi\rstrata", MALFORMED),
        id("DEL", b"Lysi\x7fstrata", MALFORMED),
        id("a folded line", b"Lysi\r\n strata", MALFORMED),
    ]
}

pub fn skus_and_orders() -> Vec<Case> {
    let mut cases = Vec::new();
    let long = ["x".repeat(64), "x".repeat(65), "x".repeat(60_000)];
    let skus = [
        "android",
        "IPHONE",
        "iphone%20",
        "%20iphone",
        "iphone%00",
        "iphone%0a",
        "iphone%FF",
        "%7Biphone%7D",
        "{iphone}",
        "%3Diphone",
        "=Lampito",
        "..",
        "%2e%2e",
        "*",
        "iphone:stock",
        "iphone%7D:stock",
        "-1",
        "99999999999999999999999",
        "%E2%80%AE",
        "é",
        "%",
        "%zz",
        &long[0],
        &long[1],
        &long[2],
    ];
    for (number, sku) in skus.into_iter().enumerate() {
        let user = format!("{USER}-at-sku-{number}");
        let name = format!("SKU {}", &sku[..sku.len().min(40)]);
        cases.push(order_of(sku, &name, format!("x-user-id: {user}\r\n"), NO_SKU, &user));
        cases.push(get(&format!("/seckill/{sku}"), NO_SKU));
    }
    let nil = "00000000-0000-0000-0000-000000000000";
    let ids = [
        "iphone".to_owned(),
        "iphone.".to_owned(),
        format!(".{nil}"),
        format!("iphone.{nil}"),
        format!("iphone.%7B{nil}%7D"),
        format!("iphone.urn:uuid:{nil}"),
        format!("iphone.{nil}.{nil}"),
        format!("iphone%00.{nil}"),
        format!("android.{nil}"),
        format!("iphone.-{nil}"),
        "iphone.99999999999999999999999999999999999".to_owned(),
        "%FF".to_owned(),
        "{}".to_owned(),
        "*".to_owned(),
        "x".repeat(60_000),
    ];
    cases.extend(ids.iter().map(|id| get(&format!("/orders/{id}"), NO_ORDER)));
    cases.push(order_of("", "no SKU", "x-user-id: Lysistrata\r\n", NO_SKU, USER));
    cases.push(order_of("a/b", "two SKUs", "x-user-id: Lysistrata\r\n", NO_PAGE, ""));
    let endless = "x".repeat(70_000);
    cases.push(order_of(&endless, "a SKU of 70 kB", "", URI_TOO_LONG, ""));
    cases.push(get(&format!("/orders/{}", "x".repeat(1_000_000)), HEAD_TOO_LARGE));
    cases.push(get("/seckill/", NO_PAGE));
    cases.push(get("/../../etc/passwd", NO_PAGE));
    cases.push(get("/seckill/iphone\0", MALFORMED));
    cases.push(get("/seckill/iphone\x01", MALFORMED));
    cases
}

/// Messages that are not quite HTTP, or more of it than is good.
pub fn messages() -> Vec<Case> {
    let rest = "\r\nhost: x\r\nx-user-id: Lysistrata\r\nconnection: close\r\n\r\n";
    vec![
        raw("nothing", "", Expected::Closed),
        raw("an empty line", "\r\n", Expected::Closed),
        raw("half a line", "POST /seck", Expected::Closed),
        raw("half a head", "POST /seckill/iphone/orders HTTP/1.1\r\nx-user", Expected::Closed),
        raw("a preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Expected::Closed),
        raw("a greeting of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", MALFORMED),
        raw("bytes", b"\xff\xfe\0\r\n\r\n", MALFORMED),
        raw("a command of Redis", "*1\r\n$8\r\nFLUSHALL\r\n", MALFORMED),
        raw("no such version", format!("POST /seckill/iphone/orders HTTP/9.9{rest}"), MALFORMED),
        raw("no version", format!("POST /seckill/iphone/orders{rest}"), MALFORMED),
        raw("a byte in the path", b"GET /seckill/\xff HTTP/1.1\r\nhost: x\r\n\r\n", MALFORMED),
        raw("no path", format!("GET  HTTP/1.1{rest}"), MALFORMED),
        raw("a star", format!("OPTIONS * HTTP/1.1{rest}"), NO_PAGE),
        raw("a tunnel", format!("CONNECT evil:443 HTTP/1.1{rest}"), NO_PAGE),
        raw("a method of its own", format!("BUY /seckill/iphone/orders HTTP/1.1{rest}"), NO_METHOD),
        raw(
            "a method of 60 kB",
            format!("{} /seckill/iphone/orders HTTP/1.1{rest}", "A".repeat(60_000)),
            NO_METHOD,
        ),
        line("101 headers", &format!("x-user-id: @{}", "\r\na: b".repeat(101)), HEAD_TOO_LARGE),
        line(
            "a header of 1 MB",
            &format!("x-user-id: @\r\na: {}", "b".repeat(1_000_000)),
            HEAD_TOO_LARGE,
        ),
        line(
            "a name of 70 kB",
            &format!("x-user-id: @\r\n{}: b", "a".repeat(70_000)),
            HEAD_TOO_LARGE,
        ),
        line("a negative length", "x-user-id: @\r\ncontent-length: -1", MALFORMED),
        line("a signed length", "x-user-id: @\r\ncontent-length: +1", MALFORMED),
        line(
            "a length beyond 64 bits",
            "x-user-id: @\r\ncontent-length: 99999999999999999999",
            MALFORMED,
        ),
        line(
            "the longest length",
            "x-user-id: @\r\ncontent-length: 18446744073709551615",
            HEAD_TOO_LARGE,
        ),
        line("two lengths", "x-user-id: @\r\ncontent-length: 1\r\ncontent-length: 2", MALFORMED),
        line(
            "chunked and then not",
            "x-user-id: @\r\ntransfer-encoding: chunked, identity",
            MALFORMED,
        ),
        // Nobody reads what an order brings along, so nobody waits for it either.
        line("a body that never comes", "x-user-id: @\r\ncontent-length: 1000000000000", SOLD),
        line(
            "a body to be asked for",
            "x-user-id: @\r\nexpect: 100-continue\r\ncontent-length: 5",
            SOLD,
        ),
        line(
            "a body in no chunks",
            "x-user-id: @\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
            SOLD,
        ),
        line(
            "a body with both lengths",
            "x-user-id: @\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
            SOLD,
        ),
        // The limit by address believes the peer's, and no header.
        line(
            "a forged address",
            "x-user-id: @\r\nx-forwarded-for: 6.6.6.6\r\nforwarded: for=6.6.6.6",
            SOLD,
        ),
        line("no address", "x-user-id: @\r\nx-forwarded-for: \"\\,,;=[::", SOLD),
    ]
}

pub fn queries() -> Vec<Case> {
    let query = |query: &str, expected, window: &[u8]| {
        let target = format!("/seckill/iphone/orders?{query}");
        let head = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let windows = windows(expected, window);
        let name = &query[..query.len().min(40)];
        Case { windows, ..raw(name, format!("POST {target} {head}"), expected) }
    };
    let long = "%4C".repeat(129);
    vec![
        query("", NO_USER, b""),
        query("user", NO_USER, b""),
        query("user=", NO_USER, b""),
        query("&&&=&user=&", NO_USER, b""),
        query("user=Lysistrata&user=", BAD_USER, b""),
        query("user=Lysistrata&us%65r=Lysistrata", BAD_USER, b""),
        query("user=Lysistrata%FF", BAD_USER, b""),
        query("user=Lysistrata%EF%BF%BD", BAD_USER, b""),
        query("user=Lysistrata%C0%80", BAD_USER, b""),
        query("user=%00", SOLD, b"\0"),
        query("user=%00%00", SOLD, b"\0\0"),
        query("user=Lysi%0D%0Astrata", SOLD, b"Lysi\r\nstrata"),
        query("user=%0AINFO+Lysistrata", SOLD, b"\nINFO Lysistrata"),
        query("user=%7BLysistrata%7D", SOLD, b"{Lysistrata%7D"),
        query("user=Lampito%7D%3Auser", SOLD, b"Lampito%7D:user"),
        query("user=Lampito%257D%3Auser", SOLD, b"Lampito%257D:user"),
        query("user=Lysistrata%", SOLD, b"Lysistrata%25"),
        query("user=Lysistrata%zz", SOLD, b"Lysistrata%25zz"),
        query("user=Lysistrata%2", SOLD, b"Lysistrata%252"),
        query("user=a%26user%3Db", SOLD, b"a&user=b"),
        query(&format!("user={}", &long[3..]), SOLD, &[b'L'; 128]),
        query(&format!("user={long}"), BAD_USER, b""),
        query(&format!("user=Lysistrata&{}", "a=b&".repeat(10_000)), SOLD, b"Lysistrata"),
        query(&format!("user={}", "Lysistrata".repeat(7_000)), URI_TOO_LONG, b""),
        query(&format!("user={}", "Lysistrata".repeat(100_000)), HEAD_TOO_LARGE, b""),
    ]
}

pub fn cookies() -> Vec<Case> {
    let cookie = |value: &[u8], expected, window: &str| {
        let name = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
        order(&name, [b"cookie: ", value, b"\r\n"].concat(), expected, window)
    };
    let many = "a=b; ".repeat(10_000);
    vec![
        cookie(b"", NO_USER, ""),
        cookie(b"sid", NO_USER, ""),
        cookie(b"sid=", NO_USER, ""),
        cookie(b";;;=;sid=;", NO_USER, ""),
        cookie(b"xsid=Lysistrata; SID=Lysistrata; sidx=Lysistrata", NO_USER, ""),
        cookie(b"sid=Lysistrata; sid=Lysistrata", BAD_USER, ""),
        cookie(b"sid=Lysistrata;sid=", BAD_USER, ""),
        cookie(b"sid=Lysistrata\xff", BAD_USER, ""),
        cookie(b"sid=Lysi%00strata", SOLD, "Lysi\0strata"),
        cookie(b"sid=\"Lysistrata-quoted\"", SOLD, "Lysistrata-quoted"),
        cookie(b"sid=Lysistrata=sid=x", SOLD, "Lysistrata=sid=x"),
        cookie(b"sid={Lysistrata}", SOLD, "{Lysistrata%7D"),
        cookie(format!("{many}sid=Lysistrata").as_bytes(), SOLD, "Lysistrata"),
        cookie(format!("sid={}", "x".repeat(129)).as_bytes(), BAD_USER, ""),
        cookie(b"sid=Lysi\0strata", MALFORMED, ""),
    ]
}
