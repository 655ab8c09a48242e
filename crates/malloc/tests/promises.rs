//! Does the C and POSIX surface keep its promises under random sequences of calls? The fuzz target
//! `malloc_surface` asks the same of better sequences, for longer.

mod surface;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::process::Command;
use surface::Process;

const SEQUENCES: &str = "random_sequences_keep_promises";

#[test]
fn random_sequences_keep_promises() {
    let mut runner = TestRunner::new(Config {
        cases: contigua_testing::cases(50),
        ..Config::default()
    });
    runner
        .run(&proptest::collection::vec(any::<u8>(), 0..3000), |bytes| {
            surface::run(&bytes, Process::Whole);
            Ok(())
        })
        .unwrap();
}

/// Runs the calling test in a process of its own, with other variables in the environment.
fn with(variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", SEQUENCES])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{variables:?}: {text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn random_sequences_keep_promises_with_thread_caches() {
    with(&[("CONTIGUA_MALLOC_PER_CPU", "off")]);
}

#[test]
fn random_sequences_keep_promises_with_tiny_caches_and_eager_release() {
    with(&[
        ("CONTIGUA_MALLOC_CACHE", "64KiB"),
        ("CONTIGUA_MALLOC_BACKGROUND", "on"),
        ("CONTIGUA_MALLOC_RELEASE_RATE", "1GiB"),
        ("CONTIGUA_MALLOC_INTERVAL", "0"),
    ]);
}
