//! What the archivers that write Parquet share: the columns, the names, and the footer that says what a file holds.

#![allow(clippy::missing_errors_doc, reason = "each error says what failed")]

mod claims;
mod decode;
mod encode;
mod ends;
mod footer;
pub mod names;
mod row;

pub use claims::{Claims, MAX_CLAIMS};
pub use decode::{ids_of, rows_of};
pub use encode::{encode, encode_empty};
pub use ends::ends_of;
pub use footer::{Footer, TAIL, footer_of};
pub use row::Row;

#[cfg(test)]
mod tests;
