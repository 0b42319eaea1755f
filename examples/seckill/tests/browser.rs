//! The pages as a person sees them, in a real browser.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::emulation::{
    SetDeviceMetricsOverrideParams, SetUserAgentOverrideParams,
};
use chromiumoxide::{Browser, BrowserConfig, Page};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use test_support::server_process::{ADMIN, Server, TOKEN};
use test_support::{Redis, eventually};
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::timeout;

/// How long a page may take to show something on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const DISABLED: &str = "document.querySelector('#act').disabled";
const FOCUSED: &str = "document.activeElement.id === 'act'";

/// Notes what a person sees only as a page that does not work.
const NOTE_PROBLEMS: &str = "window.problems = [];
    addEventListener('error', (event) => problems.push(event.message));
    addEventListener('unhandledrejection', (event) => problems.push(String(event.reason)));
    addEventListener('securitypolicyviolation', (event) => problems.push(event.violatedDirective));";

/// A browser with a profile of its own.
struct Chrome {
    browser: Browser,
    _profile: TempDir,
}

impl Chrome {
    async fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let config = BrowserConfig::builder()
            .user_data_dir(profile.path())
            // The pages are our own, and a test may run as root.
            .no_sandbox()
            .args(["disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"])
            .viewport(None)
            .launch_timeout(PATIENCE)
            .request_timeout(PATIENCE);
        let config = config.build().expect("tests/install.sh chromium installs a browser");
        let launched = Browser::launch(config).await;
        let (browser, mut handler) = launched.expect("the browser starts");
        tokio::spawn(async move { while handler.next().await.is_some() {} });
        Self { browser, _profile: profile }
    }

    async fn open(&self, url: &str) -> Tab {
        let tab = Tab(self.browser.new_page("about:blank").await.unwrap());
        // Before any script of the page.
        tab.0.evaluate_on_new_document(NOTE_PROBLEMS).await.unwrap();
        tab.0.goto(url).await.expect("the page is served");
        tab
    }

    /// Opens the live page as an operator does, and waits for the first figures.
    async fn open_live(&self, server: &Server) -> Tab {
        let tab = self.open(server.admin_url.as_deref().unwrap()).await;
        let wrong = "The token is not the one of this server.";
        for (token, connection) in [("not-the-token-of-this-server", wrong), (TOKEN, "Live")] {
            tab.sees("#main", str::is_empty).await;
            tab.fill("#token", token).await;
            tab.press("Enter").await;
            tab.sees("#connection", |text| text == connection).await;
        }
        assert!(!tab.run::<String>("location.href").await.contains(TOKEN), "not in the URL");
        assert_eq!(tab.run::<usize>("localStorage.length + document.cookie.length").await, 0);
        tab
    }
}

/// A browser that is killed at once leaves processes that still write to the profile.
impl Drop for Chrome {
    fn drop(&mut self) {
        let close =
            async { (self.browser.close().await.is_ok(), self.browser.wait().await.is_ok()) };
        let _ = block_in_place(|| Handle::current().block_on(timeout(PATIENCE, close)));
    }
}

/// A page in the browser, and what a person does there.
struct Tab(Page);

impl Tab {
    /// Evaluates an expression, and waits for its promise.
    async fn run<T: DeserializeOwned>(&self, expression: &str) -> T {
        self.try_run(expression).await.expect(expression)
    }

    /// Returns nothing while the page is replaced by another one.
    async fn try_run<T: DeserializeOwned>(&self, expression: &str) -> Option<T> {
        let result = self.0.evaluate_expression(expression).await.ok()?;
        // An expression without a value has the one of JSON.
        serde_json::from_value(result.value().cloned().unwrap_or_default()).ok()
    }

    /// Waits until a person can see a text that fulfils a condition. A text that is hidden is empty.
    async fn sees(&self, selector: &str, fulfils: impl Fn(&str) -> bool) {
        let text_of = format!(
            "(() => {{ const it = document.querySelector('{selector}'); \
             return it && it.checkVisibility() ? it.innerText.trim() : ''; }})()"
        );
        let is_seen = async || self.try_run(&text_of).await.is_some_and(|it: String| fulfils(&it));
        eventually(selector, is_seen).await;
    }

