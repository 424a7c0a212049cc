//! The archiver as a program, against a real `PostgreSQL` and a real nats-server; what it stored is read with psql.

mod contents;
mod once;
mod postgres;
mod rig;
mod settings;
