//! The reading end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::layout::{CHUNKS, MAX_READERS, ORDER_CHUNK_BITS};
use super::pool::{Ring, wait};
use crate::Error;
use crate::wire::ThreadId;

/// A reader that found nothing looks again this many times before it sleeps.
const SPINS: u32 = 64;

/// The longest sleep: producers do not wake readers for every chunk.
const NAP: Duration = Duration::from_millis(1);

/// One reader of a ring. Every reader sees every batch that was published after it came, in the
/// same order as every other reader.
pub struct RingReader {
    ring: Arc<Ring>,
    reader: u32,
    next: u64,
    /// The chunk that the last batch lies in.
    current: Option<usize>,
}

impl RingReader {
    /// A new reader of `ring`. Must come before the program starts, or it misses the start.
    ///
    /// # Errors
    /// [`Error::TooManyReaders`].
    pub fn new(ring: Arc<Ring>) -> Result<Self, Error> {
        let readers = &ring.header().readers;
        let mut mask = readers.load(Ordering::Relaxed);
        let reader = loop {
            let reader = (!mask).trailing_zeros();
            if reader >= MAX_READERS {
                return Err(Error::TooManyReaders { limit: MAX_READERS });
            }
            match readers.compare_exchange(
                mask,
                mask | 1 << reader,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break reader,
                Err(current) => mask = current,
            }
        };
        let next = ring.header().head.0.load(Ordering::Acquire);
        Ok(Self {
            ring,
            reader,
            next,
            current: None,
        })
    }

    /// The ring that this reader reads.
    #[must_use]
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Published batches that this reader has not taken.
    #[must_use]
    pub fn behind(&self) -> u64 {
        self.ring.published().saturating_sub(self.next)
    }

    /// The next batch, waiting for it; `None` when the ring has ended and all was read.
    pub fn next_batch(&mut self) -> Option<(ThreadId, &[u64])> {
        self.next_with_ring()
            .map(|(_, thread, words)| (thread, words))
    }

    /// As [`RingReader::next_batch`], along with the ring, which knows the code of the blocks.
    pub fn next_with_ring(&mut self) -> Option<(&Ring, ThreadId, &[u64])> {
        self.release_current();
        let chunk = self.wait_for_next()?;
        self.next += 1;
        self.current = Some(chunk);
        let meta = &self.ring.header().meta[chunk];
        let thread = ThreadId(meta.thread.load(Ordering::Relaxed));
        let length = meta.length.load(Ordering::Relaxed) as usize;
        // SAFETY: the chunk was published with `length` words before its order slot was stored
        // with release order, and nobody writes to it again until this reader's pending bit is
        // cleared, which `release_current` does after the returned borrow has ended.
        let words = unsafe { std::slice::from_raw_parts(self.ring.chunk(chunk), length) };
        Some((&self.ring, thread, words))
    }

