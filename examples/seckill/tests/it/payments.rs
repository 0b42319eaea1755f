//! Orders that are paid, or come back.
