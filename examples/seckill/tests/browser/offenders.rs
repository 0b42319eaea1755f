//! The users that are denied most on the live page, and what an operator does about them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use test_support::eventually;
use test_support::server_process::Server;

use crate::chrome::{Chrome, Tab};
use crate::live::{open_live, start};

/// A user id that would be an element if the page took it for one.
const ODD: &str = "<img src=x onerror=alert(1)>";

/// Sends orders of one user without end, over four connections.
async fn flood(server: &Server, user: &str) {
    loop {
        let order = || server.order("iphone", user);
        tokio::join!(order(), order(), order(), order());
    }
}

/// Has the page note when a person could see both the flood and the user that sends it.
async fn watch(tab: &Tab, user: &str) {
    let script = r"window.shown = null;
        new MutationObserver(() => {
          const rows = (id) => [...document.querySelectorAll(`#${id} tr`)];
          const row = rows('offenders').find((it) => it.innerText.includes('USER'));
          const refused = rows('classes').find((it) => it.innerText.includes('(429)'));
          const isFlood = parseFloat(refused.cells[1].innerText.replace(',', '')) >= 1;
          if (row?.checkVisibility() && isFlood && window.shown === null) window.shown = Date.now();
        }).observe(document.body, { childList: true, characterData: true, subtree: true });";
    tab.run::<()>(&script.replace("USER", user)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_is_seen_within_two_seconds() {
    let server = start(&["--quota", "5/60s", "--ip-quota", "off"]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    let mut took = Vec::new();
    // Each flood must be seen. A machine that is busy with something else may be slow now and then,
    // so one of the floods has to be seen in time.
    for number in 1..=5 {
        let user = format!("mallory-{number}");
        watch(&tab, &user).await;
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        tokio::select! {
            () = flood(&server, &user) => {}
            () = tab.until("window.shown !== null") => {}
        }
        let shown = Duration::from_millis(tab.run::<u64>("window.shown").await);
        took.push(shown.saturating_sub(begun));
        if took[number - 1] <= Duration::from_secs(2) {
            return;
        }
    }
    panic!("no flood was seen within two seconds: {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn denial_is_explained() {
    let server = start(&["--quota", "2/10m"]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    assert_eq!(tab.text("#offenders-none").await, "Nothing was denied yet.");
    for _ in 0..3 {
        server.order("iphone", "alice").await;
    }
    tab.sees("#offenders", |text| text.starts_with("alice\t1")).await;
    // With the keyboard alone.
    tab.run::<()>("document.querySelector('#offenders .explain').focus()").await;
    tab.press("Enter").await;
    let text =
        tab.sees("#explanation", |text| text.contains("Decided by the store (memory).")).await;
    for part in [
        "The requests of alice",
        "The next request is denied for 9 min",
        "Quota 2/600s: 2 taken, 0 free",
        "and then a request fits",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    tab.press("Escape").await;
    tab.sees("#explanation", str::is_empty).await;
    let focus = "document.activeElement.className";
    assert_eq!(tab.run::<String>(focus).await, "explain", "the focus returns");
}

#[tokio::test(flavor = "multi_thread")]
async fn ban_is_imposed_and_lifted() {
    let server = start(&["--quota", "1/10m"]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    for _ in 0..2 {
        server.order("iphone", "mallory").await;
    }
    tab.sees("#offenders", |text| text.starts_with("mallory")).await;
    tab.click("#offenders .ban").await;
    tab.sees("#ban-title", |text| text == "Ban mallory").await;
    tab.fill("#ban-length", "2h").await;
    tab.fill("#ban-reason", "a script").await;
    tab.press("Enter").await;
    tab.sees("#done", |text| text.starts_with("mallory is banned until ")).await;
    eventually("the ban holds", async || server.order("iphone", "mallory").await.status == 403)
        .await;
    tab.sees("#offenders th", |text| text == "mallory (banned)").await;
    tab.click("#offenders .explain").await;
    tab.sees("#explanation-sentence", |text| {
        text.starts_with("Banned for 1 h 59 min more: a script")
    })
    .await;
    tab.click("#explanation button").await;

    tab.sees("#offenders .ban", |text| text == "Lift the ban").await;
    tab.click("#offenders .ban").await;
    tab.sees("#done", |text| text == "The ban of mallory is lifted.").await;
    eventually("it is lifted", async || server.order("iphone", "mallory").await.status == 429)
        .await;
    tab.sees("#offenders .ban", |text| text == "Ban …").await;
    // A dialog that is cancelled bans no user.
    tab.click("#offenders .ban").await;
    tab.sees("#ban-title", |text| text == "Ban mallory").await;
    tab.press("Escape").await;
    tab.sees("#ban", str::is_empty).await;
    server.order("iphone", "mallory").await.problem(429);
}

#[tokio::test(flavor = "multi_thread")]
async fn user_ids_are_shown_as_text() {
    let server = start(&["--quota", "1/10m"]);
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    for _ in 0..2 {
        server.order("iphone", ODD).await;
    }
    tab.sees("#offenders", |text| text.contains(ODD)).await;
    tab.click("#offenders .explain").await;
    tab.sees("#explanation-title", |text| text.contains(ODD)).await;
    tab.click("#explanation button").await;
    tab.fill("#user", ODD).await;
    tab.click("#one-user button[value=lift]").await;
    tab.sees("#done", |text| text == "The user is not banned").await;
    assert_eq!(
        tab.run::<usize>("document.querySelectorAll('main img, dialog img').length").await,
        0
    );
    tab.works().await;
}
