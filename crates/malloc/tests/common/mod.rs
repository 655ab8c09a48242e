//! Programs in C and C++, compiled and run with the library preloaded.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name)
}

/// The library that belongs to this test's build: two directories above the test's own file.
pub fn library_directory() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let directory = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    assert!(
        directory.join("libcontigua_malloc.so").exists()
            || directory.join("deps/libcontigua_malloc.so").exists(),
        "no libcontigua_malloc.so in {}",
        directory.display()
    );
    if directory.join("libcontigua_malloc.so").exists() {
        directory.to_path_buf()
    } else {
        directory.join("deps")
    }
}

pub fn library() -> PathBuf {
    library_directory().join("libcontigua_malloc.so")
}

/// Where programs are built, once for each test process.
pub fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<tempfile::TempDir> = OnceLock::new();
    SCRATCH
        .get_or_init(|| tempfile::tempdir().expect("a scratch directory"))
        .path()
}

pub fn compile(name: &str, arguments: &[&str]) -> PathBuf {
    let compiler = if Path::new(name).extension().is_some_and(|end| end == "cc") {
        "c++"
    } else {
        "cc"
    };
    let stem = Path::new(name).file_stem().expect("a name");
    let program = scratch().join(stem).with_extension("out");
    let output = Command::new(compiler)
        .args(["-O1", "-g", "-pthread", "-w", "-o"])
        .arg(&program)
        .arg(source(name))
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .args(arguments)
        .output()
        .expect("a compiler");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

pub fn run(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library())
        .env("LD_LIBRARY_PATH", library_directory())
        .envs(variables.iter().copied())
        .output()
        .expect("the program starts")
}

pub fn expect_success(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) {
    let output = run(program, arguments, variables);
    assert!(
        output.status.success(),
        "{} {arguments:?} {variables:?}: {}\n{}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
