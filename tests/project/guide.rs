//! The guide lists all its pages, and what it says of the memory of Redis is measured on a real server.

use std::time::Duration;

use test_support::Redis;
use tower_sliding_window::{Bans, Counts, Limiter, Policy, Quota};

/// Returns what all keys take whose names hold a text, in bytes.
async fn memory(redis: &Redis, part: &str) -> f64 {
    let mut bytes = 0.0;
    for key in redis.run::<Vec<String>>(&["KEYS", &format!("*{part}*")]).await {
        bytes += redis.run::<f64>(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]).await;
    }
    bytes
}

/// Checks that the guide has a paragraph with these texts in this order.
fn guide_says(texts: &[&str]) {
    let pages = crate::files(&crate::root().join("src/docs"), "md");
    let guide: String = pages.iter().map(|it| std::fs::read_to_string(it).unwrap()).collect();
    let after = |rest: String, text: &&str| rest.split_once(*text).map(|(_, it)| it.to_owned());
    let holds = |it: &str| texts.iter().try_fold(it.replace('\n', " "), after).is_some();
    assert!(guide.split("\n\n").any(holds), "the guide does not say {texts:?}");
}

#[tokio::test]
async fn bans_and_long_logs_take_what_the_guide_says() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let policy = Policy::new("user").quota(Quota::per_hour(1000));
    let with_penalty = policy.clone().penalty("3/10m:1m,1h,24h".parse().unwrap());
    let bans = Bans::new(with_penalty, store.clone());
    bans.impose("bob", Duration::from_secs(60), "spam").await.unwrap();
    let ban = memory(&redis, "user:ban").await;
    let limiter = Limiter::new(policy, store);
    let mut sizes = Vec::new();
    for entries in 1..=1000 {
        assert!(limiter.check("alice").await.unwrap().is_admitted());
        if [100, 128, 129, 200, 1000].contains(&entries) {
            sizes.push(memory(&redis, "{=alice}:user:1h").await);
        }
    }
    let [hundred, most_compact, least_skiplist, two_hundred, thousand] = sizes[..] else {
        panic!("five logs were measured");
    };
    let dearer = least_skiplist / 129.0 / (most_compact / 128.0);
    // The figures on Redis 6.2 to 8.0, which are the guide's, on Valkey 8 and on Valkey 9.
    for (what, measured, figures) in [
        ("bytes of a ban", ban, [120.0, 80.0, 96.0]),
        ("an entry above 128, in entries below", dearer, [4.0, 3.3, 2.8]),
        ("200 entries, in logs of 100", two_hundred / hundred, [8.0, 6.7, 5.4]),
        ("bytes of 200 entries", two_hundred, [25_000.0, 20_600.0, 17_000.0]),
        ("bytes of 1,000 entries", thousand, [120_000.0, 103_000.0, 86_000.0]),
    ] {
        let figure = redis.figure(figures).await;
        let about = figure * 0.75..figure * 1.25;
        assert!(about.contains(&measured), "{what}: {measured}, and not {figure}");
    }
    guide_says(&["A ban takes 120 bytes"]);
    guide_says(&["25 kB on Redis, and 120 kB with a thousand; 17 kB and 86 kB on Valkey 9"]);
}

#[tokio::test]
async fn logs_of_all_kinds_have_their_names_and_take_the_same() {
    let redis = Redis::start().await;
    let policy = Policy::new("user").quota(Quota::per_minute(100));
    let kinds = [policy.clone(), policy.clone().distinct(), policy.in_flight()];
    let mut sizes = Vec::new();
    for (kind, name) in kinds.into_iter().zip(["", ":distinct", ":in_flight"]) {
        let limiter = Limiter::new(kind.clone(), redis.store().await);
        for value in 0..100 {
            let decision = match kind.counts() {
                Counts::Distinct => limiter.check_value("acme", value).await,
                _ => limiter.check("acme").await,
            };
            assert!(decision.unwrap().is_admitted());
        }
        let name = format!("tsw:{{=acme}}:user:60s{name}");
        sizes.push(redis.run::<f64>(&["MEMORY", "USAGE", &name, "SAMPLES", "0"]).await);
        guide_says(&[&format!("`{name}`")]);
    }
    assert!(sizes[1..].iter().all(|it| (0.0..=16.0).contains(&(it - sizes[0]))), "{sizes:?}");
    guide_says(&["An entry of any kind takes the same memory", "takes 16 bytes more"]);
}

#[test]
fn every_page_is_in_the_guide() {
    let guide = include_str!("../../src/docs.rs");
    let folder = crate::root().join("src/docs");
    let lists = guide.split("pages!(").skip(1).map(|list| list.split(')').next().unwrap());
    let pages: Vec<_> = lists.flat_map(|list| list.split([',', '\n'])).map(str::trim).collect();
    for page in crate::files(&folder, "md") {
        let name = page.file_stem().unwrap().to_str().unwrap();
        assert!(pages.contains(&name), "{name} is no module of the guide");
    }
}

#[test]
fn links_into_the_repository_lead_somewhere() {
    let files = ["md", "rs"].map(|extension| crate::files(&crate::root().join("src"), extension));
    for file in files.iter().flatten() {
        let text = std::fs::read_to_string(file).unwrap();
        for link in text.split(env!("CARGO_PKG_REPOSITORY")).skip(1) {
            let path = link.split(['\n', ')', '>']).next().unwrap();
            let path = ["/blob/main/", "/tree/main/"].iter().find_map(|it| path.strip_prefix(it));
            let exists = path.is_some_and(|path| crate::root().join(path).exists());
            assert!(exists, "{} links to {path:?}, which is not there", file.display());
        }
    }
}
