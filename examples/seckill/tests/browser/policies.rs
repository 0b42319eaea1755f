//! The thresholds on the live page.

use test_support::Redis;

use crate::chrome::Chrome;
use crate::live::{open_live, start};

#[tokio::test(flavor = "multi_thread")]
async fn candidate_is_tried_before_it_is_enforced() {
    let redis = Redis::start().await;
    let url = redis.url();
    let flags = ["--quota", "4/10m", "--redis", &url, "--response-timeout", "10s"];
    let servers = [start(&flags), start(&flags)];
    let chrome = Chrome::start().await;
    let tab = open_live(&chrome, &servers[0]).await;
    let form = "#policy-user";
    tab.sees(&format!("{form} .now"), |text| text == "In force: 4/600s").await;
    tab.fill("#quotas-user", "2/10m").await;
    tab.press("Enter").await;
    tab.sees("#done", |text| text == "2/10m is tried in shadow on every server.").await;
    tab.sees(&format!("{form} .trial"), |text| text.starts_with("Candidate 2/600s")).await;
    // Two of the four are more than the candidate admits, and the fifth is refused.
    for status in [201, 409, 409, 409, 429] {
        assert_eq!(servers[0].order("iphone", "alice").await.status, status);
    }
    tab.sees(&format!("{form} .trial"), |text| {
        text.ends_with("2 more refused than the 1 that were.")
    })
    .await;

    tab.click(&format!("{form} .apply")).await;
    tab.sees("#done", |text| text == "2/600s is enforced on every server.").await;
    tab.sees(&format!("{form} .now"), |text| text == "In force: 2/600s").await;
    assert_eq!(tab.text(&format!("{form} .trial")).await, "No candidate.");
    let other = open_live(&chrome, &servers[1]).await;
    other.sees(&format!("{form} .now"), |text| text == "In force: 2/600s").await;
    for status in [201, 409, 429] {
        assert_eq!(servers[1].order("iphone", "bob").await.status, status);
    }

    tab.fill("#quotas-user", "2/soon").await;
    tab.press("Enter").await;
    tab.sees("#done", |text| text.starts_with("The policy is malformed.")).await;
    tab.click(&format!("{form} button:last-of-type")).await;
    other.sees(&format!("{form} .now"), |text| text == "In force: 4/600s").await;
}
