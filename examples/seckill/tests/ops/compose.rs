//! `compose.yaml`: what it starts, and with what flags.

use serde_json::Value;

use crate::{SECKILL, list, path, printed, text, tool, yaml};

/// The services that are servers of the shop.
pub(crate) const SERVERS: [&str; 2] = ["seckill-1", "seckill-2"];

/// Returns a service.
fn service(name: &str) -> Value {
    let compose = yaml("compose.yaml");
    let service = &compose["services"][name];
    assert!(service.is_object(), "there is no service {name}");
    service.clone()
}

/// Returns the command of a service, with other texts in place of some of its own.
pub(crate) fn command(name: &str, replaced: &[(&str, &str)]) -> Vec<String> {
    let service = service(name);
    let replace = |part: &Value| {
        replaced.iter().fold(text(part).to_owned(), |part, (from, to)| part.replace(from, to))
    };
    list(&service["command"]).iter().map(replace).collect()
}

/// Returns the names of the flags of a command.
fn flags(command: &[String]) -> impl Iterator<Item = &str> {
    let is_flag = |part: &&str| part.starts_with('-') && !part[1..].starts_with(char::is_numeric);
    command.iter().map(String::as_str).filter(is_flag).map(|it| it.split('=').next().unwrap())
}

#[test]
fn every_flag_is_in_the_help_of_its_program() {
    let help = |program: &str| printed(tool(program).arg("--help"));
    let seckill = help(SECKILL);
    for (name, help) in [
        (SERVERS[0], &seckill),
        (SERVERS[1], &seckill),
        ("prometheus", &help("prometheus")),
        ("load", &help("oha")),
    ] {
        let command = command(name, &[]);
        assert!(flags(&command).count() >= 4, "{name}: {command:?}");
        for flag in flags(&command) {
            let is_end =
                |rest: &str| !rest.starts_with(|it: char| it == '-' || it.is_alphanumeric());
            let is_known = help.match_indices(flag).any(|(at, _)| is_end(&help[at + flag.len()..]));
            assert!(is_known, "{name}: {flag} is not in --help");
        }
    }
}

#[test]
fn the_servers_differ_in_their_addresses_alone() {
    let [first, second] = SERVERS.map(|name| command(name, &[]));
    let replaced = [("0.0.0.0:3010", "0.0.0.0:3000"), ("127.0.0.1:3011", "127.0.0.1:3001")];
    assert_ne!(first, second);
    assert_eq!(first, command(SERVERS[1], &replaced));
}

#[test]
fn services_are_checked_and_restarted() {
    let compose = yaml("compose.yaml");
    let (services, volumes) = (compose["services"].as_object().unwrap(), &compose["volumes"]);
    for (name, service) in services {
        let image = text(&service["image"]);
        let is_own = service.get("build").is_some();
        assert!(is_own || image.contains(':'), "{name}: {image} has no version");
        assert!(name == "load" || service["restart"] == "unless-stopped", "{name}");
        for volume in service.get("volumes").map_or(&[][..], |it| list(it)) {
            let source = text(volume).split(':').next().unwrap();
            let exists = match source.strip_prefix("./") {
                Some(file) => path(file).exists(),
                None => volumes.get(source).is_some(),
            };
            assert!(exists, "{name}: there is no {source}");
        }
        for port in service.get("ports").map_or(&[][..], |it| list(it)) {
            assert!(text(port).starts_with("127.0.0.1:"), "{name}: {port} is open to all");
        }
        let known = |other: &String| services.contains_key(other);
        let depends = &service["depends_on"];
        let names = depends.as_object().map_or_else(Vec::new, |it| it.keys().cloned().collect());
        assert!(names.iter().all(known), "{name}: {depends}");
    }
    for name in SERVERS {
        let service = service(name);
        // What it has of the server that they share.
        assert_eq!(service["depends_on"]["redis"]["condition"], "service_healthy", "{name}");
        assert_eq!(service["network_mode"], "service:machine", "{name}");
        let own = command(name, &[])[1].replace("0.0.0.0", "127.0.0.1");
        assert_eq!(service["healthcheck"]["test"][2], own, "{name}");
    }
    assert_eq!(compose["secrets"]["admin-token"]["environment"], "SECKILL_ADMIN_TOKEN");
}

/// What compose puts in place of a variable, or an error with a text that says what to do.
const PASSWORD: &str = "${SECKILL_REDIS_PASSWORD:?";

#[test]
fn redis_is_for_the_servers_alone() {
    let compose = yaml("compose.yaml");
    assert_eq!(compose["networks"]["redis"]["internal"], true);
    for (name, service) in compose["services"].as_object().unwrap() {
        // A service without networks is in that of all.
        let is_in = match &service["networks"] {
            Value::Object(networks) => networks.contains_key("redis"),
            Value::Array(networks) => networks.contains(&"redis".into()),
            _ => false,
        };
        assert_eq!(is_in, ["redis", "machine"].contains(&name.as_str()), "{name}");
        let knows = service.to_string().contains(PASSWORD);
        assert_eq!(knows, name == "redis" || SERVERS.contains(&name.as_str()), "{name}");
    }
    let redis = service("redis");
    assert_eq!(redis["networks"], serde_json::json!(["redis"]), "it is in no other network");
    assert_eq!(redis["command"][1], "--requirepass");
    for text in [&redis["command"][2], &redis["environment"]["REDISCLI_AUTH"]] {
        assert!(text.as_str().is_some_and(|it| it.starts_with(PASSWORD)), "{text}");
    }
    for name in SERVERS {
        let url = &service(name)["environment"]["SECKILL_REDIS"];
        assert!(url.as_str().is_some_and(|it| it.starts_with(&format!("redis://:{PASSWORD}"))));
    }
}

#[test]
fn no_service_has_a_default_password() {
    let grafana = service("grafana");
    assert_eq!(grafana["environment"]["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"], "true");
    let secrets = yaml("compose.yaml")["secrets"].clone();
    for (name, secret) in secrets.as_object().unwrap() {
        assert!(secret["environment"].is_string(), "{name} is not asked for");
    }
}

#[test]
fn prometheus_has_no_token_of_the_operator() {
    assert_eq!(service("prometheus")["secrets"], serde_json::json!(["scrape-token"]));
    let scrape = &yaml("prometheus/prometheus.yaml")["scrape_configs"][0];
    assert_eq!(scrape["authorization"]["credentials_file"], "/run/secrets/scrape-token");
    for name in SERVERS {
        let command = command(name, &[]);
        let at = command.iter().position(|it| it == "--scrape-token-file").unwrap();
        assert_eq!(command[at + 1], "/run/secrets/scrape-token");
    }
}
