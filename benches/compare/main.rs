//! What the guard costs, each measure side by side with what sets its limit, interleaved, in one table.
//!
//! `cargo bench --bench compare [-- NAME]`, where a name chooses the measures that hold it; `--quick` runs each once and
//! small, to see that it works: the numbers say nothing then.

#[path = "../common/mod.rs"]
mod common;
mod drive;
mod forward;
mod many;
mod parquet;
mod reads;
mod rig;
mod save;
mod table;

use rig::{Result, Rig, Size};
use table::Table;

#[tokio::main]
async fn main() -> Result<()> {
    let mut size = Size::FULL;
    let mut chosen = String::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => size = Size::QUICK,
            // What cargo says by itself.
            "--bench" => {}
            name => name.clone_into(&mut chosen),
        }
    }
    let wanted = |name: &str| name.contains(&chosen);
    let mut table = Table::default();
    if wanted("save") {
        save::measure(size, &mut table).await?;
    }
    if wanted("guards") {
        many::measure(size, &mut table).await?;
    }
    if ["explicit", "all", "skip", "parquet", "reads"].into_iter().any(wanted) {
        let rig = Rig::start(size.messages, 128).await?;
        if wanted("explicit") {
            drive::measure(&rig, size, drive::EXPLICIT, &mut table).await?;
        }
        if wanted("all") {
            drive::measure(&rig, size, drive::ALL, &mut table).await?;
        }
        if wanted("skip") {
            drive::measure_skips(&rig, size, &mut table).await?;
        }
        if wanted("parquet") {
            parquet::measure(&rig, size, &mut table).await?;
        }
        if wanted("reads") {
            reads::measure(&rig, size, &mut table).await?;
        }
    }
    if wanted("forward") {
        for messages in size.replays {
            forward::measure(*messages, size, &mut table).await?;
        }
    }
    println!("{table}");
    Ok(())
}
