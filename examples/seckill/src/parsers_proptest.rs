//! What an operator or a client may write, against everything here that reads it.

use std::fmt::Display;
use std::str::FromStr;

use proptest::prelude::*;
use tower_sliding_window::Penalty;
use uuid::Uuid;

use crate::args::{Date, Loopback, StockArg};
use crate::order::{OrderId, Sku};
use crate::user::{UserFrom, UserId};
use example_support::prefix::Prefix;
use example_support::span::{IdleTimeout, Span};

const SKU: &str = "[A-Za-z0-9_.-]{1,64}";
const PREFIX: &str = "[A-Za-z0-9_.:-]{1,64}";
const NAME: &str = "[a-z0-9_-]{1,30}";
/// What no parser here takes anywhere.
const WRONG: &str = "[?{}/ ]{1,12}";

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
    ]
}

fn read<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn error<T: FromStr<Err: Display>>(text: &str) -> String {
    match text.parse::<T>() {
        Ok(_) => panic!("{text:?} is read"),
        Err(error) => error.to_string(),
    }
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
        if let Some(id) = read::<OrderId>(&text) {
            prop_assert_eq!(read(&id.to_string()), Some(id));
        }
        if let Some(from) = read::<UserFrom>(&text) {
            prop_assert_eq!(from.to_string(), &text[..]);
        }
        if let Some(prefix) = read::<Prefix>(&text) {
            prop_assert_eq!(prefix.0, &text[..]);
        }
        if let Some(StockArg { sku, count }) = read(&text) {
            let written = format!("{sku}={count}");
            let again: Option<StockArg> = read(&written);
            prop_assert!(again.is_some_and(|it| it.sku == sku && it.count == count));
        }
        let _ = (read::<Span>(&text), read::<Date>(&text));
        let timeout: Option<IdleTimeout> = read(&text);
        prop_assert!(timeout.is_none_or(|it| !it.0.is_zero()));
        let _ = (read::<Loopback>(&text), read::<Penalty>(&text));
        let odd = text.contains(char::REPLACEMENT_CHARACTER) || text.starts_with("sha256:");
        let is_user = (1..=128).contains(&text.len()) && !odd;
        prop_assert_eq!(UserId::new(text).is_some(), is_user);
    }

    #[test]
    fn what_is_well_formed_is_read_and_written_back(
        sku in SKU,
        uuid in any::<u128>().prop_map(Uuid::from_u128),
        count in any::<u32>(),
        (place, name) in ("header|query|cookie", NAME),
        prefix in PREFIX,
    ) {
        let sku: Sku = sku.parse().unwrap();
        let id = OrderId { sku: sku.clone(), uuid };
        prop_assert_eq!(id.to_string().parse::<OrderId>().unwrap(), id);
        let stock: StockArg = format!("{sku}={count}").parse().unwrap();
        prop_assert!(stock.sku == sku && stock.count == count);
        let from = format!("{place}:{name}");
        prop_assert_eq!(from.parse::<UserFrom>().unwrap().to_string(), from);
        prop_assert!(prefix.parse::<Prefix>().is_ok());
    }

    #[test]
    fn errors_name_the_part_that_is_wrong(
        (sku, wrong) in (SKU, WRONG),
        (place, name) in ("header|query|cookie", NAME),
    ) {
        let quoted = format!("{wrong:?}");
        for (error, part, shows_it) in [
            (error::<Sku>(&wrong), "the SKU", true),
            (error::<StockArg>(&format!("{wrong}=1")), "the SKU", true),
            (error::<StockArg>(&format!("{sku}={wrong}")), "the count", true),
            (error::<StockArg>(&sku), "SKU=COUNT", false),
            (error::<UserFrom>(&format!("{wrong}:{name}")), "the place", true),
            (error::<UserFrom>(&format!("{place}:{wrong}")), "the name", true),
            (error::<UserFrom>(&name), "PLACE:NAME", false),
            (error::<OrderId>(&format!("{sku}.{wrong}")), "SKU.UUID", false),
            (error::<Prefix>(&wrong), "a prefix is", false),
            (error::<Span>(&wrong), "length of time", false),
            (error::<Date>(&wrong), "RFC 3339", false),
            (error::<Loopback>(&wrong), "IP:PORT", false),
            (error::<Loopback>("192.0.2.1:0"), "127.0.0.0/8", false),
        ] {
            prop_assert!(error.contains(part), "{} should name {}", error, part);
            prop_assert!(!shows_it || error.contains(&quoted), "{} should show {}", error, quoted);
        }
    }
}