    fn wait_for_next(&self) -> Option<usize> {
        let header = self.ring.header();
        let slot = &header.order[self.next as usize % CHUNKS];
        let published = || {
            let value = slot.load(Ordering::SeqCst);
            (value >> ORDER_CHUNK_BITS == self.next + 1)
                .then_some(value as usize & ((1 << ORDER_CHUNK_BITS) - 1))
        };
        for _ in 0..SPINS {
            if let Some(chunk) = published() {
                return Some(chunk);
            }
            std::hint::spin_loop();
        }
        loop {
            let ended = self.ring.has_ended();
            let seen = header.announced.0.load(Ordering::SeqCst);
            if let Some(chunk) = published() {
                return Some(chunk);
            }
            if ended {
                return None;
            }
            header.sleeping_readers.fetch_add(1, Ordering::SeqCst);
            wait(&header.announced.0, seen, NAP);
            header.sleeping_readers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn release_current(&mut self) {
        let Some(chunk) = self.current.take() else {
            return;
        };
        let bit = 1 << self.reader;
        let pending = &self.ring.header().meta[chunk].pending;
        if pending.fetch_and(!bit, Ordering::AcqRel) == bit {
            self.ring.release_chunk(chunk);
        }
    }
}

impl Drop for RingReader {
    /// Reads to the end, so that chunks which still wait for this reader go back to the pool.
    fn drop(&mut self) {
        self.release_current();
        let header = self.ring.header();
        header
            .readers
            .fetch_and(!(1 << self.reader), Ordering::AcqRel);
        while self.behind() > 0 && !self.ring.has_ended() {
            if self.next_batch().is_none() {
                break;
            }
            self.release_current();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::CHUNK_WORDS;
    use super::super::{Producer, Ring, RobustList};
    use super::*;
    use crate::code::{BlockCode, CodeLog};
    use contigua_units::VirtAddr;
    use std::os::fd::AsFd;

    fn producer(ring: &Ring) -> Producer {
        Producer::new(Ring::open(ring.descriptor()).unwrap())
    }

    /// Publishes `batches` chunks of increasing numbers under the name of `thread`.
    fn produce(producer: &Producer, thread: u32, batches: u64) {
        for batch in 0..batches {
            let (held, words) = producer.acquire();
            // SAFETY: `acquire` gives exclusive use of `CHUNK_WORDS` words.
            unsafe { words.write(batch) };
            // SAFETY: as above.
            unsafe { words.add(CHUNK_WORDS - 1).write(batch + 1) };
            producer.publish(held, thread, CHUNK_WORDS);
        }
    }

    #[test]
    fn all_readers_see_the_same_order_and_nothing_is_lost() {
        const BATCHES: u64 = 3 * CHUNKS as u64;
        const THREADS: u32 = 3;
        let ring = Arc::new(Ring::create().unwrap());
        let readers: Vec<_> = (0..3)
            .map(|_| RingReader::new(ring.clone()).unwrap())
            .collect();
        let producer = producer(&ring);
        let seen: Vec<Vec<(u32, u64)>> = std::thread::scope(|scope| {
            let consumers: Vec<_> = readers
                .into_iter()
                .map(|mut reader| {
                    scope.spawn(move || {
                        let mut seen = Vec::new();
                        while let Some((thread, words)) = reader.next_batch() {
                            assert_eq!(words.len(), CHUNK_WORDS);
                            assert_eq!(words[CHUNK_WORDS - 1], words[0] + 1);
                            seen.push((thread.0, words[0]));
                        }
                        seen
                    })
                })
                .collect();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let producer = &producer;
                    scope.spawn(move || produce(producer, thread, BATCHES));
                }
            });
            ring.end();
            consumers.into_iter().map(|c| c.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|order| order == &seen[0]));
        for thread in 0..THREADS {
            let mine = seen[0]
                .iter()
                .filter(|(t, _)| *t == thread)
                .map(|(_, batch)| *batch);
            assert!(mine.eq(0..BATCHES), "batches of one thread stay in order");
        }
    }

    #[test]
    fn a_chunk_left_by_a_dead_process_returns_to_the_pool() {
        let ring = Arc::new(Ring::create().unwrap());
        let _reader = RingReader::new(ring.clone()).unwrap();
        let producer = producer(&ring);
        std::thread::scope(|scope| {
            let process = scope.spawn(|| {
                let list = Box::leak(Box::new(RobustList::new()));
                // SAFETY: the list is never freed, and the producer outlives the scope.
                unsafe { producer.join(list, true) }.unwrap();
                for _ in 0..CHUNKS {
                    let _lost = producer.acquire();
                }
                assert!(ring.reap(true), "a process that lives keeps its chunks");
                assert!(ring.take_chunk().is_none());
            });
            process.join().unwrap();
        });
        assert!(!ring.reap(true));
        assert_eq!(std::iter::from_fn(|| ring.take_chunk()).count(), CHUNKS);
        ring.end();
    }

    #[test]
    fn a_producer_killed_between_its_ticket_and_the_count_of_tickets_stalls_nobody() {
        let ring = Arc::new(Ring::create().unwrap());
        let mut reader = RingReader::new(ring.clone()).unwrap();
        let producer = producer(&ring);
        let (held, words) = producer.acquire();
        // SAFETY: `acquire` gives exclusive use of the words.
        unsafe { words.write(7) };
        produce(&producer, 1, 1);
        // As if this thread had taken the ticket first, and been killed before it counted it.
        let header = ring.header();
        header.head.0.store(0, Ordering::SeqCst);
        drop(held);
        produce(&producer, 2, 3);
        ring.end();
        let mut threads = Vec::new();
        while let Some((thread, _)) = reader.next_batch() {
            threads.push(thread.0);
        }
        assert_eq!(threads, [1, 2, 2, 2]);
        assert_eq!(ring.published(), 4);
    }

    #[test]
    fn a_block_is_described_once_and_read_back_by_number() {
        let ring = Ring::create().unwrap();
        let code = BlockCode {
            address: VirtAddr::new(0x40_1000),
            lengths: &[1, 2, 5],
            bytes: &[0x90, 0x66, 0x90, 0xe8, 0, 0, 0, 0],
        };
        let first = ring.describe(&code).unwrap();
        let second = ring.describe(&BlockCode { bytes: &[], ..code }).unwrap();
        assert_eq!(ring.block(first), Some(code));
        assert_eq!(ring.block(second).unwrap().bytes, &[] as &[u8]);
        assert_eq!(ring.block(BlockId(2)), None);
        assert_eq!(ring.block(BlockId(u32::MAX)), None);
    }

    #[test]
    fn shared_memory_that_is_no_ring_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(
            Ring::open(file.as_file().as_fd()),
            Err(Error::NotARing { found: 0, .. })
        ));
    }

    #[test]
    fn a_thirty_third_reader_is_refused() {
        let ring = Arc::new(Ring::create().unwrap());
        let readers: Vec<_> = (0..MAX_READERS)
            .map(|_| RingReader::new(ring.clone()).unwrap())
            .collect();
        assert!(RingReader::new(ring.clone()).is_err());
        drop(readers);
        assert!(RingReader::new(ring).is_ok());
    }

    use crate::wire::BlockId;
}
