//! Sales that are drawn: entries, turns and tickets.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use test_support::server_process::Server;
use test_support::{Redis, eventually};
use tokio::time::{Duration, sleep};

use crate::stock::is_lost;
use crate::{
    ADMIN, FREE, OPEN_DRAW, TOKEN, alone, by, enter, level, live, on_both, on_redis, order, pay,
    sale,
};

async fn entry(server: &Server, user: &str) -> Value {
    by(server, user, "GET", "/seckill/iphone/entry").await.json()
}

/// Waits until a user is in that state, as often as the server allows.
pub(crate) async fn becomes(server: &Server, user: &str, state: &str) -> Value {
    for _ in 0..30 {
        let seen = entry(server, user).await;
        if seen["state"] == state {
            return seen;
        }
        sleep(Duration::from_millis(seen["again_in_ms"].as_u64().unwrap_or(1000))).await;
    }
    panic!("{user} never is in the state {state}");
}

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

#[tokio::test]
async fn the_secret_decides_and_late_entries_queue_behind() {
    on_both(&format!("{FREE} --opens-in 5s --stock iphone=1"), async |server| {
        let closed = level(server).await;
        assert_eq!((&closed["mode"], &closed["secret"]), (&json!("draw"), &json!(null)));
        let users: Vec<String> = (0..20).map(|number| format!("user-{number}")).collect();
        for user in users.iter().chain([&users[7]; 100]) {
            let entered = enter(server, user).await;
            assert_eq!(entered.status, 202, "{entered:?}");
            let entered = entered.json();
            assert_eq!((&entered["state"], &entered["secret"]), (&json!("entered"), &json!(null)));
            assert_eq!(entered["commitment"], closed["commitment"]);
            assert!(entered["again_in_ms"].as_u64() >= entered["draws_in_ms"].as_u64());
        }
        let seen = by(server, &users[7], "GET", "/seckill/iphone/entry").await;
        assert_eq!(seen.json()["state"], "entered");
        assert_eq!(seen.header("cache-control"), Some("no-store"));
        assert_eq!(entry(server, "stranger").await["state"], "none");
        let is_open = async || level(server).await["opens_in_ms"].is_null();
        eventually("it opens", is_open).await;
        let secret = unhex(&level(server).await["secret"]);
        assert_eq!(unhex(&closed["commitment"]), Sha256::digest(&secret).as_slice());
        let score = |user: &String| {
            let hmac = Hmac::<Sha256>::new_from_slice(&secret).unwrap().chain_update(user);
            hmac.finalize().into_bytes()[..7].to_vec()
        };
        let mut line = users;
        line.sort_by_key(score);
        becomes(server, &line[0], "turn").await;
        for (place, user) in line.iter().enumerate().skip(1) {
            let seen = entry(server, user).await;
            let expected = (&json!("waiting"), &json!(place));
            assert_eq!((&seen["state"], &seen["place"]), expected, "{user}");
            assert_eq!(seen["commitment"], closed["commitment"]);
            // Nothing changes before the turn of a minute ends, so nobody asks before.
            assert!((40_000..=62_000).contains(&seen["again_in_ms"].as_u64().unwrap()), "{seen}");
        }
        for (place, user) in [(20, "late"), (21, "later"), (20, "late")] {
            let entered = enter(server, user).await;
            assert_eq!((entered.status.as_u16(), &entered.json()["place"]), (202, &json!(place)));
        }
        assert!(entry(server, "later").await["estimate_ms"].as_u64() >= Some(21 * 60_000));
    })
    .await;
}

#[tokio::test]
async fn an_order_without_a_ticket_asks_nobody() {
    let redis = Redis::start().await;
    // The entries use up the quota of the address, which the orders do not need.
    let flags = format!("{OPEN_DRAW} --stock iphone=2 --stock ipad=2 --ip-quota 3/60s");
    let server = on_redis(&redis, &flags);
    let ipad = by(&server, "alice", "POST", "/seckill/ipad/entries").await;
    let [ticket, of_bob, of_ipad] =
        [enter(&server, "alice").await, enter(&server, "bob").await, ipad]
            .map(|turn| turn.json()["ticket"].clone());
    let (end, hash) = ticket.as_str().unwrap().split_once('.').unwrap();
    let [longer, zero] = ["9", "0"].map(|digit| json!(format!("{digit}{end}.{hash}")));
    let cut = json!(ticket.as_str().unwrap().split_at(80).0);
    // The ticker does neither of these two.
    let calls = async || [redis.call_count("hget").await, redis.call_count("zscore").await];
    let before = calls().await;
    let of_nobody = server.request("POST", "/seckill/iphone/orders");
    server.send(of_nobody).await.problem(401);
    for _ in 0..20 {
        for wrong in [&json!(null), &json!("1.2"), &of_bob, &of_ipad, &longer, &zero, &cut] {
            let refused = order(&server, "alice", wrong).await;
            assert_eq!(refused.problem(403), "/problems/no-ticket");
        }
    }
    assert_eq!(calls().await, before);
    let placed = order(&server, "alice", &ticket).await;
    assert_eq!(placed.status, 201, "nothing of the quota is used: {placed:?}");
    assert!(calls().await.iter().zip(before).all(|(now, before)| *now > before));
    assert_eq!(order(&server, "alice", &ticket).await.problem(409), "/problems/already-ordered");
    // The server does not know that the turn is another one, or gone, and Redis does.
    for change in
        [&["ZINCRBY", "seckill:{iphone}:held", "1", "bob"][..], &["DEL", "seckill:{iphone}:held"]]
    {
        redis.run::<()>(change).await;
        assert_eq!(order(&server, "bob", &of_bob).await.problem(403), "/problems/turn-over");
    }
}

