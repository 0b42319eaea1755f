//! Banned and muted requests over HTTP.

use crate::*;

test_support::on_every_store!(
    a_muted_request_is_held_to_the_other_rules,
    a_mute_counts_one_strike_a_request,
    shadow_records_no_strike_and_no_ban,
);

async fn muted(request: Request<String>) -> Result<Response<String>, Infallible> {
    let muted = request.extensions().get::<Muted>();
    Ok(Response::new(muted.map_or("heard", |_| "muted").to_owned()))
}

#[tokio::test(start_paused = true)]
async fn http_ban_status_and_retry_after() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let store = MemoryStore::new();
    let bans = Bans::new(policy(), store.clone());
    bans.impose("mallory", Duration::from_millis(90_500), "sells accounts").await.unwrap();
    let default = by_user(policy(), store);
    let other = default.clone().on_ban(OnBan::Reject(StatusCode::TOO_MANY_REQUESTS));
    for (layer, expected) in [(default, 403), (other, 429)] {
        let service = layer.layer(service_fn(ok));
        let answer = send(&service, from_user("mallory")).await;
        assert_eq!(answer.status, expected);
        assert_eq!(answer.retry_after(), Some(91));
        let problem = answer.document();
        assert!(problem["type"].as_str().unwrap().ends_with("#abnormal-usage-detected"));
        assert_eq!(problem["violated-policies"], serde_json::json!(["user"]));
        assert!(!answer.body.contains("sells"), "the reason is not the client's");
        assert_eq!(status(&service, "alice").await, 200);
    }
    let denied = "sliding_window_decisions_total{policy=user,outcome=denied}";
    assert_eq!(recorded.count(denied), 2);
}

async fn a_muted_request_is_held_to_the_other_rules(store: impl Store + Clone) {
    let all = Policy::new("all").quota(Quota::per_hour(3));
    let bans = Bans::new(policy(), store.clone());
    bans.impose("mallory", Duration::from_secs(600), "spam").await.unwrap();
    let service = by_user(policy(), store.clone())
        .rule(all, key::constant("everybody"))
        .on_ban(OnBan::Mute)
        .layer(service_fn(muted));
    for (user, body) in [("alice", "heard"), ("mallory", "muted"), ("mallory", "muted")] {
        let answer = send(&service, from_user(user)).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (200, body));
        assert_eq!(answer.retry_after(), None);
    }
    for _ in 0..5 {
        let answer = send(&service, from_user("mallory")).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.document()["violated-policies"], serde_json::json!(["all"]));
        assert!(answer.header("ratelimit").unwrap().starts_with("\"all\";r=0"));
        assert!(answer.retry_after() > Some(3_000), "the full rule's wait, not the ban's");
    }
    let left = Limiter::new(policy(), store.clone()).peek("mallory").await.unwrap().remaining();
    assert_eq!(left, policy().quotas()[0].limit(), "nothing counts for the banned key");
    let alice = send(&service, from_user("alice")).await;
    assert_eq!(alice.status, StatusCode::TOO_MANY_REQUESTS, "the places were taken");
}

#[tokio::test(start_paused = true)]
async fn no_field_tells_that_a_sender_is_muted() {
    let store = MemoryStore::new();
    let bans = Bans::new(policy(), store.clone());
    bans.impose("mallory", Duration::from_secs(60), "spam").await.unwrap();
    let all = Policy::new("all").quota(Quota::per_hour(2));
    let layer = by_user(policy(), store).rule(all, key::constant("everybody"));
    let service = layer.on_ban(OnBan::Mute).headers_on_success(true).layer(service_fn(muted));
    for (user, status) in [("alice", 200), ("mallory", 200), ("alice", 429), ("mallory", 429)] {
        let answer = send(&service, from_user(user)).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("ratelimit-policy"), Some("\"all\";q=2;w=3600"));
    }
    let layer = by_user(policy(), MemoryStore::new()).on_ban(OnBan::Mute);
    let service = layer.layer(service_fn(muted));
    for (status, fields) in [(200, None), (200, None), (429, Some("\"user\";q=2;w=1"))] {
        let answer = send(&service, from_user("alice")).await;
        assert_eq!((answer.status.as_u16(), answer.header("ratelimit-policy")), (status, fields));
        assert_eq!(answer.retry_after(), fields.map(|_| 1), "what denies is named");
    }
}

