//! Whole drivers against real servers: what people reported, and what a running archiver meets.

mod acks;
mod connection;
mod disposable;
mod events;
mod fork;
mod rewind;
mod rig;
mod sink;
