//! The script of the stock, called with clocks and records that no server brings about at will.

use crate::*;

/// Calls the script as a server does that was told of no history: with the op, the opening, the lengths of a turn and of
/// the time to pay, and from ARGV[6] on with what follows. Returns what came of it, and REPLY[5].
pub(crate) async fn sale(redis: &Redis, sku: &str, call: &str) -> (String, u64) {
    let keys = "stock buyers orders line held paid returned refunds payments draw".split(' ');
    let keys: Vec<String> = keys.map(|record| format!("{sku}:{record}")).collect();
    let words = words(call);
    let (terms, rest) = words.split_at(4);
    let mut script = redis::cmd("EVAL");
    script.arg(include_str!("../../src/sale.lua")).arg(keys.len()).arg(keys);
    script.arg(terms).arg(0).arg(rest);
    type Told = (String, String, u64, u64, u64, u64, redis::Value, redis::Value);
    let told = script.query_async::<Told>(&mut redis.connection().await.unwrap()).await;
    let (outcome, _, _, _, news, ..) = told.unwrap_or_else(|error| panic!("{call}: {error}"));
    (outcome, news)
}

async fn comes_to(redis: &Redis, call: &str, outcome: &str) {
    assert_eq!(sale(redis, "{x}", call).await.0, outcome, "{call}");
}

async fn with_stock(pieces: u32) -> Redis {
    let redis = Redis::start().await;
    redis.command(&format!("SET {{x}}:stock {pieces}")).await;
    redis
}

/// As where Redis evicts keys.
#[tokio::test]
async fn a_sku_without_its_stock_or_its_buyers_is_lost() {
    let redis = Redis::start().await;
    redis.command("SET {buyers}:stock 2").await;
    redis.command("HSET {buyers}:orders 1 alice").await;
    for op in ["order", "pay", "enter", "entry"] {
        for sku in ["{stock}", "{buyers}"] {
            let told = sale(&redis, sku, &format!("{op} 1 60000000 0 alice 1 1")).await;
            assert_eq!(told.0, "lost", "{op} without {sku}");
        }
    }
}

#[tokio::test]
async fn a_turn_ends_by_the_clock_and_not_by_the_sweep() {
    let redis = with_stock(1).await;
    // As many as a call takes back come before alice.
    let others: String = (0..500).map(|user| format!(" 0 user-{user}")).collect();
    redis.command(&format!("ZADD {{x}}:held 1 alice{others}")).await;
    comes_to(&redis, "order 1 60000000 0 alice 1 1", "turn-over").await;
    comes_to(&redis, "enter 1 60000000 0 alice 5", "turn").await;
    // The ticket is that of the old one.
    comes_to(&redis, "order 1 60000000 0 alice 1 1", "turn-over").await;
}

/// The clock of this node is behind that of the one that has said that the sale is open.
#[tokio::test]
async fn nobody_is_drawn_once_the_secret_is_known() {
    let redis = with_stock(1).await;
    comes_to(&redis, "enter 8000000000000000 0 0 alice 2", "entered").await;
    comes_to(&redis, "enter 8000000000000000 60000000 0 knows 1", "waiting").await;
    assert_eq!(redis.run::<Vec<String>>(&["ZRANGE", "{x}:held", "0", "-1"]).await, ["alice"]);
    // Nor does anybody come before the line by the place of a chosen name.
    comes_to(&redis, "enter 8000000000000000 0 0 mallory 1", "entered").await;
    let place: f64 = redis.run(&["ZSCORE", "{x}:line", "mallory"]).await;
    assert!(place > 2_f64.powi(52), "{place}");
}

#[tokio::test]
async fn who_is_in_line_asks_when_there_can_be_a_turn() {
    let (redis, base) = (with_stock(4).await, 8_000_000_000_000_000_u64);
    // Two have a turn, and two an order.
    for end in [10, 20, 30, 40] {
        redis.command(&format!("ZADD {{x}}:held {} {end}", base + end)).await;
    }
    redis.command("HSET {x}:orders 2 20 4 40").await;
    redis.command("HSET {x}:buyers 20 2 40 4").await;
    for (place, expected) in (1..).zip([10, 20, 30, 40, 0]) {
        redis.command(&format!("ZADD {{x}}:line {place} {place}")).await;
        let (outcome, news) =
            sale(&redis, "{x}", &format!("entry 1 60000000 60000000 {place}")).await;
        assert_eq!((&*outcome, news.saturating_sub(base)), ("waiting", expected), "place {place}");
    }
    // A piece is free, and the first in line gets its turn now.
    redis.command("SET {x}:stock 5").await;
    comes_to(&redis, "entry 1 60000000 60000000 1", "turn").await;
}

#[tokio::test]
async fn a_payment_is_late_by_the_clock_and_not_by_the_sweep() {
    let redis = with_stock(1).await;
    let records = async |what: &str| {
        redis.run::<Vec<String>>(&["HGETALL", &format!("{{x}}:{what}")]).await.join(" ")
    };
    let pay = async |order: &str, payment: &str, outcome: &str| {
        let is_real = u8::from(payment != "simulated");
        comes_to(&redis, &format!("pay - 0 1000 {order} {payment} {is_real}"), outcome).await;
    };
    comes_to(&redis, "order - 0 1000 alice 1 0", "placed").await;
    sleep(Duration::from_millis(2)).await;
    for payment in ["a", "b", "a"] {
        pay("1", payment, "too-late").await;
    }
    assert_eq!(records("orders").await, "1 alice", "it has not been taken back");
    // Even if the clock steps back: what is to be paid back buys nothing.
    redis.command("ZADD {x}:held 8000000000000000 alice").await;
    pay("1", "a", "too-late").await;
    redis.command("ZADD {x}:held 1 alice").await;
    comes_to(&redis, "order - 0 1000 bob 2 0", "placed").await;
    assert_eq!(records("orders").await, "2 bob");
    pay("2", "a", "payment-used").await;
    for payment in ["c", "simulated"] {
        pay("1", payment, "too-late").await;
    }
    // Redis may have lost the order.
    for payment in ["d", "d", "simulated"] {
        pay("9", payment, "unknown").await;
    }
    assert_eq!(records("refunds").await, "a 1 b 1 c 1 d 9");
    assert_eq!(records("paid").await, "");
    // Nor does an order hold its user for longer, while there are other pieces.
    redis.command("SET {x}:stock 2").await;
    sleep(Duration::from_millis(2)).await;
    comes_to(&redis, "order - 0 1000 bob 3 0", "placed").await;
    assert_eq!(records("orders").await, "3 bob");
}
