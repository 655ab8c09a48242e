//! All tests of the crate in one program, which is linked once.

mod decode;
mod decode_aarch64;
mod drmemtrace;
mod foreign;
mod layout;
mod trace;
