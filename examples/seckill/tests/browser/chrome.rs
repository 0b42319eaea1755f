//! [`Chrome`]: a headless browser that is driven over the DevTools protocol.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use chromiumoxide::cdp::browser_protocol::emulation::{
    MediaFeature, SetDeviceMetricsOverrideParams,
};
use chromiumoxide::cdp::js_protocol::runtime::EvaluateParams;
use chromiumoxide::{Browser, BrowserConfig, Page};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

/// The names of the browser, the first of which `tests/install.sh` installs.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// How long a page may take to show something on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Notes what a person sees only as a page that does not work.
const NOTE_PROBLEMS: &str = "window.problems = [];
    addEventListener('error', (event) => problems.push(event.message));
    addEventListener('unhandledrejection', (event) => problems.push(String(event.reason)));
    addEventListener('securitypolicyviolation', (event) => problems.push(event.violatedDirective));";

/// A browser with a profile of its own. It is closed when this value is dropped, for which its test needs
/// a runtime of several threads.
pub(crate) struct Chrome {
    browser: Browser,
    events: JoinHandle<()>,
    _profile: TempDir,
}

impl Chrome {
    /// Starts a browser.
    pub(crate) async fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let config = BrowserConfig::builder()
            .chrome_executable(executable())
            .user_data_dir(profile.path())
            // The pages are our own, and a test may run as root.
            .no_sandbox()
            .args(["disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"])
            .viewport(None)
            .launch_timeout(PATIENCE)
            .request_timeout(PATIENCE);
        let launched = Browser::launch(config.build().unwrap()).await;
        let (browser, mut handler) = launched.expect("the browser starts");
        let events = tokio::spawn(async move { while handler.next().await.is_some() {} });
        Self { browser, events, _profile: profile }
    }

    /// Opens a page in a window of a laptop.
    pub(crate) async fn open(&self, url: &str) -> Tab {
        let tab = Tab(self.browser.new_page("about:blank").await.unwrap());
        tab.resize(1280, 800).await;
        // Before any script of the page.
        tab.0.evaluate_on_new_document(NOTE_PROBLEMS).await.unwrap();
        tab.0.goto(url).await.expect("the page is served");
        tab
    }
}

/// A browser that is killed at once leaves processes that still write to the profile.
impl Drop for Chrome {
    fn drop(&mut self) {
        let closed = async {
            let close = async { (self.browser.close().await.is_ok(), self.browser.wait().await) };
            if timeout(PATIENCE, close).await.is_err() {
                self.browser.kill().await;
            }
        };
        block_in_place(|| Handle::current().block_on(closed));
        self.events.abort();
    }
}

fn executable() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = NAMES.iter().find_map(|name| {
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
    });
    found.unwrap_or_else(|| {
        panic!(
            "none of {NAMES:?} is on PATH: tests/run.sh installs one, as tests/install.sh chromium"
        )
    })
}

/// A page in the browser, and what a person does there.
pub(crate) struct Tab(pub(crate) Page);

impl Tab {
    /// Gives the page a size in CSS pixels.
    pub(crate) async fn resize(&self, width: i64, height: i64) {
        let phone = width < 600;
        let metrics = SetDeviceMetricsOverrideParams::new(width, height, 1.0, phone);
        self.0.execute(metrics).await.unwrap();
    }

    /// Chooses the light or the dark mode of the system.
    pub(crate) async fn set_dark(&self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let feature = MediaFeature::new("prefers-color-scheme", value);
        self.0.emulate_media_features(vec![feature]).await.unwrap();
    }

    /// Loads the page again. The old one stays visible until the new one replaces it.
    pub(crate) async fn reload(&self) {
        self.run::<()>("window.isOld = true; location.reload()").await;
        self.until("!window.isOld").await;
    }

    /// Evaluates an expression, and waits for its promise.
    pub(crate) async fn run<T: DeserializeOwned>(&self, expression: &str) -> T {
        self.try_run(expression).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Fails while the page is replaced by another one.
    async fn try_run<T: DeserializeOwned>(&self, expression: &str) -> Result<T, Box<dyn Error>> {
        let mut evaluate = EvaluateParams::new(expression);
        evaluate.await_promise = Some(true);
        evaluate.return_by_value = Some(true);
        let result = self.0.evaluate(evaluate).await?;
        // An expression without a value has the one of JSON.
        Ok(serde_json::from_value(result.value().cloned().unwrap_or_default())?)
    }

    /// Returns the text that a person can see of the first such element, or nothing if it is hidden.
    pub(crate) async fn text(&self, selector: &str) -> String {
        self.run(&text_of(selector)).await
    }

    /// Waits until a person can see a text that fulfils a condition, and returns it.
    pub(crate) async fn sees(&self, selector: &str, fulfils: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.try_run::<String>(&text_of(selector)).await;
            if let Ok(text) = &text
                && fulfils(text)
            {
                return text.clone();
            }
            assert!(Instant::now() < deadline, "{selector} still shows {text:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !matches!(self.try_run(expression).await, Ok(true)) {
            assert!(Instant::now() < deadline, "still not: {expression}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that no script has failed, and that the page has tried nothing that its policy forbids.
    pub(crate) async fn works(&self) {
        assert_eq!(self.run::<Vec<String>>("problems").await, [""; 0]);
    }

    /// Clicks an element, which has to be visible. The page may be behind another one.
    pub(crate) async fn click(&self, selector: &str) {
        self.0.bring_to_front().await.unwrap();
        let element = self.0.find_element(selector).await.expect(selector);
        element.click().await.expect(selector);
    }

    /// Replaces the text of a field by typing.
    pub(crate) async fn fill(&self, selector: &str, text: &str) {
        self.click(selector).await;
        let element = self.0.find_element(selector).await.unwrap();
        element.call_js_fn("function() { this.select(); }", false).await.unwrap();
        element.press_key("Backspace").await.unwrap().type_str(text).await.unwrap();
    }

    /// Presses a key, which goes to the element with the focus.
    pub(crate) async fn press(&self, key: &str) {
        self.0.find_element(":focus").await.unwrap().press_key(key).await.unwrap();
    }
}

fn text_of(selector: &str) -> String {
    let selector = serde_json::to_string(selector).unwrap();
    format!(
        "(() => {{ const it = document.querySelector({selector}); \
         return it && it.checkVisibility() ? it.innerText.trim() : ''; }})()"
    )
}