    /// Waits until an expression is true.
    async fn until(&self, expression: &str) {
        eventually(expression, async || self.try_run(expression).await == Some(true)).await;
    }

    /// Checks that no script has failed, that the page has tried nothing that its policy forbids, and that
    /// it fits a phone.
    async fn works(&self) {
        let phone = SetDeviceMetricsOverrideParams::new(320, 640, 1.0, true);
        self.0.execute(phone).await.unwrap();
        let root = "document.documentElement";
        self.until(&format!("{root}.scrollWidth <= {root}.clientWidth")).await;
        assert_eq!(self.run::<Vec<String>>("problems").await, [""; 0]);
    }

    async fn click(&self, selector: &str) {
        self.0.bring_to_front().await.unwrap();
        let element = self.0.find_element(selector).await.expect(selector);
        element.click().await.expect(selector);
    }

    /// Clicks the button of the shop once it offers this.
    async fn does(&self, what: &str) {
        self.sees("#act", |text| text == what).await;
        self.until(&format!("!{DISABLED}")).await;
        self.click("#act").await;
    }

    /// Replaces the text of a field by typing.
    async fn fill(&self, selector: &str, text: &str) {
        self.click(selector).await;
        let element = self.0.find_element(selector).await.unwrap();
        element.call_js_fn("function() { this.select(); }", false).await.unwrap();
        element.press_key("Backspace").await.unwrap().type_str(text).await.unwrap();
    }

    /// Says who the customer is.
    async fn is_user(&self, id: &str) {
        self.fill("#user", id).await;
        self.press("Tab").await;
    }

    /// Waits until the page begins its answer with this.
    async fn answers(&self, start: &str) {
        self.sees("#answer", |text| text.starts_with(start)).await;
    }

    /// Presses a key, which goes to the element with the focus.
    async fn press(&self, key: &str) {
        // Of any element: `:focus` has none while the window of the browser is not the active one.
        self.0.find_element("body").await.unwrap().press_key(key).await.unwrap();
    }
}

/// Starts a server with an admin listener.
fn start(flags: &str) -> Server {
    let flags: Vec<_> = ADMIN.into_iter().chain(flags.split_whitespace()).collect();
    Server::start(env!("CARGO_BIN_EXE_seckill"), &flags)
}

