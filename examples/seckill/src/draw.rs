//! [`Draw`]: who comes when in a fair sale, and the tickets of those whose turn it is.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::names::{Sku, UserId};

/// What is kept in place of a seed if a SKU goes to who comes first.
pub(crate) const FIRST_COME: &str = "first-come";

/// The secrets of the draw of one SKU. All servers have the same, from one seed.
pub(crate) struct Draw {
    /// Decides the places. Clients see its hash before the opening, and itself afterwards: nobody can have chosen
    /// it to suit the entries.
    secret: [u8; 32],
    ticket_key: [u8; 32],
}

impl Draw {
    /// Makes a seed of 244 random bits.
    pub(crate) fn seed() -> String {
        [(); 2].map(|()| Uuid::new_v4().simple().to_string()).concat()
    }

    /// Makes the draw of a seed, or none if the SKU goes to who comes first.
    pub(crate) fn of(kept: &str) -> Option<Self> {
        let key = |purpose| hmac(kept.as_bytes(), purpose);
        (kept != FIRST_COME).then(|| Self { secret: key("draw"), ticket_key: key("ticket") })
    }

    pub(crate) fn secret(&self) -> String {
        hex(self.secret)
    }

    pub(crate) fn commitment(&self) -> String {
        hex(Sha256::digest(self.secret))
    }

    /// Returns the place of a user who enters before the opening: the lowest comes first.
    pub(crate) fn score(&self, user: &UserId) -> u64 {
        let hash = hmac(&self.secret, user.as_str());
        hash[..8].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte)) >> 12
    }

    /// Returns the ticket of a turn that ends then, in microseconds since 1970.
    pub(crate) fn ticket(&self, sku: &Sku, user: &UserId, end: u64) -> String {
        let hash = hmac(&self.ticket_key, &format!("{sku}|{}|{end}", user.as_str()));
        format!("{end}.{}", hex(hash))
    }

    /// Returns when the turn of a ticket ends, if it is a ticket of this user for this SKU.
    pub(crate) fn check(&self, sku: &Sku, user: &UserId, ticket: &str) -> Option<u64> {
        let end = ticket.split_once('.')?.0.parse().ok()?;
        let real = self.ticket(sku, user, end);
        bool::from(real.as_bytes().ct_eq(ticket.as_bytes())).then_some(end)
    }
}

fn hmac(key: &[u8], text: &str) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.chain_update(text).finalize().into_bytes().into()
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
