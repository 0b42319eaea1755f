//! Orders that a page of another site lets a browser send.

use test_support::server_process::HttpResponse;

use crate::alone;

#[tokio::test]
async fn a_cross_site_order_is_refused() {
    for (flag, header, query) in
        [("query:user", "x-nothing", "?user=alice"), ("cookie:sid", "cookie", "")]
    {
        let server = alone(&["--user-from", flag, "--quota", "3/60s"]);
        let order = async |headers: &[(&str, &str)]| -> HttpResponse {
            let request = server.request("POST", &format!("/seckill/iphone/orders{query}"));
            let request = request.header(header, "sid=alice");
            let add = |request: http::request::Builder, (name, value): &(&str, &str)| {
                request.header(*name, *value)
            };
            server.send(headers.iter().fold(request, add)).await
        };
        for headers in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
        ] {
            let refused = order(headers).await;
            assert_eq!(refused.problem(403), "/problems/cross-site", "{flag} {headers:?}");
        }
        // What was refused did not count: three more orders are admitted, and the fourth is not.
        assert_eq!(order(&[("origin", &server.url)]).await.status, 201, "{flag}");
        let same = [("origin", &server.url[..]), ("sec-fetch-site", "same-origin")];
        order(&same).await.problem(409);
        order(&[]).await.problem(409);
        order(&[]).await.problem(429);
        assert_eq!(server.get("/seckill/iphone").await.json()["sold"], 1);
    }
}

#[tokio::test]
async fn a_header_needs_no_origin() {
    // Only a page that the server allows by CORS can set the header, and it allows none.
    let server = alone(&[]);
    let order = server.order_request("iphone", "alice").header("origin", "https://app.example");
    assert_eq!(server.send(order).await.status, 201);
    let preflight = server.request("OPTIONS", "/seckill/iphone/orders");
    let preflight = server.send(preflight.header("origin", "https://app.example")).await;
    assert!(!preflight.headers.contains_key("access-control-allow-origin"), "{preflight:?}");
}