#[tokio::test(start_paused = true)]
async fn handler_sees_the_longest_of_two_mutes() {
    let (store, policies) = (MemoryStore::new(), ["a", "b"].map(|name| policy().named(name)));
    for (policy, seconds) in policies.iter().zip([600, 60]) {
        let bans = Bans::new(policy.clone(), store.clone());
        bans.impose("mallory", Duration::from_secs(seconds), "").await.unwrap();
    }
    let [long, short] = policies.map(|policy| by_user(policy, store.clone()).on_ban(OnBan::Mute));
    let service = long.layer(short.layer(service_fn(async |request: Request<String>| {
        let muted = request.extensions().get::<Muted>().map(|it| it.remaining.as_secs());
        Ok::<_, Infallible>(Response::new(format!("{muted:?}")))
    })));
    assert_eq!(send(&service, from_user("mallory")).await.body, "Some(600)");
}

/// Each key of the request is under a policy with a penalty, and the first is banned.
async fn a_mute_counts_one_strike_a_request(store: impl Store + Clone) {
    let strict = Policy::new("strict").quota(Quota::per_hour(1));
    let strict = strict.penalty("2/2h:1h".parse().unwrap());
    let bans = Bans::new(policy(), store.clone());
    bans.impose("mallory", Duration::from_secs(60), "").await.unwrap();
    let strikes = Arc::new(Mutex::new(Vec::new()));
    let seen = strikes.clone();
    let service = by_user(policy(), store)
        .rule(strict, key::constant("everybody"))
        .on_ban(OnBan::Mute)
        .on_decision(move |decision| {
            let strike = decision.usage().bans().map(|(_, ban)| ban.strike());
            seen.lock().unwrap().extend(strike.filter(|it| *it != Strike::None));
        })
        .layer(service_fn(muted));
    assert_eq!(status(&service, "mallory").await, 200);
    assert_eq!(status(&service, "mallory").await, 429);
    assert_eq!(*strikes.lock().unwrap(), [Strike::Counted]);
}

/// What is only reported must not be enforced once the shadow is off.
async fn shadow_records_no_strike_and_no_ban(store: impl Store + Clone) {
    let [policy, other] = [("user", "2/2h:1h"), ("other", "1/1h:1h")].map(|(name, penalty)| {
        move || Policy::new(name).quota(Quota::per_hour(2)).penalty(penalty.parse().unwrap())
    });
    let shadow = by_user(policy(), store.clone())
        .rule(other(), key::header("x-user-id"))
        .shadow(true)
        .layer(service_fn(async |request: Request<String>| {
            let decision = request.extensions().get::<Decision>().map(Decision::is_admitted);
            Ok::<_, Infallible>(Response::new(format!("{decision:?}")))
        }));
    for admitted in [true, true, false, false, false] {
        let answer = send(&shadow, from_user("mallory")).await;
        assert_eq!((answer.status.as_u16(), answer.retry_after()), (200, None));
        assert_eq!(answer.body, format!("{:?}", Some(admitted)));
    }
    for policy in [policy(), other()] {
        let bans = Bans::new(policy.clone(), store.clone());
        assert!(bans.get("mallory").await.unwrap().is_none());
        assert!(!bans.lift("mallory").await.unwrap(), "a strike");
        let left = Limiter::new(policy, store.clone()).peek("mallory").await.unwrap().remaining();
        assert_eq!(left, 0, "the log counts");
    }
    let enforced = by_user(policy(), store).layer(service_fn(ok));
    assert_eq!(status(&enforced, "mallory").await, 429, "the quota, and no ban");
}
