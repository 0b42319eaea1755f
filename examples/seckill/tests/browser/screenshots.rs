//! Makes the pictures of the README. CONTRIBUTING.md has the command.

use std::path::Path;
use std::time::Duration;

use chromiumoxide::page::ScreenshotParams;
use test_support::Redis;
use test_support::server_process::Server;
use tokio::time::{interval, sleep};

use crate::SECKILL;
use crate::chrome::{Chrome, Tab};
use crate::live::{open_live, start};

/// The most bytes of a picture.
const LARGEST: usize = 150_000;

async fn save(tab: &Tab, name: &str) {
    let whole = ScreenshotParams::builder().full_page(true).build();
    let picture = tab.0.screenshot(whole).await.unwrap();
    assert!(picture.len() < LARGEST, "{name} has {} bytes", picture.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("screenshots");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), picture).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it writes files"]
async fn shop_picture_is_made() {
    let server = Server::start(SECKILL, &["--quota", "1/60s"]);
    let chrome = Chrome::start().await;
    let tab = chrome.open(&server.url).await;
    tab.resize(460, 540).await;
    tab.fill("#user", "alice").await;
    server.order("iphone", "alice").await;
    tab.click("#buy").await;
    tab.sees("#timer", |text| text.starts_with("You can try again in 0:5")).await;
    tab.sees("#count", |text| text == "99 of 100").await;
    save(&tab, "shop.png").await;
}

/// Many customers that order once, and a few scripts that order again and again.
async fn sale(server: &Server) {
    let (mut ticks, mut number) = (interval(Duration::from_millis(50)), 0_u32);
    loop {
        ticks.tick().await;
        let customers = 1 + number.is_multiple_of(3) as u32 + u32::from(number > 150);
        for customer in 0..customers {
            server.order("iphone", &format!("user-{number}-{customer}")).await;
        }
        let scripts = ["mallory", "bot-7", "bot-12"];
        let active = scripts.len().min(number as usize / 60);
        for (script, times) in scripts[..active].iter().zip([6, 2, 1]) {
            for _ in 0..times {
                server.order("iphone", script).await;
            }
        }
        number += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it writes files"]
async fn live_picture_is_made() {
    let redis = Redis::start().await;
    let url = redis.url();
    let stock = ["--stock", "iphone=1200", "--stock", "ipad=40"];
    let flags = ["--ip-quota", "off", "--redis", &url, "--response-timeout", "1s"];
    let server = start(&[&stock[..], &flags].concat());
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &server).await;
    tab.resize(1000, 800).await;
    tab.fill("#quotas-user", "3/60s").await;
    tab.press("Enter").await;
    let picture = async {
        sleep(Duration::from_secs(45)).await;
        tab.run::<()>("document.activeElement.blur()").await;
        tab.run::<()>("document.querySelector('#done').replaceChildren()").await;
        save(&tab, "live.png").await;
    };
    tokio::select! {
        () = picture => {}
        () = sale(&server) => {}
    }
}
