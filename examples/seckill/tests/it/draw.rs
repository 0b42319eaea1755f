//! Sales that are drawn: entries, turns and tickets.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::*;

fn unhex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

#[tokio::test]
async fn the_secret_decides_and_late_entries_queue_behind() {
    on_both(&format!("{FREE} --opens-in 5s --stock iphone=1"), async |server| {
        let closed = level(server).await;
        shows(&closed, json!({ "mode": "draw", "secret": null }));
        let commitment = &closed["commitment"];
        let mut line: Vec<String> = (0..20).map(|number| format!("user-{number}")).collect();
        for user in line.iter().chain([&line[7]; 100]) {
            let entered = enter(server, user).await;
            assert_eq!(entered.status, 202, "{entered:?}");
            let entered = entered.json();
            let expected = json!({ "state": "entered", "secret": null, "commitment": commitment });
            shows(&entered, expected);
            assert!(number(&entered["again_in_ms"]) >= number(&entered["draws_in_ms"]));
        }
        let seen = by(server, &line[7], "GET", "/seckill/iphone/entry").await;
        assert_eq!(seen.json()["state"], "entered");
        assert_eq!(seen.header("cache-control"), Some("no-store"));
        assert_eq!(entry(server, "stranger").await["state"], "none");
        eventually("it opens", async || level(server).await["opens_in_ms"].is_null()).await;
        let secret = unhex(&level(server).await["secret"]);
        assert_eq!(unhex(commitment), Sha256::digest(&secret).as_slice());
        line.sort_by_key(|user| {
            let hmac = Hmac::<Sha256>::new_from_slice(&secret).unwrap().chain_update(user);
            hmac.finalize().into_bytes()[..7].to_vec()
        });
        becomes(server, &line[0], "turn").await;
        for (place, user) in line.iter().enumerate().skip(1) {
            let seen = entry(server, user).await;
            let expected = json!({ "state": "waiting", "place": place, "commitment": commitment });
            shows(&seen, expected);
            // Nothing changes before the turn of a minute ends, so nobody asks before.
            assert!((40_000..=62_000).contains(&number(&seen["again_in_ms"])), "{seen}");
        }
        for (place, user) in [(20, "late"), (21, "later"), (20, "late")] {
            let entered = enter(server, user).await;
            assert_eq!((entered.status.as_u16(), &entered.json()["place"]), (202, &json!(place)));
        }
        assert!(number(&entry(server, "later").await["estimate_ms"]) >= 21 * 60_000);
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
    let entered = [enter(&server, "alice").await, enter(&server, "bob").await, ipad];
    let [ticket, of_bob, of_ipad] = entered.map(|turn| turn.json()["ticket"].clone());
    let (end, hash) = ticket.as_str().unwrap().split_once('.').unwrap();
    let [longer, zero] = ["9", "0"].map(|digit| json!(format!("{digit}{end}.{hash}")));
    let cut = json!(ticket.as_str().unwrap().split_at(80).0);
    // The ticker does neither of these two.
    let calls = async || [redis.call_count("hget").await, redis.call_count("zscore").await];
    let before = calls().await;
    server.send(server.request("POST", "/seckill/iphone/orders")).await.problem(401);
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
    for change in ["ZINCRBY seckill:{iphone}:held 1 bob", "DEL seckill:{iphone}:held"] {
        redis.command(change).await;
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
        eventually("it opens", async || level(server).await["opens_in_ms"].is_null()).await;
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
            [&level["turns"], &level["entries"], &level["sold"]].map(number) == [0, 1, 1]
        };
        eventually("the turn has become an order", is_counted).await;
        assert_eq!(entry(server, first).await["state"], "waiting", "an unpaid piece can come back");
        let order_id = &placed.json()["order_id"];
        let expected = json!({ "state": "ordered", "paid": false, "order_id": order_id });
        shows(&entry(server, second).await, expected);
        let turn = becomes(server, first, "turn").await["ticket"].clone();
        assert_eq!(entry(server, second).await["state"], "none");
        let placed = order(server, first, &turn).await.json();
        assert_eq!(pay(server, &placed, "1").await.status, 200);
        assert_eq!(entry(server, first).await["paid"], true);
        assert_eq!(enter(server, second).await.json()["state"], "over");
        assert_eq!(enter(server, first).await.json()["state"], "ordered");
        let live = live(server).await;
        let counts = [1, 2, 6, 7].map(|at| number(&live["orders"][at][1]));
        assert_eq!(counts, [0, 0, 2, 5], "ordered before, sold out, other, and entered: {live}");
    })
    .await;
}

#[tokio::test]
async fn nobody_sleeps_through_a_turn() {
    on_both(&format!("{FREE} {OPEN_DRAW} --turn 6s --stock iphone=1"), async |server| {
        assert_eq!(enter(server, "alice").await.json()["state"], "turn");
        sleep(Duration::from_secs(4)).await;
        let waiting = enter(server, "bob").await.json();
        assert!(number(&waiting["again_in_ms"]) <= 4000, "{waiting}");
        let turn = becomes(server, "bob", "turn").await;
        assert!(number(&turn["turn_ends_in_ms"]) >= 3000, "{turn}");
    })
    .await;
}

