//! Passes an event stream on and looks at it on the way.
//!
//! A frame that ends where an event ends, as engines send them, goes on untouched. Only what is left
//! of an unfinished event waits for its end: no client can use half an event, and the KV transfer
//! parameters that an engine may put on its last event must not slip through in two halves.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use super::rename::Rename;
use super::scan::Object;
use super::splice::splice;
use super::spoken::Spoken;
use edge_router_policy::Edit;

/// An event longer than this is passed on in pieces and unobserved.
const MAX_EVENT: usize = 256 * 1024;

/// The same where the answer is listened to: its first event may hold the ids of a prompt's tokens, which are
/// known and hidden only where the event is whole. Two million of them.
const MAX_HEARD_EVENT: usize = 16 * 1024 * 1024;

/// So many bytes at the end of a piece may be the beginning of an event's end.
const HALF_AN_END: usize = b"\r\n\r\n".len() - 1;

/// How a usage object begins in what the engines write.
const USAGE: &[u8] = b"\"usage\":{";

/// Response fields that speak of the engines' inside.
pub const PRIVATE_FIELDS: [&str; 2] = ["kv_transfer_params", "ec_transfer_params"];

/// Removes [`PRIVATE_FIELDS`] that are not null from an event stream and remembers its last usage.
#[derive(Debug, Default)]
pub struct EventFilter {
    partial: BytesMut,
    /// Inside an event that was too long to hold.
    oversized: bool,
    usage: Option<Bytes>,
    rename: Option<Rename>,
    spoken: Option<Spoken>,
}

impl EventFilter {
    /// One that also replaces an id, and listens to what is said if it `listens`.
    pub fn new(rename: Option<Rename>, listens: bool) -> Self {
        Self { rename, spoken: listens.then(Spoken::default), ..Self::default() }
    }

    /// What was said, if it was listened to.
    pub fn spoken(&self) -> Option<&Spoken> {
        self.spoken.as_ref()
    }

    /// Takes a frame and returns what can go on now.
    pub fn push(&mut self, frame: Bytes) -> Bytes {
        if self.partial.is_empty() && !self.oversized && ends_event(&frame) {
            return self.pass(frame);
        }
        self.push_slowly(&frame)
    }

    /// What is left when the stream ends; empty unless it was cut within an event.
    pub fn finish(&mut self) -> Bytes {
        let rest = self.partial.split().freeze();
        self.pass(rest)
    }

    /// The last `usage` object that was streamed.
    pub fn usage(&self) -> Option<Usage> {
        self.usage.as_ref().and_then(|events| Usage::last_in(events))
    }

    fn push_slowly(&mut self, frame: &[u8]) -> Bytes {
        // No event ends before that: what is held is not searched again with every frame.
        let searched = self.partial.len().saturating_sub(HALF_AN_END);
        self.partial.extend_from_slice(frame);
        let end = last_event_end(&self.partial[searched..]).map(|end| searched + end);
        let all_but_half_an_end = self.partial.len().saturating_sub(HALF_AN_END);
        if self.oversized {
            self.oversized = end.is_none();
            return self.partial.split_to(end.unwrap_or(all_but_half_an_end)).freeze();
        }
        let limit = if self.spoken.is_some() { MAX_HEARD_EVENT } else { MAX_EVENT };
        match end {
            Some(end) => {
                let whole = self.partial.split_to(end).freeze();
                self.pass(whole)
            }
            None if self.partial.len() > limit => {
                self.oversized = true;
                self.spoken.iter_mut().for_each(Spoken::missed);
                let beginning = self.partial.split_to(all_but_half_an_end).freeze();
                // Ids stand at the beginning.
                self.pass(beginning)
            }
            None => Bytes::new(),
        }
    }

    /// Whole events on their way out.
    fn pass(&mut self, events: Bytes) -> Bytes {
        if memmem::find(&events, USAGE).is_some() {
            self.usage = Some(events.clone());
        }
        if let Some(spoken) = &mut self.spoken {
            spoken.hear_events(&events);
        }
        let events = if has_private_field(&events) { scrub(&events) } else { events };
        match &self.rename {
            Some(rename) => rename.apply(events),
            None => events,
        }
    }
}

/// Whether one of [`PRIVATE_FIELDS`] seems to be there with a value. A false alarm costs a scan.
pub fn has_private_field(text: &[u8]) -> bool {
    memmem::find_iter(text, b"_transfer_params\"").any(|at| {
        let value = text[at + b"_transfer_params\"".len()..].trim_ascii_start();
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii_start();
        !value.starts_with(b"null")
    })
}

/// The object without its private fields.
pub fn without_private_fields(object: &Object) -> Bytes {
    let edits = PRIVATE_FIELDS.map(|name| Edit::Remove(name.into()));
    splice(object, &edits).to_bytes()
}

fn ends_event(text: &[u8]) -> bool {
    text.ends_with(b"\n\n") || text.ends_with(b"\r\n\r\n")
}

fn last_event_end(text: &[u8]) -> Option<usize> {
    let lf = memmem::rfind(text, b"\n\n").map(|at| at + 2);
    let crlf = memmem::rfind(text, b"\r\n\r\n").map(|at| at + 4);
    lf.max(crlf)
}

/// The JSON of a `data:` line.
fn data_of(line: &[u8]) -> Option<Bytes> {
    let data = line.strip_prefix(b"data:")?.trim_ascii();
    data.starts_with(b"{").then(|| Bytes::copy_from_slice(data))
}

