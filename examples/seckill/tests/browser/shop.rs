//! The customer's page.

use test_support::server_process::Server;

use crate::SECKILL;
use crate::chrome::Chrome;

const DISABLED: &str = "document.querySelector('#buy').disabled";

#[tokio::test(flavor = "multi_thread")]
async fn customer_buys_and_sees_the_order() {
    let server = Server::start(SECKILL, &["--stock", "iphone=3"]);
    let chrome = Chrome::start().await;
    let tab = chrome.open(&server.url).await;
    tab.sees("#count", |text| text == "3 of 3").await;
    assert_eq!(tab.text("h1").await, "Flash sale");
    tab.click("#buy").await;
    tab.sees("#answer", |text| text.starts_with("Yours! Order iphone.")).await;
    tab.sees("#count", |text| text == "2 of 3").await;
    tab.click("#buy").await;
    tab.sees("#answer", |text| text.contains("has an order for this SKU already: iphone.")).await;
    tab.works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn button_waits_after_a_429() {
    let server = Server::start(SECKILL, &["--quota", "1/10m"]);
    let chrome = Chrome::start().await;
    let tab = chrome.open(&server.url).await;
    tab.fill("#user", "alice").await;
    server.order("iphone", "alice").await;
    tab.click("#buy").await;
    tab.sees("#answer", |text| text.starts_with("Too many requests. You can try again in")).await;
    assert!(tab.run::<bool>(DISABLED).await, "the button waits too");
    let is_wait = |text: &str| text.starts_with("You can try again in ");
    let first = tab.sees("#timer", is_wait).await;
    tab.sees("#timer", |text| is_wait(text) && text != first).await;
    // Another user does not wait.
    tab.fill("#user", "bob").await;
    tab.until(&format!("!{DISABLED}")).await;
    assert_eq!(tab.text("#timer").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn button_works_again_after_the_wait() {
    let server = Server::start(SECKILL, &["--quota", "1/5s"]);
    let chrome = Chrome::start().await;
    let tab = chrome.open(&server.url).await;
    tab.fill("#user", "alice").await;
    // With the keyboard alone. A slow machine may need several attempts within five seconds.
    tab.press("Tab").await;
    while !tab.text("#answer").await.starts_with("Too many requests.") {
        tab.until(&format!("!{DISABLED}")).await;
        tab.press("Enter").await;
        tab.sees("#answer", |text| !text.is_empty()).await;
    }
    tab.sees("#answer", |text| text == "You can try again now.").await;
    assert!(!tab.run::<bool>(DISABLED).await);
    // The button has the focus again.
    tab.press("Enter").await;
    tab.sees("#answer", |text| text.contains("has an order for this SKU already")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn countdown_ends_with_the_opening() {
    let chrome = Chrome::start().await;
    let server = Server::start(SECKILL, &["--opens-in", "12s"]);
    let tab = chrome.open(&server.url).await;
    tab.sees("#timer", |text| text.starts_with("Opens in 0:")).await;
    assert!(tab.run::<bool>(DISABLED).await, "the button waits for the opening");
    tab.sees("#answer", |text| text.starts_with("The sale opens in")).await;
    tab.sees("#answer", |text| text == "The sale is open.").await;
    assert_eq!((tab.text("#timer").await, tab.run::<bool>(DISABLED).await), (String::new(), false));
    tab.click("#buy").await;
    tab.sees("#answer", |text| text.starts_with("Yours!")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn screen_reader_speaks_seldom() {
    let server = Server::start(SECKILL, &["--opens-in", "1h"]);
    let chrome = Chrome::start().await;
    let tab = chrome.open(&server.url).await;
    tab.sees("#timer", |text| text.starts_with("Opens in 5")).await;
    tab.run::<()>(
        "window.spoken = 0; window.ticks = 0; \
         const count = (id, name) => new MutationObserver(() => window[name]++) \
           .observe(document.getElementById(id), { childList: true, characterData: true, subtree: true }); \
         count('answer', 'spoken'); count('timer', 'ticks');",
    )
    .await;
    tab.until("window.ticks >= 3").await;
    assert_eq!(tab.run::<u32>("window.spoken").await, 0, "the live region stays as it is");
    let roles = "['timer', 'answer'].map(id => document.getElementById(id).role)";
    assert_eq!(tab.run::<Vec<String>>(roles).await, ["timer", "status"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn shop_fits_a_phone_in_dark_mode() {
    let server = Server::start(SECKILL, &[]);
    let chrome = Chrome::start().await;
    let tab = chrome.open(&server.url).await;
    let background = "getComputedStyle(document.documentElement).backgroundColor + \
                      getComputedStyle(document.body).color";
    let light: String = tab.run(background).await;
    tab.set_dark(true).await;
    assert_ne!(tab.run::<String>(background).await, light);
    tab.resize(320, 640).await;
    let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(tab.run::<i64>(overflow).await, 0, "nothing is cut off at the side");
    assert!(
        tab.run::<f64>("document.querySelector('#buy').getBoundingClientRect().height").await
            >= 40.0
    );
}
