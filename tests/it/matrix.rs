//! Every fault of either leg, for every kind of request: what the client gets, and what it costs the fleet.

mod cell;
mod fault;
mod found;

use anyhow::Result;

use cell::Cell;

/// One row holds for completions and for chats. The columns, after what goes wrong, how the client asks, and how many
/// prefill and decode engines there are, of which the first ones fail, once:
/// - what the client sees: the `baseline` (text and usage of one engine alone), or status and `error.code`;
/// - legs that were sent again, and the kind of fallback;
/// - KV handles that were given back or counted as orphans, and how many stay pinned until their lease ends;
/// - whose health the failure counts against;
/// - legs that prefill and decode engines have seen, and how often the answer was generated to its end.
///
/// Whole and streamed answers differ only where a stream has begun: then nothing can be made good.
const TABLE: &str = "
fault               | asked  | pairs | client sees                      | retried | fallback            | handles  | pinned | failed  | legs | generated
prefill refuses     | both   | 1     | baseline                         | -       | prefill_failed      | -        | 0      | prefill | 0+1  | 1
prefill refuses     | both   | 2     | baseline                         | prefill | -                   | -        | 0      | prefill | 1+1  | 1
prefill 500         | both   | 1     | baseline                         | -       | prefill_failed      | -        | 0      | prefill | 1+1  | 1
prefill 500         | both   | 2     | baseline                         | prefill | -                   | -        | 0      | prefill | 2+1  | 1
prefill cut         | both   | 1     | baseline                         | -       | prefill_failed      | -        | 1      | prefill | 1+1  | 1
prefill cut         | both   | 2     | baseline                         | prefill | -                   | -        | 1      | prefill | 2+1  | 1
prefill stops       | both   | 1     | baseline                         | -       | -                   | -        | 0      | -       | 1+1  | 1
prefill stops       | both   | 2     | baseline                         | -       | -                   | -        | 0      | -       | 1+1  | 1
decode refuses      | both   | 1     | 502 engine_unreachable           | -       | -                   | orphaned | 1      | decode  | 1+0  | 0
decode refuses      | both   | 2     | baseline                         | decode  | -                   | -        | 0      | decode  | 1+1  | 1
decode 503          | both   | 1     | 503 503                          | -       | -                   | orphaned | 1      | -       | 1+1  | 0
decode 503          | both   | 2     | baseline                         | decode  | -                   | orphaned | 1      | -       | 2+2  | 1
decode 500          | both   | 1     | baseline                         | decode  | no_prefill_instance | orphaned | 1      | -       | 1+2  | 1
decode 500          | both   | 2     | baseline                         | decode  | -                   | orphaned | 1      | -       | 2+2  | 1
error after role    | whole  | 1     | baseline                         | decode  | no_prefill_instance | orphaned | 0      | -       | 1+2  | 1
error after role    | whole  | 2     | baseline                         | decode  | -                   | orphaned | 0      | -       | 2+2  | 1
error after role    | stream | 1     | 200, then 500                    | -       | -                   | -        | 0      | -       | 1+1  | 0
error after role    | stream | 2     | 200, then 500                    | -       | -                   | -        | 0      | -       | 1+1  | 0
… with held opening | stream | 1     | baseline                         | decode  | no_prefill_instance | orphaned | 0      | -       | 1+2  | 1
… with held opening | stream | 2     | baseline                         | decode  | -                   | orphaned | 0      | -       | 2+2  | 1
decode cut          | whole  | 1     | 502 engine_answer_cut            | -       | -                   | -        | 0      | decode  | 1+1  | 1
decode cut          | whole  | 2     | baseline                         | decode  | -                   | -        | 0      | decode  | 2+2  | 2
decode cut          | stream | 1     | 200, then engine_answer_cut, cut | -       | -                   | -        | 0      | decode  | 1+1  | ≤1
decode cut          | stream | 2     | 200, then engine_answer_cut, cut | -       | -                   | -        | 0      | decode  | 1+1  | ≤1
leaves at prefill   | both   | 1     | nothing                          | -       | -                   | -        | 0      | -       | 1+0  | 0
leaves at prefill   | both   | 2     | nothing                          | -       | -                   | -        | 0      | -       | 1+0  | 0
leaves at decode    | both   | 1     | nothing                          | -       | -                   | -        | 0      | -       | 1+1  | 0
leaves at decode    | both   | 2     | nothing                          | -       | -                   | -        | 0      | -       | 1+1  | 0
";

#[tokio::test]
async fn every_fault_costs_what_the_table_says() -> Result<()> {
    let mut rows = TABLE.lines().filter(|line| !line.is_empty());
    let head = rows.next().unwrap_or_default();
    let mut wrong = String::new();
    for row in rows {
        for cell in Cell::all_of(row)? {
            if let Err(error) = cell.check().await {
                wrong.push_str(&format!("\n{head}\n{row}\n{error:#}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    Ok(())
}
