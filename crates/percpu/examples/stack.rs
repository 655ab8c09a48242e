//! A stack of objects for each CPU, without locked instructions: `cargo run -p contigua-percpu
//! --example stack`.

use std::sync::atomic::{AtomicUsize, Ordering};

use contigua_percpu::{SLAB_BYTES, Slab, Slabs, Stack, cpu, find, header_words, open, pop, push};
use contigua_syscalls as sys;

/// Class 0 has no objects; class 1 has 64 slots.
static STACKS: [Stack; 2] = [
    Stack {
        size: 0,
        slots: 0,
        first_slot: 0,
        batch: 0,
    },
    Stack {
        size: 64,
        slots: 64,
        first_slot: header_words(2) as u16,
        batch: 8,
    },
];
static SLABS: Slabs = Slabs::new();
static POPPED: AtomicUsize = AtomicUsize::new(0);

fn main() {
    let area = find();
    if area == 0 {
        println!("the C library registers no area for restartable sequences (glibc 2.35 does)");
        return;
    }
    let cpus = sys::possible_cpus();
    let memory = sys::map(cpus as usize * SLAB_BYTES).expect("slabs fit");
    SLABS
        .base
        .store(memory.as_ptr() as usize, Ordering::Relaxed);
    SLABS.offset.store(area, Ordering::Relaxed);
    SLABS.cpus.store(cpus, Ordering::Release);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..1000 {
                    // SAFETY: the slabs were set up above and stay mapped; class 1 is theirs, and no item is 0.
                    unsafe {
                        let here = cpu(&SLABS);
                        let slab = Slab::at(
                            SLABS.base.load(Ordering::Relaxed) + here as usize * SLAB_BYTES,
                            &STACKS,
                        );
                        open(&SLABS, here, 1, slab.empty_header(1));
                        slab.grow(1, 1 << 20);
                        if push(&SLABS, area, 1, thread * 1000 + number + 1)
                            && pop(&SLABS, area, 1) != 0
                        {
                            POPPED.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    println!(
        "4 threads took {} of 4000 objects from the stacks of {cpus} CPUs",
        POPPED.load(Ordering::Relaxed)
    );
}
