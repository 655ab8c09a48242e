//! qemu-plugin
