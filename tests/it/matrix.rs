//! Every fault of either leg, for every connector and kind of request: what the client gets, and what it costs the
//! fleet.
//!
//! A table per connector. One row holds for completions and for chats. The columns, after what goes wrong, how the
//! client asks, and how many prefill and decode engines there are, of which the first ones fail, once:
//! - what the client sees: the `baseline` (text and usage of one engine alone), or status and `error.code`;
//! - legs that were sent again, and the kind of fallback;
//! - KV handles that were given back or counted as orphans, how many stay pinned until their lease ends, and whether
//!   decode engines have lost blocks for good;
//! - whose health the failure counts against;
//! - legs that prefill and decode engines have seen, and how often the answer was generated to its end.
//!
//! A `*`, or an `or`, is chance: where both legs go out together, either may be further than the other when something happens.
//! Whole and streamed answers differ where a stream has begun: then nothing can be made good.

mod cell;
mod fault;
mod found;
mod system;

use anyhow::Result;

use cell::Cell;
pub(crate) use system::System;

/// Whether everything costs what the table says.
async fn holds(system: System, table: &str) -> Result<()> {
    let mut rows = table.lines().filter(|line| !line.is_empty());
    let head = rows.next().unwrap_or_default();
    let mut wrong = String::new();
    for row in rows {
        for cell in Cell::all_of(system, row)? {
            if let Err(error) = cell.check().await {
                wrong.push_str(&format!("\n{head}\n{row}\n{error:#}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    Ok(())
}

macro_rules! tables {
    ($($name:ident: $system:expr;)*) => {
        $(#[tokio::test]
        async fn $name() -> Result<()> {
            holds($system, include_str!(concat!("matrix/", stringify!($name), ".txt"))).await
        })*
    };
}

tables! {
    nixl_pull: System::NixlPull;
    nixl_push: System::NixlPush;
    nixl_push_together: System::NixlPushTogether;
    moriio_read: System::MoriioRead;
    moriio_write: System::MoriioWrite;
    moriio_write_together: System::MoriioWriteTogether;
    mooncake: System::Mooncake;
    mooncake_together: System::MooncakeTogether;
    by_content: System::ByContent;
}