#[tokio::test]
async fn an_unused_turn_and_an_unpaid_piece_pass_on() {
    let terms = "--opens-in 1s --turn 4s --pay-within 3s --stock iphone=1";
    on_both(&format!("{FREE} {ADMIN} {terms}"), async |server| {
        for user in ["alice", "bob"] {
            enter(server, user).await;
        }
        let is_open = async || entry(server, "alice").await["state"] != "entered";
        sleep(Duration::from_secs(1)).await;
        eventually("it opens", is_open).await;
        let is_first = entry(server, "alice").await["state"] == "turn";
        let [first, second] = if is_first { ["alice", "bob"] } else { ["bob", "alice"] };
        let unused = becomes(server, first, "turn").await["ticket"].clone();
        let turn = becomes(server, second, "turn").await["ticket"].clone();
        assert_eq!(entry(server, first).await["state"], "none");
        assert_eq!(order(server, first, &unused).await.problem(403), "/problems/turn-over");
        order(server, first, &json!(null)).await.problem(403);
        assert_eq!(enter(server, first).await.json()["place"], 1);
        let placed = order(server, second, &turn).await;
        assert_eq!(placed.status, 201, "{placed:?}");
        let is_counted = async || {
            let level = level(server).await;
            (&level["turns"], &level["entries"], &level["sold"])
                == (&json!(0), &json!(1), &json!(1))
        };
        eventually("the turn has become an order", is_counted).await;
        assert_eq!(entry(server, first).await["state"], "waiting", "an unpaid piece can come back");
        let held = entry(server, second).await;
        assert_eq!((&held["state"], &held["paid"]), (&json!("ordered"), &json!(false)));
        assert_eq!(held["order_id"], placed.json()["order_id"]);
        let turn = becomes(server, first, "turn").await["ticket"].clone();
        assert_eq!(entry(server, second).await["state"], "none");
        let placed = order(server, first, &turn).await.json();
        assert_eq!(pay(server, &placed, "1").await.status, 200);
        assert_eq!(entry(server, first).await["paid"], true);
        assert_eq!(enter(server, second).await.json()["state"], "over");
        assert_eq!(enter(server, first).await.json()["state"], "ordered");
        let live = live(server).await;
        let counts = [1, 2, 6, 7].map(|at| live["orders"][at][1].as_u64());
        let names = "ordered before, sold out, other, and entered";
        assert_eq!(counts, [0, 0, 2, 5].map(Some), "{names}: {live}");
    })
    .await;
}

#[tokio::test]
async fn a_turn_ends_by_the_clock_and_not_by_the_sweep() {
    let redis = Redis::start().await;
    redis.run::<()>(&["SET", "{x}:stock", "1"]).await;
    redis.run::<()>(&["ZADD", "{x}:held", "1", "alice"]).await;
    // As many as a call takes back come before.
    let others: Vec<_> = (0..500).map(|user| format!("user-{user}")).collect();
    let others = others.iter().flat_map(|user| ["0", user]);
    redis.run::<()>(&["ZADD", "{x}:held"].into_iter().chain(others).collect::<Vec<_>>()).await;
    let call = async |op: &str, value: &str| {
        sale(&redis, "{x}", op, &format!("1 60000000 0 alice {value} 1")).await.0
    };
    assert_eq!(call("order", "1").await, "turn-over");
    assert_eq!(call("enter", "5").await, "turn", "a new one");
    assert_eq!(call("order", "1").await, "turn-over", "the ticket is that of the old one");
}

