//! The errors of a connection say what to change, and hold no credentials.

use std::net::TcpListener;

use tower_sliding_window::RedisStore;

async fn error_of(url: &str) -> String {
    RedisStore::connect(url).await.unwrap_err().to_string()
}

#[tokio::test]
async fn url_without_a_scheme_names_the_form() {
    for url in ["127.0.0.1:6379", "localhost:6379", "localhost", "redis://127.0.0.1:6379/first"] {
        let error = error_of(url).await;
        assert!(error.contains("write redis://HOST:PORT"), "{url}: {error}");
    }
}

#[tokio::test]
async fn refused_connection_names_host_and_port() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = error_of(&format!("redis://admin:hunter2@{free}")).await;
    assert!(error.contains(&free.to_string()), "{error}");
    assert!(!error.contains("admin") && !error.contains("hunter2"), "{error}");
}
