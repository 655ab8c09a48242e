//! The library is never unloaded: threads may be inside its restartable sequences, and the C
//! library keeps pointers to its fork handlers.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
