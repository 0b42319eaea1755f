//! What instructions depend on besides the source: the compiler and the C library.

use std::process::Command;

use anyhow::{Context, Result};

/// Returns a line such as `x86_64-unknown-linux-gnu: rustc 1.95.0, glibc 2.36`.
pub(crate) fn describe() -> Result<String> {
    let rustc = output("rustc", &["--version", "--verbose"])?;
    let field = |name| {
        let value = rustc.lines().find_map(|line| line.strip_prefix(name));
        value.with_context(|| format!("no `{name}` from rustc"))
    };
    let libc = output("getconf", &["GNU_LIBC_VERSION"]).unwrap_or_else(|_| "another libc".into());
    Ok(format!("{}: rustc {}, {}", field("host: ")?, field("release: ")?, libc.trim()))
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("can't start {program}"))?;
    anyhow::ensure!(output.status.success(), "{program} fails");
    Ok(String::from_utf8(output.stdout)?)
}