#[tokio::test(flavor = "multi_thread")]
async fn customer_goes_from_entry_to_payment() {
    let chrome = Chrome::start().await;
    let server = start("--opens-in 12s --stock iphone=1");
    let alice = chrome.open(&server.url).await;
    alice.sees("#timer", |text| text.starts_with("Opens in 0:")).await;
    alice.does("Enter the draw").await;
    alice.answers("You are in the draw.").await;
    alice.0.reload().await.unwrap();
    alice.answers("You are in the draw.").await;
    // To a tenth of a second.
    alice.sees("#timer", |text| text.starts_with("The draw is in 0:") && text.contains('.')).await;
    alice.sees("#act", str::is_empty).await;
    alice.answers("It is your turn!").await;
    let bob = chrome.open(&server.url).await;
    bob.is_user("bob").await;
    bob.does("Join the line").await;
    bob.answers("You are number 1 in line. If those before you").await;
    bob.sees("#act", str::is_empty).await;
    alice.0.reload().await.unwrap();
    alice.sees("#timer", |text| text.starts_with("Order within 0:")).await;
    alice.does("Order now").await;
    alice.answers("Yours, once it is paid. Order iphone.").await;
    alice.does("Pay (simulated)").await;
    alice.answers("Yours! Order iphone.").await;
    alice.0.reload().await.unwrap();
    alice.answers("Yours! Order iphone.").await;
    alice.sees("#count", |text| text == "0 of 1").await;
    alice.sees("#act", str::is_empty).await;
    bob.answers("Sold out.").await;
    bob.sees("#act", str::is_empty).await;
    alice.works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn button_waits_for_the_opening_and_after_a_429() {
    // First: several browsers that start at once may take seconds.
    let chrome = Chrome::start().await;
    let sale = "--quota 1/12s --stock iphone=9 --stock ipad=9";
    let server = start(&format!("{sale} --first-come --opens-in 8s"));
    let tab = chrome.open(&server.url).await;
    tab.is_user("alice").await;
    tab.sees("#timer", |text| text.starts_with("Opens in 0:0")).await;
    tab.sees("#act", str::is_empty).await;
    tab.sees("#act", |text| text == "Buy now").await;
    assert_eq!(server.order("ipad", "alice").await.status, 201);
    // With the keyboard alone.
    tab.until(&format!("!{DISABLED} && {FOCUSED}")).await;
    tab.press("Enter").await;
    tab.answers("Too many requests from you").await;
    assert!(tab.run::<bool>(DISABLED).await, "the button waits too");
    tab.sees("#timer", |text| text.starts_with("You can try again in 0:")).await;
    tab.answers("The sale is open.").await;
    tab.until(&format!("!{DISABLED} && {FOCUSED}")).await;
    tab.press("Enter").await;
    tab.answers("Yours, once it is paid.").await;
    // Somebody with an order sees that, and never that there were too many requests.
    server.order("iphone", "alice").await.problem(429);
    tab.0.reload().await.unwrap();
    tab.answers("Yours, once it is paid. Order iphone.").await;
    tab.sees("#timer", |text| text.starts_with("Pay within 4:")).await;
    // Another user is somebody else.
    tab.is_user("bob").await;
    tab.sees("#act", |text| text == "Buy now").await;
    tab.works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn page_speaks_chinese_also_of_an_outage() {
    let (chrome, server) = (Chrome::start().await, start(""));
    let tab = chrome.open("about:blank").await;
    let chinese = SetUserAgentOverrideParams::builder().user_agent("a phone");
    let chinese = chinese.accept_language("zh-CN,zh,en").build().unwrap();
    tab.0.execute(chinese).await.unwrap();
    tab.0.goto(&server.url).await.unwrap();
    tab.sees("#act", |text| text == "立即购买").await;
    tab.sees("h1", |text| text == "限时抢购").await;
    // A poll that is lost is no outage.
    let lose_one = "[window.polls, window.isHidden, window.real] = [0, false, fetch]; \
        window.fetch = (...it) => polls++ ? real(...it) : Promise.reject(new TypeError()); \
        new MutationObserver(() => isHidden ||= act.hidden).observe(act, { attributes: true })";
    tab.run::<()>(lose_one).await;
    tab.until("polls > 2").await;
    assert!(!tab.run::<bool>("isHidden").await, "the button stays");
    server.signal("STOP");
    tab.answers("商店暂时无法响应").await;
    tab.sees("#act", str::is_empty).await;
    server.signal("CONT");
    tab.sees("#act", |text| text == "立即购买").await;
    // An order of another tab, which the page has not seen, is not taken for one that is paid.
    let no_look = "window.fetch = (...it) => \
        it[0].endsWith('/entry') ? Promise.reject(new TypeError()) : real(...it); null";
    tab.run::<()>(no_look).await;
    tab.is_user("alice").await;
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    tab.does("立即购买").await;
    tab.until(&format!("!{DISABLED}")).await;
    tab.run::<()>("window.fetch = real; null").await;
    tab.answers("付款后就是您的").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_for_another_sku_is_not_taken() {
    let sale = "--opens-in 1h --stock iphone=1 --stock ipad=1";
    let (chrome, server) = (Chrome::start().await, start(sale));
    let tab = chrome.open(&server.url).await;
    let hold = "window.real = fetch; window.fetch = async (...it) => { \
        const answer = await real(...it); \
        if (it[1].method === 'POST') await new Promise((go) => window.go = go); \
        return answer; }; null";
    tab.run::<()>(hold).await;
    tab.does("Enter the draw").await;
    tab.until("Boolean(window.go)").await;
    tab.run::<()>("sku.value = 'ipad'; sku.dispatchEvent(new Event('change')); null").await;
    // The page has looked where the customer is for this one.
    tab.until("performance.getEntriesByName(location + 'seckill/ipad/entry').length > 0").await;
    tab.run::<()>("go(); window.go = null").await;
    tab.does("Enter the draw").await;
    tab.until("Boolean(window.go)").await;
    tab.run::<()>("go()").await;
    tab.answers("You are in the draw.").await;
    tab.works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn page_says_what_came_of_an_action() {
    let redis = Redis::start().await;
    let server = start(&format!("--opens-at 2020-01-01T00:00:00Z --redis {}", redis.url()));
    let chrome = Chrome::start().await;
    let tab = chrome.open(&server.url).await;
    tab.is_user("alice").await;
    // The next action fails, before the server has it or after.
    let lose = "window.real = fetch; window.lose = (sent) => { window.fetch = async (...it) => { \
        if (it[1].method !== 'POST') return real(...it); \
        window.fetch = real; \
        if (sent) await real(...it); \
        throw new TypeError(); }; }; null";
    tab.run::<()>(lose).await;
    tab.run::<()>("lose(false)").await;
    tab.does("Join the line").await;
    tab.answers("That did not work.").await;
    tab.does("Join the line").await;
    tab.answers("It is your turn!").await;
    redis.run::<()>(&["ZREM", "seckill:{iphone}:held", "alice"]).await;
    tab.does("Order now").await;
    tab.answers("Your turn is over.").await;
    tab.does("Join the line").await;
    tab.answers("It is your turn!").await;
    tab.run::<()>("lose(true)").await;
    tab.does("Order now").await;
    tab.answers("Yours, once it is paid.").await;
    redis.run::<()>(&["ZADD", "seckill:{iphone}:held", "1", "alice"]).await;
    tab.does("Pay (simulated)").await;
    tab.answers("The order was not paid in time.").await;
    tab.is_user("sha256:x").await;
    tab.answers("You can join the line").await;
    tab.does("Join the line").await;
    tab.answers("This user id can't be used.").await;
    tab.works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_and_the_state_are_shown() {
    let redis = Redis::start().await;
    let sale = format!("--quota 2/10m --redis {} --stock ipad=5", redis.url());
    let server = start(&format!("{sale} --stock iphone=1"));
    let chrome = Chrome::start().await;
    let tab = chrome.open_live(&server).await;
    for (sku, user, status) in [
        ("iphone", "alice", 201),
        ("ipad", "bob", 201),
        ("ipad", "bob", 409),
        ("ipad", "bob", 429),
        ("iphone", "carol", 410),
    ] {
        assert_eq!(server.order(sku, user).await.status, status);
    }
    tab.sees("#orders", |text| {
        let total = |line: &str| line.rsplit('\t').next().unwrap().to_owned();
        text.lines().map(total).collect::<Vec<_>>() == ["2", "1", "1", "1", "0", "0", "0", "0"]
    })
    .await;
    let stock = "ipad\t4 of 5\t1\t0\t0\t0\niphone\tsold out\t1\t0\t0\t0";
    tab.sees("#stock", |text| text == stock).await;
    let end = "document.querySelector('#stock').getBoundingClientRect().bottom";
    assert!(tab.run::<bool>(&format!("{end} < innerHeight")).await, "it is above the fold");
    tab.works().await;
    redis.signal("STOP");
    let unread = "Nothing is sold: the stock can't be read or changed.";
    tab.sees("#alert", |text| text.starts_with(unread)).await;
    redis.signal("CONT");
    tab.sees("#alert", str::is_empty).await;
    redis.run::<()>(&["DEL", "seckill:{iphone}:stock"]).await;
    tab.sees("#alert", |text| text.starts_with("No iphone is sold: Redis has lost")).await;
    tab.sees("#stock", |text| text.contains("\niphone\tnot known")).await;
    server.signal("STOP");
    tab.sees("#connection", |text| {
        text.starts_with("This server does not answer") && text.ends_with(" s old.")
    })
    .await;
    assert_eq!(tab.run::<String>("document.querySelector('main').className").await, "stale");
    server.signal("CONT");
    tab.sees("#connection", |text| text == "Live").await;
    // Another one in its place sells less, and limits no addresses.
    let admin = server.admin_url.as_deref().unwrap().trim_start_matches("http://").to_owned();
    server.stop();
    let flags = format!("{sale} --ip-quota off --admin {admin} --admin-token {TOKEN}");
    let flags: Vec<_> = flags.split_whitespace().collect();
    let _other = Server::start(env!("CARGO_BIN_EXE_seckill"), &flags);
    tab.sees("#stock", |text| text == "ipad\t4 of 5\t1\t0\t0\t0").await;
    tab.until("document.querySelector('#policy-ip') === null").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_explains_bans_and_changes_quotas() {
    // A user id that would be an element if the page took it for one.
    let odd = "<img src=x onerror=alert(1)>";
    let server = start("--quota 1/10m --ip-quota 2/10m");
    let chrome = Chrome::start().await;
    let tab = chrome.open_live(&server).await;
    for _ in 0..2 {
        server.order("iphone", odd).await;
    }
    tab.sees("#offenders", |text| text.contains(odd) && text.contains("1 denials")).await;
    tab.click("#offenders button").await;
    tab.click("button[value=explain]").await;
    tab.sees("#explanation", |text| {
        text.starts_with(&format!("The next request of {odd} is denied for 59"))
            && text.contains("s more. Decided by store.\n\nQuota 1/600s: 1 taken, 0 free")
    })
    .await;
    tab.fill("#reason", "a script").await;
    tab.click("button[value=ban]").await;
    tab.sees("#done", |text| text.starts_with(&format!("{odd} is banned for 3600 s"))).await;
    let is = async |status| server.order("iphone", odd).await.status == status;
    eventually("the ban holds", async || is(403).await).await;
    tab.click("button[value=lift]").await;
    tab.sees("#done", |text| text == format!("The ban of {odd} is lifted.")).await;
    eventually("it is lifted", async || is(429).await).await;
    tab.click("button[value=lift]").await;
    tab.sees("#done", |text| text == "The user is not banned").await;
    // An address is explained, and not banned.
    for (user, status) in [("alice", 201), ("bob", 429)] {
        assert_eq!(server.order("iphone", user).await.status, status);
    }
    tab.sees("#offenders", |text| text.ends_with("127.0.0.1\tEach address\t1 denials")).await;
    tab.click("#offenders tr:last-child button").await;
    tab.click("button[value=explain]").await;
    let denied = "The next request of 127.0.0.1 is denied for 59";
    tab.sees("#explanation", |text| text.starts_with(denied)).await;
    assert!(tab.run::<bool>("document.querySelector('button[value=ban]').disabled").await);
    tab.sees("#no-ban", |text| text.starts_with("An address is not banned")).await;
    assert_eq!(tab.run::<usize>("document.querySelectorAll('img').length").await, 0);
    tab.sees("#policy-user .now", |text| text == "In force: 1/600s").await;
    tab.fill("#quotas-user", "2/10m").await;
    tab.press("Enter").await;
    tab.sees("#done", |text| text == "2/10m is enforced on every server.").await;
    tab.sees("#policy-user .now", |text| text == "In force: 2/600s").await;
    tab.fill("#quotas-user", "2/soon").await;
    tab.press("Enter").await;
    tab.sees("#done", |text| text.starts_with("The policy is malformed.")).await;
    tab.click("#policy-user .reset").await;
    tab.sees("#policy-user .now", |text| text == "In force: 1/600s").await;
    tab.works().await;
}
