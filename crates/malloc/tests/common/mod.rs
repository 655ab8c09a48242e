//! Helpers of the tests that run C programs under the library.

// Each test uses some of it.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A program of `tests/c`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name)
}

/// Directory of the library of this test's build: that of the test's own file. (The one a directory
/// above is as old as the last `cargo build`.)
pub fn library_directory() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let directory = test.parent().expect("target/PROFILE/deps/TEST");
    assert!(
        directory.join("libcontigua_malloc.so").exists(),
        "no libcontigua_malloc.so in {}",
        directory.display()
    );
    directory.to_path_buf()
}

/// The library as a file.
pub fn library() -> PathBuf {
    library_directory().join("libcontigua_malloc.so")
}

/// Directory in which programs are built, once for each test process.
pub fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<tempfile::TempDir> = OnceLock::new();
    SCRATCH
        .get_or_init(|| tempfile::tempdir().expect("a scratch directory"))
        .path()
}

/// Compile a program with the header at hand, once for each process; its file.
pub fn compile(name: &str, arguments: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compiler = if Path::new(name).extension().is_some_and(|end| end == "cc") {
        "c++"
    } else {
        "cc"
    };
    let stem = Path::new(name).file_stem().expect("a name");
    let program = scratch().join(stem).with_extension("out");
    if !compiled.insert(format!("{name} {arguments:?}")) {
        return program;
    }
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

/// Run a program under the library.
pub fn run(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library())
        .env("LD_LIBRARY_PATH", library_directory())
        .envs(variables.iter().copied())
        .output()
        .expect("the program starts")
}

/// Run a program under the library and show what it says if it fails.
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

/// The function at an address of an ELF file, by its symbols.
pub fn function(elf: &object::File<'_>, address: u64) -> Option<String> {
    use object::{Object, ObjectSymbol};
    let symbol = elf
        .symbols()
        .filter(|symbol| symbol.is_definition() && symbol.address() <= address)
        .max_by_key(ObjectSymbol::address)?;
    symbol.name().ok().map(str::to_owned)
}

/// Settings with which a program must work alike.
pub const CACHES: [[(&str, &str); 1]; 2] = [
    [("CONTIGUA_MALLOC_PER_CPU", "on")],
    [("CONTIGUA_MALLOC_PER_CPU", "off")],
];
