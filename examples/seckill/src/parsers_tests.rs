//! Any text against everything here that reads one.

use std::str::FromStr;

use example_support::admin::loopback;
use example_support::flags::{prefix, span, timeout};
use proptest::prelude::*;
use uuid::Uuid;

use crate::args::stock;
use crate::opening::date;
use crate::order::{OrderId, Sku};
use crate::user::{UserFrom, UserId};

/// Anything, and what nearly is something.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,80}",
        "[\\x00-\\x20]{0,4}[A-Za-z0-9_.=-]{0,70}",
        "[A-Za-z0-9_.{}-]{0,40}\\.[-0-9a-f{}urnid:]{30,40}",
        "[a-z]{0,8}[=:][-+0-9a-z_ ]{0,24}",
        "(header|query|cookie|HEADER):\\PC{0,20}",
        "[-+]?[0-9PTYMWDHSmshdw. ]{0,24}",
        "[-+0-9TZ:.\\[\\]/A-Za-z]{0,40}",
        "20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-9]{2}[-+Z][0-9:é]{0,5}",
    ]
}

fn read<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_text_makes_a_parser_panic(text in any_text()) {
        if let Some(sku) = read::<Sku>(&text) {
            prop_assert_eq!(sku.to_string(), &text[..], "a SKU is its text");
        }
        if let Some(id) = OrderId::parse(&text) {
            prop_assert_eq!(OrderId::parse(&id.to_string()), Some(id));
        }
        if let Some(from) = read::<UserFrom>(&text) {
            prop_assert_eq!(from.to_string(), &text[..]);
        }
        prop_assert!(prefix(&text).is_ok_and(|it| it == text) || prefix(&text).is_err());
        let _ = (span(&text), date(&text), loopback(&text), stock(&text));
        prop_assert!(timeout(&text).map_or(true, |it| !it.is_zero()));
        let odd = text.contains(char::REPLACEMENT_CHARACTER) || text.starts_with("sha256:");
        let is_user = (1..=128).contains(&text.len()) && !odd;
        prop_assert_eq!(UserId::new(text).is_some(), is_user);
    }

    #[test]
    fn what_is_written_is_read_back(
        sku in "[A-Za-z0-9_.-]{1,64}",
        uuid in any::<u128>().prop_map(Uuid::from_u128),
        count in any::<u32>(),
    ) {
        let sku: Sku = sku.parse().unwrap();
        let id = OrderId { sku: sku.clone(), uuid };
        prop_assert_eq!(OrderId::parse(&id.to_string()).unwrap(), id);
        prop_assert_eq!(stock(&format!("{sku}={count}")).unwrap(), (sku, count));
    }
}
