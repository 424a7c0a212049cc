//! The archiver against real servers of both sides: an old ClickHouse of Debian's, and today's engine behind an HTTP front
//! of ours. What is in the table is asked by plain requests of these tests' own.

mod crashes;
mod late;
mod once;
mod rig;
mod settings;
mod target;
