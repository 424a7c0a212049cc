//! Whole drivers against real servers: what people reported, and what a running archiver meets.

#[allow(dead_code, unreachable_pub, reason = "a whole program, of which its sink is used here")]
#[path = "../../../examples/lines.rs"]
mod example;

mod acks;
mod blocked;
mod breakage;
mod chaos;
mod checkpoint;
mod cluster;
mod connection;
mod dead_letters;
mod disposable;
mod edited;
mod events;
mod floor;
mod fork;
mod forward;
mod gaps;
mod identity;
mod kinds;
mod limits;
mod lines;
mod permissions;
mod retention;
mod rewind;
mod rig;
mod sink;
mod start;
mod store;
mod traps;
mod workers;

pub(crate) use rig::until;
