//! The alerts: that they fire as written is tested by `promtool`, here that none is left out.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{list, path, printed, read, text, tool, yaml};

/// Returns the rules of `alerts.yaml` that have this field: `alert` or `record`.
pub(crate) fn rules(field: &str) -> Vec<Value> {
    let groups = yaml("prometheus/alerts.yaml");
    let rules = list(&groups["groups"]).iter().flat_map(|group| list(&group["rules"]));
    rules.filter(|rule| rule.get(field).is_some()).cloned().collect()
}

/// Returns the names of all alerts.
fn alerts() -> BTreeSet<String> {
    let names: BTreeSet<_> =
        rules("alert").iter().map(|it| text(&it["alert"]).to_owned()).collect();
    assert_eq!(names.len(), rules("alert").len(), "two alerts have one name");
    names
}

#[test]
fn alerts_fire_as_written() {
    let file = path("prometheus/alerts_test.yaml");
    printed(tool("promtool").args(["test", "rules"]).arg(file));
}

#[test]
fn each_alert_is_seen_to_fire_and_not_to_fire() {
    let tests = yaml("prometheus/alerts_test.yaml");
    let (mut fires, mut rests) = (BTreeSet::new(), BTreeSet::new());
    for test in list(&tests["tests"]).iter().flat_map(|test| list(&test["alert_rule_test"])) {
        let name = text(&test["alertname"]).to_owned();
        if test.get("exp_alerts").is_some() {
            fires.insert(name)
        } else {
            rests.insert(name)
        };
    }
    assert_eq!(fires, alerts());
    assert_eq!(rests, alerts());
}

#[test]
fn each_alert_has_a_line_in_the_runbook() {
    let readme = read("README.md");
    let lines = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let lines: BTreeSet<_> = lines.map(str::to_owned).collect();
    assert_eq!(lines, alerts());
    for alert in rules("alert") {
        let severity = text(&alert["labels"]["severity"]);
        assert!(["page", "ticket"].contains(&severity), "{alert}");
        assert!(!text(&alert["annotations"]["summary"]).is_empty(), "{alert}");
    }
}
