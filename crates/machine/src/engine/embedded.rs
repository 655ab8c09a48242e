//! A server without a stream of events: a program that is part of the simulator makes system calls
//! and touches memory, at times that it says.

use contigua_paging::Leaf;
use contigua_program::wire::{AccessWord, Event, Syscall, ThreadId};
use contigua_translation::TranslatorCounters;
use contigua_units::{Cycles, VirtAddr};

use super::Engine;
use super::access::Additive;
use crate::Error;

/// The only thread of such a program.
const THREAD: ThreadId = ThreadId(0);
/// A word.
const SIZE_LOG2: u32 = 3;

impl Engine {
    /// The program makes a system call.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn call(&mut self, syscall: Syscall) -> Result<(), Error> {
        self.resume(0, THREAD, &[])?;
        self.event(THREAD, &Event::Syscall(syscall))
    }

    /// The program reads or writes a word.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn touch_word(&mut self, address: VirtAddr, store: bool) -> Result<(), Error> {
        self.resume(0, THREAD, &[])?;
        let word = AccessWord::template(0).with(address.get(), SIZE_LOG2, store);
        if self.relocates {
            self.access::<true, Additive>(word)
        } else {
            self.access::<false, Additive>(word)
        }
    }

    /// Lets the kernel do what it does in the background until a time.
    pub(crate) fn background_at(&mut self, now: Cycles) {
        let work = self.kernel.background(now, &mut self.mmus);
        self.charge(work);
        self.forget_places();
        self.interrupt_shootdown_targets();
    }

    /// Counters of the running core's translator.
    pub(crate) fn walks(&mut self) -> TranslatorCounters {
        self.mmus.current().translator_counters()
    }

    /// Returns the running program's page-table entry for an address.
    pub(crate) fn leaf(&self, address: VirtAddr) -> Option<Leaf> {
        self.kernel.leaf(address)
    }
}
