//! The writing end, used by the plugin inside QEMU.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::layout::{CHUNK_WORDS, CHUNKS, ORDER_CHUNK_BITS};
use super::pool::{Ring, wait};

/// Readers are woken when this many chunks have piled up, not for each: a wake-up costs more than
/// filling a chunk takes. Sleeping readers look for themselves every millisecond.
const WAKE_EVERY: u64 = 16;

/// How long a producer sleeps at most before it looks whether its readers still live.
const PATIENCE: Duration = Duration::from_millis(100);

/// A chunk that one thread is filling.
#[derive(Debug)]
#[must_use = "a chunk that is dropped is lost to the pool"]
pub struct Held {
    chunk: usize,
}

/// Takes chunks from the pool and publishes them.
pub struct Producer {
    ring: Ring,
    /// This host process; changes when it forks.
    process: AtomicU32,
}

impl Producer {
    /// Produces into `ring` on behalf of this host process.
    #[must_use]
    pub fn new(ring: Ring) -> Self {
        let process = std::process::id();
        ring.reclaim(process);
        ring.register_process(process);
        Self {
            ring,
            process: AtomicU32::new(process),
        }
    }

    /// The ring.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// To be called in the child after `fork`, before anything else of this producer.
    pub fn after_fork(&self) {
        let process = std::process::id();
        self.process.store(process, Ordering::Relaxed);
        self.ring.register_process(process);
    }

    /// Takes a free chunk, waiting until there is one, and says where its words go.
    ///
    /// When producers have been asked to stop, or the ring's owner has died, this never returns:
    /// the process waits for its end.
    pub fn acquire(&self) -> (Held, *mut u64) {
        let header = self.ring.header();
        loop {
            if header.stop.load(Ordering::SeqCst) != 0 {
                self.park();
            }
            if let Some(chunk) = self.ring.take_chunk() {
                header.meta[chunk]
                    .holder
                    .store(self.process.load(Ordering::Relaxed), Ordering::Relaxed);
                return (Held { chunk }, self.ring.chunk(chunk));
            }
            header.sleeping_producers.fetch_add(1, Ordering::SeqCst);
            let seen = header.freed.0.load(Ordering::SeqCst);
            if header.free.0.load(Ordering::SeqCst) as u32 == 0 {
                self.ring.announce();
                wait(&header.freed.0, seen, PATIENCE);
                self.exit_if_orphaned();
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
        let ticket = header.head.0.fetch_add(1, Ordering::AcqRel);
        header.order[ticket as usize % CHUNKS].store(
            (ticket + 1) << ORDER_CHUNK_BITS | held.chunk as u64,
            Ordering::SeqCst,
        );
        if ticket % WAKE_EVERY == WAKE_EVERY - 1
            && header.sleeping_readers.load(Ordering::SeqCst) != 0
        {
            self.ring.announce();
        }
    }

    /// Waits for the end of the process without using a processor.
    fn park(&self) -> ! {
        loop {
            std::thread::sleep(PATIENCE);
            self.exit_if_orphaned();
        }
    }

    /// Ends the process when nobody is left to read what it does.
    fn exit_if_orphaned(&self) {
        let owner = self.ring.header().owner.cast_signed();
        // SAFETY: signal 0 only asks whether the process exists.
        let gone = unsafe { libc::kill(owner, 0) } != 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        if gone {
            // SAFETY: ends the process at once, without running the guest's or QEMU's handlers,
            // which might wait for a thread that is parked here.
            unsafe { libc::_exit(1) };
        }
    }
}
