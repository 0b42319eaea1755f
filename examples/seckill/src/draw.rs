//! [`Draw`]: who comes when in a fair sale, and the tickets of those whose turn it is.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

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
    /// Makes a seed, as it is kept.
    pub(crate) fn seed() -> Result<String, getrandom::Error> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        Ok(hex(seed))
    }

    /// Reads what is kept of a SKU: no draw if it goes to who comes first, and an error if it is no seed.
    pub(crate) fn from_kept(kept: &str) -> Result<Option<Self>, ()> {
        if kept == FIRST_COME {
            return Ok(None);
        }
        let byte = |at| u8::from_str_radix(kept.get(at..at + 2)?, 16).ok();
        let seed: Option<Vec<u8>> = (0..kept.len()).step_by(2).map(byte).collect();
        let seed = seed.filter(|seed| seed.len() == 32).ok_or(())?;
        Ok(Some(Self { secret: hmac(&seed, "draw"), ticket_key: hmac(&seed, "ticket") }))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_seed_decides_is_the_same_on_every_server() {
        let kept: String = (0..32).map(|byte| format!("{byte:02x}")).collect();
        let draw = Draw::from_kept(&kept).unwrap().unwrap();
        let (sku, user) = ("iphone".parse().unwrap(), UserId::new("alice".into()).unwrap());
        // As `openssl dgst` computes them.
        assert_eq!(
            draw.secret(),
            "35d4c6ed3be44319a99646b8b00b74a1a49d5e4191bcefd9de896d2f2aeb71c7"
        );
        assert_eq!(
            draw.commitment(),
            "5fa7328ea1ab8fb7b8539e561a8ae3d7fa202cf5d0e86127f7b7257b3d3dfe38"
        );
        assert_eq!(format!("{:013x}", draw.score(&user)), "fed5374d92004");
        let ticket = draw.ticket(&sku, &user, 1_900_000_000_000_000);
        assert_eq!(
            ticket,
            "1900000000000000.d46b811f2c8adbb85287cd1f7edc33d14ab739142cecbe7d2eb994f0fff7740e"
        );
        assert_eq!(draw.check(&sku, &user, &ticket), Some(1_900_000_000_000_000));
        for (sku, user, ticket) in [
            ("iphone", "bob", &*ticket),
            ("ipad", "alice", &ticket),
            ("iphone", "alice", &ticket.replace("19", "20")),
            ("iphone", "alice", &ticket[..ticket.len() - 1]),
            ("iphone", "alice", &format!("0{ticket}")),
            ("iphone", "alice", ""),
        ] {
            let user = UserId::new(user.into()).unwrap();
            assert_eq!(draw.check(&sku.parse().unwrap(), &user, ticket), None, "{ticket}");
        }
        assert!(Draw::from_kept(FIRST_COME).unwrap().is_none());
        for kept in ["", "00", "é", &format!("{kept}00"), &kept.replace("0f", "0g")] {
            assert!(Draw::from_kept(kept).is_err(), "{kept}");
        }
    }
}
