//! The Dockerfile, and the health check of its image.

use std::path::Path;
use std::process::Command;

use test_support::free_port;
use test_support::server_process::Server;

use crate::{SECKILL, path, read};

#[test]
fn the_image_has_stages_a_user_and_a_check() {
    let dockerfile = read("Dockerfile").replace("\\\n", "");
    let of = |instruction: &str| -> Vec<String> {
        let lines = dockerfile.lines().filter_map(|line| line.strip_prefix(instruction));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let [build, last] = &of("FROM ")[..] else { panic!("two stages: {dockerfile}") };
    let version = format!("rust:{}-", env!("CARGO_PKG_RUST_VERSION"));
    assert!(build.starts_with(&version), "{build} has not the Rust of this project");
    assert!(last.ends_with("-slim"), "{last}");
    let user = of("USER ").concat();
    assert!(user.parse::<u32>().is_ok_and(|user| user > 0), "{user} is root or has no number");
    assert!(of("HEALTHCHECK ").concat().contains("\"healthy\""), "{dockerfile}");
    assert_eq!(of("ENTRYPOINT "), ["[\"seckill\"]"]);

    assert!(of("RUN ").concat().contains("--features metrics"), "Prometheus has nothing to scrape");

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for copied in of("COPY ").iter().filter(|it| !it.starts_with("--from")) {
        let source = copied.split(' ').next().unwrap();
        assert!(root.join(source).exists(), "there is no {source}");
    }
    // What is ignored must be no part of the workspace.
    for ignored in read("Dockerfile.dockerignore").lines() {
        assert!(matches!(ignored, ".git" | "target"), "{ignored}");
    }
}

#[tokio::test]
async fn healthy_tells_whether_a_server_serves() {
    let healthy =
        |address: &str| Command::new(path("healthy")).arg(address).output().unwrap().status.code();
    let server = Server::start(SECKILL, &[]);
    assert_eq!(healthy(server.url.trim_start_matches("http://")), Some(0));
    assert_eq!(healthy(&format!("127.0.0.1:{}", free_port())), Some(1));
}
