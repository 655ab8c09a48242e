//! Memory from the kernel, without the C library's allocator: `cargo run -p contigua-syscalls
//! --example memory`.

use contigua_syscalls as sys;

fn main() {
    let memory = sys::map(1 << 20).expect("a mebibyte is available");
    // SAFETY: the mapping was just made, and nothing else uses it.
    let first = unsafe {
        memory.write(7);
        memory.read()
    };
    println!(
        "1 MiB at {memory:p} on a machine with up to {} CPUs holds {first}",
        sys::possible_cpus()
    );
    sys::discard(memory.as_ptr() as usize, 1 << 20);
    // SAFETY: as above; it stays mapped.
    let first = unsafe { memory.read() };
    println!("after it was discarded, it reads as {first}");
    sys::unmap(memory.as_ptr(), 1 << 20);
}
