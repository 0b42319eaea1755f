//! The dashboard: what it shows, and that Grafana finds it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{list, read, text, yaml};

/// Returns the dashboard.
fn dashboard() -> Value {
    serde_json::from_str(&read("grafana/dashboards/seckill.json")).unwrap()
}

/// Returns each expression of the dashboard with the title of its panel. The variables of Grafana have values.
pub(crate) fn expressions() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let mut expressions = Vec::new();
    for panel in list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row") {
        for target in list(&panel["targets"]) {
            let expression = text(&target["expr"]).replace("$__rate_interval", "1m");
            let expression = expression.replace("$instance", ".*");
            assert!(!expression.contains('$'), "an unknown variable: {expression}");
            expressions.push((text(&panel["title"]).to_owned(), expression));
        }
    }
    expressions
}

#[test]
fn panels_have_titles_units_and_descriptions() {
    let dashboard = dashboard();
    let (mut titles, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard["panels"]) {
        let title = text(&panel["title"]);
        assert!(titles.insert(title.to_owned()) && ids.insert(panel["id"].as_u64()), "{title}");
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "prometheus", "{title}");
            assert!(!text(&panel["description"]).is_empty(), "{title}");
            assert!(!text(&panel["fieldConfig"]["defaults"]["unit"]).is_empty(), "{title}");
        }
    }
    assert!(titles.len() > 10, "{titles:?}");
}

#[test]
fn panels_do_not_overlap() {
    let dashboard = dashboard();
    let mut taken = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|it| panel["gridPos"][it].as_u64().unwrap());
        assert!(x + w <= 24, "{}", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{} covers another panel", panel["title"]);
        }
    }
}

#[test]
fn grafana_finds_what_it_shows() {
    let source = &yaml("grafana/provisioning/datasources/prometheus.yaml")["datasources"][0];
    assert_eq!(source["uid"], "prometheus");
    let folder = yaml("grafana/provisioning/dashboards/seckill.yaml");
    let folder = text(&folder["providers"][0]["options"]["path"]);
    let compose = yaml("compose.yaml");
    let grafana = &compose["services"]["grafana"];
    let mounts: Vec<_> = list(&grafana["volumes"]).iter().map(text).collect();
    assert!(mounts.contains(&format!("./grafana/dashboards:{folder}:ro").as_str()), "{mounts:?}");
    let home = text(&grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]);
    assert_eq!(home, format!("{folder}/seckill.json"));
    // Prometheus is reached by the name that owns its network.
    let port = text(&source["url"]).strip_prefix("http://machine:").unwrap();
    let prometheus = format!("--web.listen-address=0.0.0.0:{port}");
    assert!(list(&compose["services"]["prometheus"]["command"]).iter().any(|it| *it == prometheus));
}
