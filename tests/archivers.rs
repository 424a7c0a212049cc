//! Runs the tests of the archivers that are packages of their own, so that whoever builds this one need not build what they
//! need.

mod cargo;

fn main() -> std::process::ExitCode {
    let packages = ["archiver-parquet", "archiver-support", "clickhouse_archiver", "postgres_archiver", "s3_archiver"];
    cargo::test(&packages.map(|package| ["--package", package]).concat())
}
