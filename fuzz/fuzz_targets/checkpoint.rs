#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| replay_guard_fuzz::checkpoint(bytes));
