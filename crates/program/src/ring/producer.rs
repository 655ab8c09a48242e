//! The writing end, used by the plugin inside QEMU.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::layout::{CHUNK_WORDS, CHUNKS, ORDER_CHUNK_BITS};
use super::pool::{Ring, wait};
use super::processes::RobustList;
use crate::error::Error;

/// Readers are woken when this many chunks have piled up, not for each: a wake-up costs more than
/// filling a chunk takes. Sleeping readers look for themselves every millisecond.
const WAKE_EVERY: u64 = 16;

/// Longest sleep of a producer before it looks again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A chunk that one thread is filling.
#[derive(Debug)]
#[must_use = "a chunk that is dropped is lost to the pool"]
pub struct Held {
    chunk: usize,
}

/// Takes chunks from the pool and publishes them.
pub struct Producer {
    ring: Ring,
    /// Identity of this process as a holder of chunks; changes when it forks.
    holder: AtomicU32,
}

impl Producer {
    /// Produces into `ring`, once [`Producer::join`] was called.
    #[must_use]
    pub const fn new(ring: Ring) -> Self {
        Self {
            ring,
            holder: AtomicU32::new(0),
        }
    }

    /// The ring.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Makes the calling thread the one by whose end it is known that this process has ended: to
    /// be called before anything else, also in a forked child.
    ///
    /// # Errors
    /// Those of [`Ring::join`].
    ///
    /// # Safety
    /// As for [`Ring::join`].
    pub unsafe fn join(&self, list: *mut RobustList, bound: bool) -> Result<(), Error> {
        // SAFETY: by this function's contract.
        let member = unsafe { self.ring.join(list, bound) }?;
        self.holder.store(member.holder, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a free chunk, waiting until there is one, and says where its words go.
    ///
    /// When producers have been asked to stop, this never returns: the process waits for its end.
    pub fn acquire(&self) -> (Held, *mut u64) {
        let header = self.ring.header();
        loop {
            if header.stop.load(Ordering::SeqCst) != 0 {
                park();
            }
            if let Some(chunk) = self.ring.take_chunk() {
                header.meta[chunk]
                    .holder
                    .store(self.holder.load(Ordering::Relaxed), Ordering::Relaxed);
                return (Held { chunk }, self.ring.chunk(chunk));
            }
            header.sleeping_producers.fetch_add(1, Ordering::SeqCst);
            let seen = header.freed.0.load(Ordering::SeqCst);
            if header.free.0.load(Ordering::SeqCst) as u32 == 0 {
                self.ring.announce();
                wait(&header.freed.0, seen, POLL_INTERVAL);
            }
            header.sleeping_producers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Publishes the first `length` words of a chunk as the next batch of `thread`; an empty
    /// chunk goes back to the pool unseen.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "who publishes a chunk gives it up"
    )]
    pub fn publish(&self, held: Held, thread: u32, length: usize) {
        debug_assert!(length <= CHUNK_WORDS);
        let header = self.ring.header();
        let readers = header.readers.load(Ordering::Acquire);
        if length == 0 || readers == 0 {
            self.ring.release_chunk(held.chunk);
            return;
        }
        let meta = &header.meta[held.chunk];
        meta.holder.store(0, Ordering::Relaxed);
        meta.thread.store(thread, Ordering::Relaxed);
        meta.length.store(length as u32, Ordering::Relaxed);
        meta.pending.store(readers, Ordering::Relaxed);
        let ticket = self.order(held.chunk);
        if ticket % WAKE_EVERY == WAKE_EVERY - 1
            && header.sleeping_readers.load(Ordering::SeqCst) != 0
        {
            self.ring.announce();
        }
    }

    /// Takes the next ticket for a chunk. One store does it, so that a producer that is killed
    /// leaves no ticket without a chunk, for which all readers would wait.
    fn order(&self, chunk: usize) -> u64 {
        let header = self.ring.header();
        loop {
            let ticket = header.head.0.load(Ordering::Acquire);
            let slot = &header.order[ticket as usize % CHUNKS];
            let seen = slot.load(Ordering::Acquire);
            let is_taken = seen >> ORDER_CHUNK_BITS > ticket;
            let own = (ticket + 1) << ORDER_CHUNK_BITS | chunk as u64;
            let took = !is_taken
                && slot
                    .compare_exchange(seen, own, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok();
            // Whoever took this ticket: it may have been killed before it could say so.
            let _ = header.head.0.compare_exchange(
                ticket,
                ticket + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if took {
                return ticket;
            }
        }
    }
}

/// Waits for the end of the process without using a processor.
fn park() -> ! {
    loop {
        std::thread::sleep(POLL_INTERVAL);
    }
}
