//! A request read across the component boundary.

use std::borrow::Cow;

use super::bindings::edge_router::policy::request::Request;
use crate::RequestSource;

impl RequestSource for Request {
    fn endpoint(&self) -> Cow<'_, str> {
        Cow::Owned(Request::endpoint(self))
    }

    fn model(&self) -> Option<Cow<'_, str>> {
        Request::model(self).map(Cow::Owned)
    }

    fn body_length(&self) -> u64 {
        Request::body_length(self)
    }

    fn prompt_tokens(&self) -> u32 {
        Request::prompt_tokens(self)
    }

    fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        Request::field(self, name).map(Cow::Owned)
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        Request::header(self, name).map(Cow::Owned)
    }

    fn session_key(&self) -> Option<Cow<'_, str>> {
        Request::session_key(self).map(Cow::Owned)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Owned(Request::id(self))
    }

    fn prefix_blocks(&self) -> Vec<u64> {
        Request::prefix_blocks(self)
    }

    fn prefill_field(&self, name: &str) -> Option<Cow<'_, str>> {
        Request::prefill_field(self, name).map(Cow::Owned)
    }

    fn readback(&self) -> Option<Cow<'_, str>> {
        Request::readback(self).map(Cow::Owned)
    }
}