#[tokio::test]
async fn nobody_comes_to_the_draw_after_half_a_turn() {
    on_both(&format!("{FREE} --opens-in 1h --turn 1s"), async |server| {
        for user in 0..20 {
            let entered = enter(server, &user.to_string()).await.json();
            let [draw, again] = ["draws_in_ms", "again_in_ms"].map(|it| number(&entered[it]));
            assert!((draw..=draw + 501).contains(&again), "half a turn is left: {entered}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_piece_that_is_paid_brings_no_turn() {
    let terms = format!("--stock iphone=2 --turn 1h --pay-within 1h --payment-token {TOKEN}");
    on_both(&format!("{FREE} {OPEN_DRAW} {terms}"), async |server| {
        let placed = order_at_turn(server, "alice").await.json();
        assert_eq!(pay(server, &placed, "1").await.status, 200);
        for user in ["bob", "carol", "dave"] {
            enter(server, user).await;
        }
        // The piece of bob comes to carol, and then to dave.
        let is_true = async || entry(server, "dave").await["estimate_ms"] == 14_400_000;
        eventually("two turns and times to pay, of an hour each", is_true).await;
    })
    .await;
}

#[tokio::test]
async fn accounts_of_an_address_are_few_and_those_of_a_carrier_many() {
    let proxy = "--opens-in 1h --trust-proxy 127.0.0.1 --ip-quota 10/60s";
    let nats = "--nat 100.64.0.0/10=8 --nat 2001:db8::/32=6 --nat 100.64.0.0/16=1";
    on_both(&format!("{proxy} {nats}"), async |server| {
        for (address, users) in [("203.0.113.7", 5), ("100.64.0.1", 8), ("2001:db8::1", 6)] {
            let all = (0..users).map(|user| (user, json!(null)));
            let one_more = (users, json!(["accounts"]));
            // Twice as many requests as users: who is in is let in.
            let entries = all.clone().chain([one_more]).chain(all).chain([(0, json!(["ip"]))]);
            for (user, denied_by) in entries {
                let entry = server.request("POST", "/seckill/iphone/entries");
                let entry = entry.header("x-user-id", format!("{address}-{user}"));
                let answer = server.send(entry.header("x-forwarded-for", address)).await;
                assert_eq!(answer.status, if denied_by.is_null() { 202 } else { 429 }, "{address}");
                assert_eq!(answer.json()["violated-policies"], denied_by, "{address}");
            }
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
            denied.push(answer.json()["violated-policies"][0].clone());
        }
    }
    let by_accounts = denied.iter().filter(|policy| *policy == "accounts").count();
    assert_eq!(
        (by_accounts, &denied[1194]),
        (995, &json!("read-ip")),
        "a thousand are asked about"
    );
    let counted = &live(&server).await["orders"][3];
    assert_eq!(counted, &json!(["denied", 1195]), "the operator sees all");
}

#[tokio::test]
async fn a_crowd_behind_one_address_finds_its_turns_where_it_is_named() {
    for (flags, looks) in [("", 1000), ("--nat 127.0.0.0/8=5000", 1010), ("--ip-quota off", 1010)] {
        let server = alone(&format!("{flags} --opens-in 1h"));
        for user in 0..looks {
            assert_eq!(entry(&server, &user.to_string()).await["state"], "none", "{flags:?}");
        }
        let one_more = entry(&server, "one-more").await;
        let expected = if looks == 1000 { json!(["read-ip"]) } else { json!(null) };
        assert_eq!(one_more["violated-policies"], expected, "{flags:?}");
    }
}

/// Redis takes nothing back of what a script has changed before an error.
#[tokio::test]
async fn an_order_that_redis_breaks_off_leaves_the_turn() {
    let redis = Redis::start().await;
    let server = on_redis(&redis, OPEN_DRAW);
    let ticket = enter(&server, "alice").await.json()["ticket"].clone();
    for (change, status) in [("-hset", 503), ("+hset", 201)] {
        redis.command(&format!("ACL SETUSER default {change}")).await;
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
        shows(&seen, json!({ "state": "entered", "commitment": commitment }));
        assert_eq!(server.stop().contains(warning), warns, "{flags:?}");
    }
    on_redis(&redis, "--prefix other --first-come").stop();
    let server = on_redis(&redis, "--prefix other --opens-in 1h");
    assert_eq!(enter(&server, "alice").await.problem(404), "/problems/no-draw");
    assert_eq!(entry(&server, "alice").await["state"], "none", "and an order, after one");
    assert_eq!(level(&server).await["mode"], "first-come");
    assert!(server.stop().contains(warning));
    // Another seed is a loss, and not another draw.
    redis.command(&format!("SET seckill:{{iphone}}:draw {}", "00".repeat(32))).await;
    let is_seen = async || drawn.get("/seckill/iphone").await.status == 503;
    eventually("it is seen", is_seen).await;
    let unsold = enter(&drawn, "bob").await;
    assert_eq!(unsold.problem(503), "/problems/stock-lost");
    assert_eq!(unsold.json()["detail"], "Nothing was changed.");
    // Nor does a server that is started draw anew.
    redis.command("DEL seckill:{iphone}:draw").await;
    stock_is_lost(&redis);
    assert!(!redis.run::<bool>(&["EXISTS", "seckill:{iphone}:draw"]).await);
}
