//! [`Gathered`]: a body in few frames.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::Frame;

/// The frames that become one are at least this long together, in bytes.
const LEAST: usize = 4096;

/// A body whose small frames become one.
///
/// A client chooses the length of its chunks. Each is a frame, which takes 32 bytes beside its data:
/// 16 KiB in chunks of one byte would take half a megabyte until the body is whole.
pub(super) struct Gathered {
    body: Body,
    data: Vec<u8>,
}

impl Gathered {
    pub(super) fn new(body: Body) -> Self {
        Self { body, data: Vec::new() }
    }

    fn take(&mut self) -> Frame<Bytes> {
        Frame::data(std::mem::take(&mut self.data).into())
    }
}

impl HttpBody for Gathered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        loop {
            match ready!(Pin::new(&mut this.body).poll_frame(context)).transpose()? {
                Some(frame) => {
                    // Trailers mean nothing here.
                    let Some(data) = frame.data_ref() else { continue };
                    this.data.extend_from_slice(data);
                    if this.data.len() >= LEAST {
                        return Poll::Ready(Some(Ok(this.take())));
                    }
                }
                None if this.data.is_empty() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Ok(this.take()))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::body::WholeBody;
    use axum::extract::{FromRequest, Request};

    /// A body of frames of one byte each, all of which may be kept until the last is read.
    struct Crumbs {
        left: usize,
        kept: Arc<()>,
        most_kept: usize,
    }

    struct Crumb(#[expect(dead_code, reason = "counted")] Arc<()>);

    impl AsRef<[u8]> for Crumb {
        fn as_ref(&self) -> &[u8] {
            b"a"
        }
    }

    impl HttpBody for Crumbs {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            let kept = Arc::strong_count(&self.kept) - 1;
            assert!(kept <= self.most_kept, "{kept} frames are kept");
            if self.left == 0 {
                return Poll::Ready(None);
            }
            self.left -= 1;
            let crumb = Crumb(Arc::clone(&self.kept));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(crumb)))))
        }
    }

    #[tokio::test]
    async fn a_body_in_crumbs_is_not_kept_in_crumbs() {
        let body = Crumbs { left: 10_000, kept: Arc::default(), most_kept: 1 };
        let request = Request::new(Body::new(body));
        let WholeBody(bytes) = WholeBody::from_request(request, &()).await.unwrap();
        assert_eq!(bytes, vec![b'a'; 10_000]);
    }
}
