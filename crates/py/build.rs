//! Builds the QEMU plugin, which the module carries inside, so that one wheel holds everything.
//!
//! The plugin is a library for another program than Python, so it cannot be this library; and
//! cargo cannot yet make one package's library an input of another one's. A nested build with a
//! target directory of its own can. If `CONTIGUA_PLUGIN` names a file, that is put in instead and
//! nothing is built: for lints.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=CONTIGUA_PLUGIN");
    if env::var_os("CONTIGUA_PLUGIN").is_some() {
        return;
    }
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let workspace = manifest
        .ancestors()
        .nth(2)
        .expect("the crate lies in crates/ of a workspace");
    let target = PathBuf::from(variable("OUT_DIR")).join("plugin");
    for input in [
        "crates/qemu-plugin",
        "crates/program",
        "crates/units",
        "Cargo.lock",
    ] {
        println!("cargo:rerun-if-changed={}", workspace.join(input).display());
    }
    let mut command = Command::new(variable("CARGO"));
    command
        .current_dir(workspace)
        .args([
            "build",
            "--locked",
            "--release",
            "--package",
            "contigua-qemu-plugin",
            "--target-dir",
        ])
        .arg(&target)
        // Flags meant for this library, such as a linter's, are not meant for the plugin.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let mut built = target;
    let triple = variable("TARGET");
    if triple != variable("HOST") {
        command.arg("--target").arg(&triple);
        built.push(&triple);
    }
    let status = command.status().expect("cargo can be started");
    assert!(
        status.success(),
        "the QEMU plugin could not be built; its errors are above"
    );
    let plugin = built.join("release/libcontigua_qemu_plugin.so");
    println!("cargo:rustc-env=CONTIGUA_PLUGIN={}", plugin.display());
}
