//! The ladder of bans as a user climbs it, through the routes themselves and under paused time.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use tokio::time::advance;
use tower::ServiceExt;
use tower_sliding_window::{Bans, FailurePolicy, MemoryStore, Policy};

use crate::admin::{self, Token};
use crate::opening::Opening;
use crate::page::page;
use crate::routes::{Rules, Shop, routes};
use crate::stock::{MemoryStock, Stock};

const TOKEN: &str = "0123456789abcdef";
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

struct Sale {
    shop: Router,
    admin: Router,
}

impl Sale {
    /// Two orders a minute; the third strike within ten minutes is a ban.
    fn open() -> Self {
        let penalty = "3/10m:1m,1h,24h".parse().unwrap();
        let user: Policy = "2/60s".parse().unwrap();
        let rules = Rules {
            user: user.named("user").penalty(penalty),
            ip: None,
            user_from: "header:x-user-id".parse().unwrap(),
            on_failure: FailurePolicy::default(),
        };
        let store = MemoryStore::new();
        let token = Token::find(Some(TOKEN.to_owned()), None).unwrap();
        let admin = admin::routes(Bans::new(rules.user.clone(), store.clone()), token);
        let page = page(std::iter::empty(), &rules.user_from);
        let stock = Stock::Memory(MemoryStock::new(vec![("iphone".parse().unwrap(), 100)]));
        let shop = Shop { stock, opening: Opening::Now, page };
        Self { shop: routes(shop, rules, store), admin }
    }

    /// Orders, and returns the status and the seconds of `Retry-After`.
    async fn order(&self) -> (u16, Option<u64>) {
        let request = Request::post("/seckill/iphone/orders").header("x-user-id", "mallory");
        let response =
            self.shop.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let wait = response.headers().get("retry-after").map(|it| it.to_str().unwrap());
        (response.status().as_u16(), wait.map(|it| it.parse().unwrap()))
    }

    async fn lift(&self) -> u16 {
        let request = Request::delete("/admin/bans/mallory");
        let request = request.header("authorization", format!("Bearer {TOKEN}"));
        let request = request.body(Body::empty()).unwrap();
        self.admin.clone().oneshot(request).await.unwrap().status().as_u16()
    }

    /// Orders until that is refused, and then a hundred times more.
    async fn hammer(&self) -> (u16, Option<u64>) {
        for _ in 0..2 {
            assert!([201, 409].contains(&self.order().await.0), "a place in the window");
        }
        let refused = self.order().await;
        for _ in 0..100 {
            assert_eq!(self.order().await, refused);
        }
        refused
    }

    /// Hammers for three windows, and returns the seconds of the ban that follows.
    async fn provoke(&self) -> Duration {
        for _ in 0..2 {
            assert_eq!(self.hammer().await, (429, Some(60)));
            advance(MINUTE).await;
        }
        let (status, wait) = self.hammer().await;
        assert_eq!(status, 403);
        Duration::from_secs(wait.unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn each_ban_is_longer_and_ends_when_told() {
    let sale = Sale::open();
    for rung in [MINUTE, HOUR, DAY, DAY] {
        assert_eq!(sale.provoke().await, rung);
        advance(rung - Duration::from_micros(1)).await;
        assert_eq!(sale.order().await, (403, Some(1)));
        advance(Duration::from_micros(1)).await;
    }
    assert!([201, 409].contains(&sale.order().await.0));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_day_is_a_rung_down_and_a_lifted_ban_is_forgotten() {
    let sale = Sale::open();
    for rung in [MINUTE, HOUR, DAY] {
        assert_eq!(sale.provoke().await, rung);
        advance(rung).await;
    }
    advance(2 * DAY).await;
    assert_eq!(sale.provoke().await, HOUR, "the third rung, and two down");
    assert_eq!(sale.lift().await, 204);
    assert_eq!(sale.lift().await, 404);
    advance(MINUTE).await;
    assert_eq!(sale.provoke().await, MINUTE, "as if for the first time");
}

#[tokio::test(start_paused = true)]
async fn strikes_too_far_apart_are_no_ban() {
    let sale = Sale::open();
    for _ in 0..10 {
        assert_eq!(sale.hammer().await.0, 429);
        advance(5 * MINUTE).await;
    }
}
