//! Sales that are drawn: entries, turns and tickets.
