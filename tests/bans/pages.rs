//! Lists of bans, page by page.

use crate::*;

test_support::on_every_store!(pages_show_each_ban_once);

/// Returns what each page of so many bans has.
async fn pages(bans: &Bans, count: usize) -> Vec<Vec<(Key, Ban)>> {
    let (mut cursor, mut pages) = (0, Vec::new());
    loop {
        let page = bans.page(cursor, count).await.unwrap();
        pages.push(page.bans);
        let Some(next) = page.next else { return pages };
        cursor = next;
    }
}

/// 500 users are banned by hand, beside one of another policy and many that are not banned.
async fn pages_show_each_ban_once(store: impl Store + Clone) {
    let minute = Duration::from_secs(60);
    let other = Policy::new("other").quota(Quota::per_second(2)).penalty(Penalty::manual());
    Bans::new(other, store.clone()).impose("stranger", minute, "").await.unwrap();
    let bans = Bans::new(policy(), store.clone());
    let limiter = Limiter::new(policy(), store);
    for user in 0..500 {
        assert!(limiter.check(format!("honest-{user}")).await.unwrap().is_admitted());
        bans.impose(user.to_string(), minute, "by hand").await.unwrap();
    }
    let pages = pages(&bans, 30).await;
    assert!((8..=50).contains(&pages.len()), "{} pages", pages.len());
    let users: BTreeSet<_> = pages.concat().into_iter().map(|(user, _)| user).collect();
    assert_eq!(users, (0..500).map(|user| Key::from(user.to_string())).collect());
    let mut listed = bans.list().await.unwrap();
    assert!(listed.iter().all(|(_, ban)| ban.reason == "by hand"));
    assert!(listed.is_sorted_by_key(|(_, ban)| std::cmp::Reverse(ban.remaining)));
    listed.sort_by(|one, other| one.0.cmp(&other.0));
    listed.dedup_by(|one, other| one.0 == other.0);
    assert_eq!(listed.len(), 500);

    // What an admin page shows of a hashed key lifts its ban.
    let secret = Key::hashed("a secret");
    bans.impose(&secret, 2 * minute, "").await.unwrap();
    let listed = bans.list().await.unwrap();
    assert_eq!(listed[0].0, secret);
    assert!(!bans.lift(listed[0].0.as_bytes()).await.unwrap(), "another key");
    assert!(bans.lift(Key::from_stored(listed[0].0.as_bytes())).await.unwrap());

    for count in [0, 1, 20, 100] {
        let page = bans.page(0, count).await.unwrap();
        let few = count.max(1)..=count + 30;
        assert!(few.contains(&page.bans.len()), "{} for {count}", page.bans.len());
    }
    let page = bans.page(0, usize::MAX).await.unwrap();
    assert_eq!((page.bans.len(), page.next), (500, None));
}

#[tokio::test]
async fn list_of_bans_is_few_round_trips() {
    let redis = Redis::start().await;
    let mut put = redis::pipe();
    for user in 0..3_000 {
        let name = format!("tsw:{{=user-{user}}}:user:ban");
        put.cmd("HSET").arg(name).arg(&["until", "9999999999999999", "reason", "x"]).ignore();
    }
    put.exec_async(&mut redis.connection().await.unwrap()).await.unwrap();
    let bans = Bans::new(policy(), redis.store().await);
    assert_eq!(bans.get("user-7").await.unwrap().unwrap().reason, "x");
    let before = redis.stat("total_reads_processed").await;
    assert_eq!(bans.list().await.unwrap().len(), 3_000);
    let reads = redis.stat("total_reads_processed").await - before;
    assert!(reads < 300, "{reads} reads for 3,000 bans");
}

/// An admin's page must not keep Redis busy for long, however large the database is.
#[tokio::test]
async fn page_covers_a_part_of_a_large_database() {
    let redis = Redis::start().await;
    let script = "for number = 1, 250000 do redis.call('SET', number, '') end";
    redis.run::<()>(&["EVAL", script, "0"]).await;
    let bans = Bans::new(policy(), redis.store().await);
    bans.impose("alice", Duration::from_secs(60), "").await.unwrap();
    let pages = pages(&bans, 10).await;
    assert!((3..=4).contains(&pages.len()), "{} pages of 250,000 keys", pages.len());
    assert_eq!(pages.concat().len(), 1);
}
