//! [`RecorderId`]: tells recorders apart.

use metrics::Recorder;

/// The address and the size of a recorder. The one that counts nothing has no size.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct RecorderId {
    pub(super) address: usize,
    pub(super) size: usize,
}

impl RecorderId {
    pub(super) fn present() -> Self {
        metrics::with_recorder(|recorder| {
            let address = std::ptr::from_ref::<dyn Recorder>(recorder).addr();
            Self { address, size: size_of_val(recorder) }
        })
    }
}