/// The clock of this node is behind that of the one that has said that the sale is open.
#[tokio::test]
async fn nobody_is_drawn_once_the_secret_is_known() {
    let redis = Redis::start().await;
    redis.run::<()>(&["SET", "{x}:stock", "1"]).await;
    let enter = async |turn_us: &str, user: &str, place: &str| {
        let arguments = format!("8000000000000000 {turn_us} 0 {user} {place}");
        sale(&redis, "{x}", "enter", &arguments).await.0
    };
    assert_eq!(enter("0", "alice", "2").await, "entered");
    assert_eq!(enter("60000000", "knows", "1").await, "waiting");
    assert_eq!(redis.run::<Vec<String>>(&["ZRANGE", "{x}:held", "0", "-1"]).await, ["alice"]);
    // Nor does anybody come before the line by the place of a chosen name.
    assert_eq!(enter("0", "mallory", "1").await, "entered");
    let place: f64 = redis.run(&["ZSCORE", "{x}:line", "mallory"]).await;
    assert!(place > 2_f64.powi(52), "{place}");
}

#[tokio::test]
async fn nobody_sleeps_through_a_turn() {
    on_both(&format!("{FREE} {OPEN_DRAW} --turn 8s --stock iphone=1"), async |server| {
        assert_eq!(enter(server, "alice").await.json()["state"], "turn");
        sleep(Duration::from_secs(5)).await;
        let waiting = enter(server, "bob").await.json();
        assert!(waiting["again_in_ms"].as_u64() <= Some(5000), "{waiting}");
        let turn = becomes(server, "bob", "turn").await;
        assert!(turn["turn_ends_in_ms"].as_u64() >= Some(4000), "{turn}");
    })
    .await;
    on_both(&format!("{FREE} --opens-in 1h --turn 1s"), async |server| {
        for user in 0..20 {
            let entered = enter(server, &user.to_string()).await.json();
            let [draw, again] =
                ["draws_in_ms", "again_in_ms"].map(|it| entered[it].as_u64().unwrap());
            assert!((draw..=draw + 501).contains(&again), "half a turn is left: {entered}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_piece_that_is_paid_brings_no_turn() {
    let terms = format!("--stock iphone=2 --turn 1h --pay-within 1h --payment-token {TOKEN}");
    on_both(&format!("{FREE} {OPEN_DRAW} {terms}"), async |server| {
        let turn = enter(server, "alice").await.json()["ticket"].clone();
        let placed = order(server, "alice", &turn).await.json();
        assert_eq!(pay(server, &placed, "1").await.status, 200);
        for user in ["bob", "carol", "dave"] {
            enter(server, user).await;
        }
        // The piece of bob comes to carol, and then to dave.
        let is_true = async || entry(server, "dave").await["estimate_ms"] == json!(14_400_000);
        eventually("two turns and times to pay, of an hour each", is_true).await;
    })
    .await;
}

#[tokio::test]
async fn who_is_in_line_asks_when_there_can_be_a_turn() {
    let redis = Redis::start().await;
    redis.run::<()>(&["SET", "{x}:stock", "4"]).await;
    let at = |after: u64| (8_000_000_000_000_000 + after).to_string();
    // Two have a turn, and two an order.
    for (user, order) in [("10", None), ("20", Some("2")), ("30", None), ("40", Some("4"))] {
        redis.run::<()>(&["ZADD", "{x}:held", &at(user.parse().unwrap()), user]).await;
        if let Some(order) = order {
            redis.run::<()>(&["HSET", "{x}:orders", order, user]).await;
            redis.run::<()>(&["HSET", "{x}:buyers", user, order]).await;
        }
    }
    let entry = async |user: &str| {
        sale(&redis, "{x}", "entry", &format!("1 60000000 60000000 {user}")).await
    };
    for (place, expected) in (1..).zip([10, 20, 30, 40, 0]) {
        let place = place.to_string();
        redis.run::<()>(&["ZADD", "{x}:line", &place, &place]).await;
        let (outcome, _, news) = entry(&place).await;
        let news = news.saturating_sub(8_000_000_000_000_000);
        assert_eq!((&*outcome, news), ("waiting", expected), "place {place}");
    }
    // A piece is free, and the first in line gets its turn now.
    redis.run::<()>(&["SET", "{x}:stock", "5"]).await;
    assert_eq!(entry("1").await.0, "turn");
}

#[tokio::test]
async fn accounts_of_an_address_are_few_and_those_of_a_carrier_many() {
    let proxy = "--opens-in 1h --trust-proxy 127.0.0.1 --ip-quota 10/60s";
    let nats = "--nat 100.64.0.0/10=8 --nat 2001:db8::/32=6 --nat 100.64.0.0/16=1";
    on_both(&format!("{proxy} {nats}"), async |server| {
        for (address, users) in [("203.0.113.7", 5), ("100.64.0.1", 8), ("2001:db8::1", 6)] {
            let enter = async |user: usize| {
                let entry = server.request("POST", "/seckill/iphone/entries");
                let entry = entry.header("x-user-id", format!("{address}-{user}"));
                server.send(entry.header("x-forwarded-for", address)).await
            };
            let denied_by = async |user, policy| {
                let denied = enter(user).await;
                denied.problem(429);
                assert_eq!(denied.json()["violated-policies"], json!([policy]), "{address}");
            };
            for user in 0..users {
                assert_eq!(enter(user).await.status, 202, "{address}");
            }
            denied_by(users, "accounts").await;
            // Twice as many requests as users: who is in is let in.
            for user in 0..users {
                assert_eq!(enter(user).await.status, 202, "{address}");
            }
            denied_by(0, "ip").await;
        }
    })
    .await;
}

/// What an address sends under new names is denied, and counts for none of its users.
#[tokio::test]
async fn a_flood_of_new_names_costs_redis_no_more() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, &format!("{ADMIN} --opens-in 1h"));
    let mut denied = Vec::new();
    for user in 0..1200 {
        let answer = enter(&server, &user.to_string()).await;
        if user >= 5 {
            answer.problem(429);
            denied.push(answer.json()["violated-policies"][0].as_str().unwrap().to_owned());
        }
    }
    let by_accounts = denied.iter().filter(|policy| *policy == "accounts").count();
    assert_eq!(
        (by_accounts, &*denied[1194]),
        (995, "read-ip"),
        "a thousand a minute are asked about"
    );
    let counted = &live(&server).await["orders"][3];
    assert_eq!(counted, &json!(["denied", 1195]), "the operator sees all");
}

#[tokio::test]
async fn a_crowd_behind_one_address_finds_its_turns() {
    for flags in ["--nat 127.0.0.0/8=5000", "--ip-quota off"] {
        let server = alone(&format!("{flags} --opens-in 1h"));
        for user in 0..1010 {
            assert_eq!(entry(&server, &user.to_string()).await["state"], "none", "{flags:?}");
        }
    }
}

/// Redis takes nothing back of what a script has changed before an error.
#[tokio::test]
async fn an_order_that_redis_breaks_off_leaves_the_turn() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, OPEN_DRAW);
    enter(&server, "alice").await;
    let ticket = becomes(&server, "alice", "turn").await["ticket"].clone();
    for (change, status) in [("-hset", 503), ("+hset", 201)] {
        redis.run::<()>(&["ACL", "SETUSER", "default", change]).await;
        assert_eq!(order(&server, "alice", &ticket).await.status, status, "{change}");
    }
}

