//! [`KeptTexts`]: what the layer says of a policy in each denial.

use std::array;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;

use super::interned::intern;

/// How many quotas of a policy have a kept text.
const MOST: usize = 4;
/// How many denials by the only quota are kept, one for each number of seconds from 0 to 60. Most windows
/// are at most a minute.
const KEPT_SECONDS: usize = 61;

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
    fn denial(&self, seconds: u64) -> Option<&OnceLock<Box<KeptDenial>>>;
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

/// What the response to a denial by the only quota of a check says.
pub(crate) struct KeptDenial {
    pub(crate) retry_after: HeaderValue,
    /// The field that shows the quota.
    pub(crate) policy: HeaderValue,
    /// The field that shows what is left.
    pub(crate) limit: HeaderValue,
    pub(crate) problem: Bytes,
}

impl KeptDenial {
    /// Creates it from the three fields and the problem document of a response.
    pub(crate) fn new(
        retry_after: HeaderValue,
        (policy, limit): (HeaderValue, HeaderValue),
        problem: Bytes,
    ) -> Self {
        let limit = field(intern(limit.to_str().expect(VISIBLE).to_owned()));
        Self { retry_after, policy, limit, problem }
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
    /// By the seconds until there is room. Boxed, all together and each by itself: most policies deny
    /// nothing, and one that is made for a single key denies it at few of the seconds.
    denials: OnceLock<Box<[OnceLock<Box<KeptDenial>>; KEPT_SECONDS]>>,
}

impl Keep for Texts {
    fn fields(&self) -> &OnceLock<FieldTexts> {
        &self.fields
    }

    fn problem(&self, quota: usize) -> Option<&OnceLock<Bytes>> {
        self.problems.get(quota)
    }

    fn denial(&self, seconds: u64) -> Option<&OnceLock<Box<KeptDenial>>> {
        let index = usize::try_from(seconds).ok().filter(|index| *index < KEPT_SECONDS)?;
        let new = || Box::new(array::from_fn(|_| OnceLock::new()));
        Some(&self.denials.get_or_init(new)[index])
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

    /// Returns the response to a denial by the only quota, which has room after so many seconds. Returns
    /// `None` if there are too many.
    pub(crate) fn denial(
        &self,
        seconds: u64,
        make: impl FnOnce() -> KeptDenial,
    ) -> Option<&KeptDenial> {
        Some(self.0.denial(seconds)?.get_or_init(|| Box::new(make())))
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

        let limit = || {
            let limit = field(r#""user";r=0;t=7"#.to_owned());
            KeptDenial::new(field("7"), (field("unused"), limit), Bytes::new()).limit
        };
        assert_eq!(limit(), r#""user";r=0;t=7"#);
        assert_eq!(limit().as_bytes().as_ptr(), limit().as_bytes().as_ptr());
    }

    #[test]
    fn denials_are_kept_up_to_a_minute() {
        let texts = KeptTexts::default();
        let kept = |seconds, text: &'static str| {
            let value = HeaderValue::from_static(text);
            let make = || KeptDenial::new(value.clone(), (value.clone(), value), text.into());
            texts.denial(seconds, make).map(|kept| kept.problem.clone())
        };
        for seconds in [0, 60] {
            assert_eq!(kept(seconds, "first").unwrap(), "first");
            assert_eq!(kept(seconds, "second").unwrap(), "first");
        }
        assert_eq!(kept(61, "first"), None);
        assert_eq!(kept(u64::MAX, "first"), None);
    }
}
