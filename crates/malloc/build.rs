//! The library is never unloaded: threads may be inside its restartable sequences, and the C
//! library keeps pointers to its fork handlers.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Builds that are examined (`scripts/sanitize-malloc`).
    println!("cargo:rustc-check-cfg=cfg(contigua_sanitizer, values(\"thread\", \"address\"))");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
