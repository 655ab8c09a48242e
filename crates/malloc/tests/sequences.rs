//! Are the restartable sequences of this machine atomic when signals and fences hit them?
//! (`scripts/test-malloc-aarch64` asks the same of the other architecture.)

mod common;

use common::{CACHES, compile, expect_success};

#[test]
fn are_interrupted_sequences_as_if_they_had_not_begun() {
    let program = compile("sequences.c", &[]);
    for caches in CACHES {
        expect_success(&program, &["20000", "1"], &caches);
    }
}
