//! The word of each thread under Miri, which runs no assembly.

use core::cell::Cell;

std::thread_local! {
    static WORD: Cell<usize> = const { Cell::new(0) };
    static ANCHOR: u64 = const { 0 };
}

/// A number that no other living thread of the process has.
pub fn thread_pointer() -> usize {
    ANCHOR.with(|anchor| (&raw const *anchor).addr())
}

/// The thread's word, 0 at first.
pub fn get() -> usize {
    WORD.get()
}

/// Set the thread's word.
pub fn set(value: usize) {
    WORD.set(value);
}
