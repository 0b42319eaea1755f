//! `load.sh`, as an operator sees it on the live page.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use test_support::{Process, eventually};

use crate::chrome::{Chrome, Tab};
use crate::live::sign_in;
use crate::offenders::watch;
use crate::{SECKILL, TOKEN};

const LOAD_PICTURE: &str = env!("CARGO_BIN_EXE_load_picture");

/// A run of `load.sh` whose servers have an admin listener. It begins to send when it is let.
struct Load {
    script: Process,
    folder: TempDir,
}

impl Load {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path();
        let go = programs.join("go");
        // load.sh expects one line.
        let admin = programs.join("admin");
        let lines = format!(
            "while read -r line; do case $line in admin*) echo \"$line\" >> {} ;; *) echo \"$line\" ;; \
             esac; done",
            admin.display()
        );
        let server = format!(r#"exec {SECKILL} "$@" --admin 127.0.0.1:0 > >({lines})"#);
        program(&programs.join("seckill"), &server);
        let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
        program(&programs.join("oha"), &format!("{wait}\nexec {} \"$@\"", oha().display()));
        symlink(LOAD_PICTURE, programs.join("load_picture")).unwrap();

        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [programs.to_owned()].into_iter().chain(std::env::split_paths(&path));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("load.sh");
        let script = Process::start(
            Command::new("bash")
                .arg(script)
                .args(["--redis", "--picture"])
                .arg(programs.join("load.svg"))
                .env("PATH", std::env::join_paths(path).unwrap())
                .envs([("PROGRAMS", programs), ("TMPDIR", programs)])
                .env("SECKILL_ADMIN_TOKEN", TOKEN)
                .stdout(Stdio::null()),
        );
        Self { script, folder }
    }

    /// Lets it send, and returns when.
    fn go(&self) -> Duration {
        fs::write(self.folder.path().join("go"), "").unwrap();
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
    }

    /// Returns the URL of the live page of its first server, once that listens.
    fn page(&self) -> Option<String> {
        let printed = fs::read_to_string(self.folder.path().join("admin")).ok()?;
        let (line, _) = printed.split_once('\n')?;
        line.strip_prefix("admin on ").map(str::to_owned)
    }
}

/// The script stops what it has started if it is stopped itself.
impl Drop for Load {
    fn drop(&mut self) {
        if self.script.exited().is_none() {
            self.script.signal("TERM");
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.script.exited().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn program(path: &Path, text: &str) {
    fs::write(path, format!("#!/usr/bin/env bash\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the load generator, where `load.sh` looks for it.
fn oha() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let folders = std::env::split_paths(&path).chain([cargo.join("bin")]);
    let found = folders.map(|folder| folder.join("oha")).find(|file| file.is_file());
    found.expect("oha is on PATH: tests/run.sh installs it, as tests/install.sh oha")
}

async fn seen_after(tab: &Tab, load: &Load) -> Duration {
    watch(tab, "flood-alice").await;
    let begun = load.go();
    tab.until("window.shown !== null").await;
    Duration::from_millis(tab.run::<u64>("window.shown").await).saturating_sub(begun)
}

#[tokio::test(flavor = "multi_thread")]
async fn load_script_is_seen_within_two_seconds() {
    let chrome = Chrome::start().await;
    let mut took = Vec::new();
    // Each run must be seen. A machine that is busy with something else may be slow now and then, so
    // one of the runs has to be seen in time.
    for _ in 0..3 {
        let load = Load::start();
        eventually("its server listens", async || load.page().is_some()).await;
        let tab = chrome.open(&load.page().unwrap()).await;
        sign_in(&tab).await;
        let seen = seen_after(&tab, &load).await;
        if seen <= Duration::from_secs(2) {
            return;
        }
        took.push(seen);
    }
    panic!("no run was seen within two seconds: {took:?}");
}
