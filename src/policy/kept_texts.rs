//! [`KeptTexts`]: what the layer says of a policy in each denial.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;

use super::interned::intern;

/// How many quotas of a policy have a kept text.
const MOST: usize = 4;

/// Keeps texts that follow from the name and the quotas of a policy, so that a flood of denials does not
/// make them for each response.
///
/// A clone is empty, because its policy may be changed. Two are always equal, because equal policies have
/// equal texts.
// A trait object, because clippy's `mutable_key_type` would otherwise warn an application that has a map
// by `LogId`.
pub(crate) struct KeptTexts(Box<dyn Keep>);

trait Keep: Send + Sync {
    fn fields(&self) -> &OnceLock<FieldTexts>;
    fn problem(&self, quota: usize) -> Option<&OnceLock<Bytes>>;
}

/// The parts of header fields.
pub(crate) struct FieldTexts {
    /// The field that shows the quotas.
    pub(crate) policy: HeaderValue,
    pub(crate) quotas: SmallVec<[QuotaTexts; 1]>,
}

impl FieldTexts {
    /// Creates the parts from the field that shows the quotas, and those of each quota.
    pub(crate) fn new(policy: String, quotas: SmallVec<[QuotaTexts; 1]>) -> Self {
        Self { policy: field(intern(policy)), quotas }
    }
}

/// Why no field is refused.
pub(crate) const VISIBLE: &str = "names and numbers are visible ASCII";

/// Returns the value of a header field.
pub(crate) fn field(text: impl Into<Bytes>) -> HeaderValue {
    HeaderValue::from_maybe_shared(text.into()).expect(VISIBLE)
}

/// The parts of header fields for one quota.
pub(crate) struct QuotaTexts {
    /// The quoted name.
    pub(crate) name: Box<str>,
    /// The item of a full quota, without the number of seconds at its end.
    pub(crate) full: Box<str>,
}

#[derive(Default)]
struct Texts {
    fields: OnceLock<FieldTexts>,
    problems: [OnceLock<Bytes>; MOST],
}

impl Keep for Texts {
    fn fields(&self) -> &OnceLock<FieldTexts> {
        &self.fields
    }

    fn problem(&self, quota: usize) -> Option<&OnceLock<Bytes>> {
        self.problems.get(quota)
    }
}

impl KeptTexts {
    /// Returns the parts of header fields.
    pub(crate) fn fields(&self, make: impl FnOnce() -> FieldTexts) -> &FieldTexts {
        self.0.fields().get_or_init(make)
    }

    /// Returns the body of a response that only the quota of this index denies.
    pub(crate) fn problem(&self, quota: usize, make: impl FnOnce() -> String) -> Bytes {
        match self.0.problem(quota) {
            Some(kept) => kept.get_or_init(|| intern(make())).clone(),
            None => make().into(),
        }
    }
}

impl Default for KeptTexts {
    fn default() -> Self {
        Self(Box::new(Texts::default()))
    }
}

impl Clone for KeptTexts {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for KeptTexts {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for KeptTexts {}

impl Hash for KeptTexts {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_policies_share_their_texts() {
        let problem = || KeptTexts::default().problem(0, || "{}".to_owned());
        assert_eq!(problem().as_ptr(), problem().as_ptr());

        let name: Box<str> = r#""user""#.into();
        let fields = || {
            let quota = QuotaTexts { name: name.clone(), full: r#""user";r=0;t="#.into() };
            FieldTexts::new(r#""user";q=5;w=60"#.to_owned(), SmallVec::from_buf([quota]))
        };
        let (one, other) = (fields(), fields());
        assert_eq!(one.policy.as_bytes().as_ptr(), other.policy.as_bytes().as_ptr());
    }
}