fn scrub(events: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(events.len());
    for line in events.split_inclusive(|b| *b == b'\n') {
        let scrubbed =
            data_of(line).filter(|data| has_private_field(data)).and_then(|data| Object::scan(data).ok());
        let Some(object) = scrubbed else {
            out.extend_from_slice(line);
            continue;
        };
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&without_private_fields(&object));
        out.extend_from_slice(if line.ends_with(b"\r\n") { b"\r\n" } else { b"\n" });
    }
    out.freeze()
}

/// Token counts of an engine's answer. Absent counts are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Leading prompt tokens that the engine found in a cache.
    pub cached_tokens: u32,
}

impl Usage {
    /// The last `usage` object in a response or in events. It is found by its name: an escaped quote
    /// keeps generated text from passing for one.
    pub fn last_in(text: &[u8]) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Counts {
            #[serde(default, alias = "input_tokens")]
            prompt_tokens: u32,
            #[serde(default, alias = "output_tokens")]
            completion_tokens: u32,
            #[serde(default, alias = "input_tokens_details")]
            prompt_tokens_details: Option<Details>,
        }
        #[derive(serde::Deserialize)]
        struct Details {
            #[serde(default)]
            cached_tokens: Option<u32>,
        }
        let start = memmem::rfind(text, USAGE)? + USAGE.len() - 1;
        let mut values = serde_json::Deserializer::from_slice(&text[start..]).into_iter();
        let counts: Counts = values.next()?.ok()?;
        Some(Self {
            prompt_tokens: counts.prompt_tokens,
            completion_tokens: counts.completion_tokens,
            cached_tokens: counts.prompt_tokens_details.and_then(|d| d.cached_tokens).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sends `text` in pieces cut at `cuts`; what came out, and what had come out before the end.
    fn filtered(text: &str, cuts: &[usize]) -> (String, EventFilter) {
        let mut filter = EventFilter::default();
        let mut out = Vec::new();
        let mut rest = Bytes::copy_from_slice(text.as_bytes());
        for cut in cuts {
            let piece = rest.split_to((*cut).min(rest.len()));
            out.extend_from_slice(&filter.push(piece));
        }
        out.extend_from_slice(&filter.push(rest));
        out.extend_from_slice(&filter.finish());
        (String::from_utf8(out).unwrap(), filter)
    }

    const STREAM: &str = "data: {\"a\":\"価格🙂\",\"kv_transfer_params\": null}\n\n: ping\n\ndata:{\"x\":1}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":13,\"completion_tokens\":20,\"total_tokens\":33}}\n\ndata: [DONE]\n\n";

    proptest! {
        #[test]
        fn bytes_are_the_same_however_they_are_cut(cuts in prop::collection::vec(0usize..40, 0..20)) {
            let (out, filter) = filtered(STREAM, &cuts);
            prop_assert_eq!(out, STREAM);
            let usage = Usage { prompt_tokens: 13, completion_tokens: 20, cached_tokens: 0 };
            prop_assert_eq!(filter.usage(), Some(usage));
        }

        #[test]
        fn private_fields_never_pass(cuts in prop::collection::vec(0usize..60, 0..12)) {
            let text = "data: {\"a\":1}\n\ndata: {\"choices\":[{}],\"kv_transfer_params\":{\"remote_host\":\"10.0.0.1\"},\"z\":2.0}\n\n";
            prop_assert_eq!(filtered(text, &cuts).0, "data: {\"a\":1}\n\ndata: {\"choices\":[{}],\"z\":2.0}\n\n");
        }
    }

    #[test]
    fn a_whole_event_is_not_copied() {
        let frame = Bytes::from_static(b"data: {\"x\":1}\n\n");
        assert_eq!(EventFilter::default().push(frame.clone()).as_ptr(), frame.as_ptr());
    }

    #[test]
    fn an_event_with_the_tokens_of_a_long_prompt_is_heard_in_one_piece() {
        let ids = vec!["123456"; 200_000].join(",");
        let text = format!(
            "data: {{\"prompt_token_ids\":[{ids}],\"choices\":[{{\"index\":0,\"token_ids\":[7]}}]}}\n\n"
        );
        let mut filter = EventFilter::new(None, true);
        let mut out: Vec<Bytes> = text
            .as_bytes()
            .chunks(16 * 1024)
            .map(|frame| filter.push(Bytes::copy_from_slice(frame)))
            .filter(|out| !out.is_empty())
            .collect();
        assert_eq!(out.len(), 1, "nobody could hide the ids in pieces");
        assert_eq!(out.remove(0), text);
        let spoken = filter.spoken().unwrap();
        assert_eq!((spoken.prompt().map(<[u32]>::len), spoken.tokens()), (Some(200_000), Some(&[7][..])));
    }

    #[test]
    fn what_follows_an_oversized_event_is_looked_at_wherever_that_is_cut() {
        for cut in [0, 1, 2, 3] {
            let mut filter = EventFilter::default();
            filter.push(Bytes::from(vec![b'x'; MAX_EVENT + 1]));
            filter.push(Bytes::copy_from_slice(&b"\r\n\r\n"[..cut]));
            filter.push(Bytes::copy_from_slice(&b"\r\n\r\n"[cut..]));
            let private = Bytes::from_static(b"data: {\"kv_transfer_params\":{\"a\":1}}\n\n");
            assert_eq!(filter.push(private), "data: {}\n\n", "{cut}");
        }
    }

    #[test]
    fn an_endless_event_is_passed_on() {
        let mut filter = EventFilter::default();
        let chunk = Bytes::from(vec![b'x'; 100_000]);
        let sent: usize = (0..30).map(|_| filter.push(chunk.clone()).len()).sum();
        assert!(3_000_000 - sent <= MAX_EVENT);
        let end = filter.push(Bytes::from_static(b"\n\ndata: 1\n\n"));
        assert!(end.ends_with(b"data: 1\n\n"));
    }
}