#[tokio::test]
async fn the_mode_of_a_sale_is_kept() {
    let redis = Redis::start().await;
    let warning = "the mode of the sale was set before, and is kept";
    let drawn = on_redis(&redis, "--opens-in 1h");
    let commitment = enter(&drawn, "alice").await.json()["commitment"].clone();
    for (flags, warns) in [("--first-come", true), ("", false), ("--opens-in 2h", false)] {
        let server = on_redis(&redis, flags);
        let seen = entry(&server, "alice").await;
        assert_eq!((&seen["state"], &seen["commitment"]), (&json!("entered"), &commitment));
        assert_eq!(server.stop().contains(warning), warns, "{flags:?}");
    }
    on_redis(&redis, "--prefix other --first-come").stop();
    let server = on_redis(&redis, "--prefix other --opens-in 1h");
    assert_eq!(enter(&server, "alice").await.problem(404), "/problems/no-draw");
    assert_eq!(entry(&server, "alice").await["state"], "none", "and an order, after one");
    assert_eq!(level(&server).await["mode"], "first-come");
    assert!(server.stop().contains(warning));
    // Another seed is a loss, and not another draw.
    redis.run::<()>(&["SET", "seckill:{iphone}:draw", &"00".repeat(32)]).await;
    let is_seen = async || drawn.get("/seckill/iphone").await.status == 503;
    eventually("it is seen", is_seen).await;
    let unsold = enter(&drawn, "bob").await;
    assert_eq!(unsold.problem(503), "/problems/stock-lost");
    assert_eq!(unsold.document()["detail"], "Nothing was changed.");
    // Nor does a server that is started draw anew.
    redis.run::<()>(&["DEL", "seckill:{iphone}:draw"]).await;
    is_lost(&redis);
    assert!(!redis.run::<bool>(&["EXISTS", "seckill:{iphone}:draw"]).await);
}
