//! The mapping itself, the free list, and the log of code.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use contigua_units::VirtAddr;

use super::layout::{
    CHUNK_WORDS, CHUNKS, CODE_BYTES, Header, MAGIC, MAX_BLOCKS, Memory, TOTAL_BYTES, VERSION,
};
use crate::Error;
use crate::code::{BlockCode, CodeLog};
use crate::descriptors::anonymous_file;
use crate::plan::{Mode, Plan, Segment};
use crate::wire::{BlockId, Cue};

/// Bytes before a description's instruction lengths: address, count, byte count.
const DESCRIPTION_HEAD: usize = 16;

/// Instructions of a plan that a thread has taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Mode of their execution.
    pub mode: Mode,
    /// Number of instructions.
    pub instructions: u64,
    /// A segment begins with them.
    pub begins: bool,
}

/// Instructions still traced in full after a switch to fast-forward. Threads that run have taken
/// instructions that they have not executed, so that those of the plan seem further on than they are;
/// a unit must not be cut short for that.
const LAG: u64 = 1 << 16;
/// Instructions of a segment that does not end.
const ENDLESS: u64 = u64::MAX / 2;

/// The segment of a plan that an instruction belongs to when it is told, after so many others.
fn told(plan: &Plan, count: u64) -> Segment {
    let segment = plan.segment(count);
    let before = (segment.mode == Mode::Forward)
        .then(|| count.checked_sub(LAG))
        .flatten()
        .map(|count| plan.segment(count))
        .filter(|before| before.mode != Mode::Forward);
    before.map_or(segment, |before| Segment {
        mode: before.mode,
        end: segment.end.min(before.end.saturating_add(LAG)),
    })
}

/// The shared memory of one run, mapped into this process.
pub struct Ring {
    base: NonNull<Memory>,
    /// Kept open by the creator, who passes it on.
    file: Option<File>,
}

// SAFETY: the mapping is shared between threads by design: every field that changes after
// creation is atomic, and plain chunk words are handed over through atomics (see `producer` and
// `reader`).
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Makes a new ring in anonymous shared memory.
    ///
    /// # Errors
    /// [`Error::Ring`] when the kernel refuses the memory.
    pub fn create() -> Result<Self, Error> {
        let file = anonymous_file(c"contigua-ring").map_err(ring_error("memfd_create"))?;
        file.set_len(TOTAL_BYTES as u64)
            .map_err(ring_error("ftruncate"))?;
        let ring = Self::map(file)?;
        // SAFETY: nobody else has mapped the memory yet, so writing plain fields is exclusive.
        unsafe {
            let header = &raw mut (*ring.base.as_ptr()).header;
            (*header).version = VERSION;
            (*header).magic = MAGIC;
        }
        for chunk in (0..CHUNKS).rev() {
            ring.release_chunk(chunk);
        }
        Ok(ring)
    }

    /// Maps the ring that another process made, from a descriptor of its memory, which need not
    /// stay open.
    ///
    /// # Errors
    /// [`Error::Ring`] when it cannot be mapped, [`Error::NotARing`] when it is something else.
    pub fn open(descriptor: BorrowedFd<'_>) -> Result<Self, Error> {
        let file = descriptor.try_clone_to_owned().map_err(ring_error("dup"))?;
        let file = File::from(file);
        let length = file.metadata().map_err(ring_error("fstat"))?.len();
        let mut found = 0;
        if length == TOTAL_BYTES as u64 {
            let mut ring = Self::map(file)?;
            let header = ring.header();
            if header.magic == MAGIC && header.version == VERSION {
                // The descriptor must not stay: guest programs close and reuse any number.
                ring.file = None;
                return Ok(ring);
            }
            found = if header.magic == MAGIC {
                header.version
            } else {
                0
            };
        }
        Err(Error::NotARing {
            expected: VERSION,
            found,
        })
    }

    fn map(file: File) -> Result<Self, Error> {
        // SAFETY: a fresh shared mapping at an address of the kernel's choice; the file has the
        // full length, so no access within the mapping can fault.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                TOTAL_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(ring_error("mmap")(io::Error::last_os_error()));
        }
        Ok(Self {
            base: NonNull::new(base.cast()).expect("mmap never maps address 0"),
            file: Some(file),
        })
    }

    /// The shared memory, to be passed on.
    ///
    /// # Panics
    /// When this process did not create the ring.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        let file = self.file.as_ref();
        file.expect("only the creator passes it on").as_fd()
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping lives as long as `self` and is larger than a header, whose fields are
        // atomic or do not change while shared. Chunks and code lie behind it.
        unsafe { &(*self.base.as_ptr()).header }
    }

    /// The first word of a chunk.
    pub(super) fn chunk(&self, chunk: usize) -> *mut u64 {
        assert!(chunk < CHUNKS);
        // SAFETY: in bounds of the mapping by the assertion; only an address is computed.
        unsafe {
            (&raw mut (*self.base.as_ptr()).chunks.0)
                .cast::<u64>()
                .add(chunk * CHUNK_WORDS)
        }
    }

    /// Puts a chunk on the free list. It must not be on it, nor in use by anybody.
    pub(super) fn release_chunk(&self, chunk: usize) {
        let header = self.header();
        header.meta[chunk].holder.store(0, Ordering::Relaxed);
        let mut top = header.free.0.load(Ordering::Relaxed);
        loop {
            header.meta[chunk]
                .next_free
                .store(top as u32, Ordering::Relaxed);
            let tag = (top >> 32).wrapping_add(1) << 32;
            let next = tag | (chunk as u64 + 1);
            match header.free.0.compare_exchange_weak(
                top,
                next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(current) => top = current,
            }
        }
        if header.sleeping_producers.load(Ordering::SeqCst) != 0 {
            header.freed.0.fetch_add(1, Ordering::SeqCst);
            // One chunk is for one; each chunk that is freed wakes another.
            wake(&header.freed.0, 1);
        }
    }

    /// Takes a chunk from the free list, if there is one.
    pub(super) fn take_chunk(&self) -> Option<usize> {
        let header = self.header();
        let mut top = header.free.0.load(Ordering::Acquire);
        loop {
            let chunk = (top as u32).checked_sub(1)? as usize;
            let below = header.meta[chunk].next_free.load(Ordering::Relaxed);
            let tag = (top >> 32).wrapping_add(1) << 32;
            match header.free.0.compare_exchange_weak(
                top,
                tag | u64::from(below),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(chunk),
                Err(current) => top = current,
            }
        }
    }

    /// Frees the chunks that a process was filling when it died or became another program.
    /// Words that it had not published are lost.
    pub(super) fn reclaim(&self, holder: u32) {
        for (chunk, meta) in self.header().meta.iter().enumerate() {
            let mine = meta
                .holder
                .compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
            if mine.is_ok() {
                self.release_chunk(chunk);
            }
        }
    }

    /// Describes a block and gives it a number.
    ///
    /// # Errors
    /// [`Error::TooMuchCode`] when the run has too many.
    pub fn describe(&self, code: &BlockCode<'_>) -> Result<BlockId, Error> {
        let header = self.header();
        let used = DESCRIPTION_HEAD + code.lengths.len() + code.bytes.len();
        let size = used.next_multiple_of(8) as u64;
        let offset = header.code_used.fetch_add(size, Ordering::Relaxed);
        if offset + size > CODE_BYTES as u64 {
            return Err(Error::TooMuchCode);
        }
        let block = header.next_block.fetch_add(1, Ordering::Relaxed);
        let slot = header
            .code_index
            .get(block as usize)
            .ok_or(Error::TooMuchCode)?;
        // SAFETY: the range was reserved for this call alone by the addition above and lies
        // within the code area; the index is published after it was filled.
        unsafe {
            let to = self.code_area().add(offset as usize);
            let head = [
                code.address.get(),
                code.lengths.len() as u64 | (code.bytes.len() as u64) << 32,
            ];
            to.cast::<[u64; 2]>().write_unaligned(head);
            let to = to.add(DESCRIPTION_HEAD);
            std::ptr::copy_nonoverlapping(code.lengths.as_ptr(), to, code.lengths.len());
            let to = to.add(code.lengths.len());
            std::ptr::copy_nonoverlapping(code.bytes.as_ptr(), to, code.bytes.len());
        }
        slot.store(offset + 1, Ordering::Release);
        Ok(BlockId(block))
    }

    /// The first byte of the area that holds descriptions of code.
    fn code_area(&self) -> *mut u8 {
        // SAFETY: the code area follows all else within the same mapping.
        unsafe { self.base.as_ptr().add(1).cast() }
    }

    /// Asks producers to stop: each publishes what it has and then waits to be killed.
    pub fn stop(&self) {
        self.header().stop.store(1, Ordering::SeqCst);
        self.header().freed.0.fetch_add(1, Ordering::SeqCst);
        wake(&self.header().freed.0, i32::MAX);
    }

    /// Tells readers that nothing will be published any more.
    pub fn end(&self) {
        self.header().ended.store(1, Ordering::SeqCst);
        self.announce();
    }

    /// Returns true if [`Ring::end`] was called.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.header().ended.load(Ordering::SeqCst) != 0
    }

    /// Chunks published so far.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.header().head.0.load(Ordering::Acquire)
    }

    /// A number for a new guest thread.
    #[must_use]
    pub fn new_thread(&self) -> u32 {
        self.header().next_thread.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a new guest process.
    #[must_use]
    pub fn new_process(&self) -> u32 {
        self.header().next_process.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes the next instructions of the plan, for one thread: at most `most` as long as threads
    /// have to share.
    #[must_use]
    pub fn take_planned(&self, plan: &Plan, most: u64) -> Taken {
        if let Some(outside) = plan.outside_cues() {
            let regions = self.header().regions.0.load(Ordering::Acquire);
            return Taken {
                mode: if regions == 0 { outside } else { Mode::Detail },
                instructions: most,
                begins: false,
            };
        }
        let planned = &self.header().planned.0;
        let mut count = planned.load(Ordering::Relaxed);
        loop {
            let segment = told(plan, count);
            let begins = count > 0 && told(plan, count - 1) != segment;
            let instructions = most.min(segment.end - count);
            let taken = Taken {
                mode: segment.mode,
                instructions,
                begins,
            };
            // Who goes forward to the end says now and then how far it is.
            if segment.end == u64::MAX && segment.mode != Mode::Forward {
                return Taken {
                    instructions: ENDLESS,
                    ..taken
                };
            }
            let next = count + instructions;
            match planned.compare_exchange_weak(count, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return taken,
                Err(now) => count = now,
            }
        }
    }

    /// Gives back what a thread took of the plan and did not execute: at its end, or before it waits.
    pub fn return_planned(&self, left: u64) {
        if left < ENDLESS / 2 {
            self.header().planned.0.fetch_sub(left, Ordering::Relaxed);
        }
    }

    /// The program begins or ends a region; whether that is news. What a marker says is known to all
    /// threads; each call is one of its own.
    #[allow(
        clippy::must_use_candidate,
        reason = "the region begins or ends in any case"
    )]
    pub fn cue(&self, cue: Cue) -> bool {
        const MARKED: u32 = 1;
        const CALL: u32 = 2;
        let regions = &self.header().regions.0;
        match cue {
            Cue::Begin => regions.fetch_or(MARKED, Ordering::AcqRel) & MARKED == 0,
            Cue::End => regions.fetch_and(!MARKED, Ordering::AcqRel) & MARKED != 0,
            Cue::Enter => {
                regions.fetch_add(CALL, Ordering::AcqRel);
                true
            }
            Cue::Leave => {
                regions.fetch_sub(CALL, Ordering::AcqRel);
                true
            }
        }
    }

    /// Returns true if a marker has begun a region that no marker has ended.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.header().regions.0.load(Ordering::Acquire) & 1 != 0
    }

    /// Asks the program to begin or end a region: for calls of functions, nothing.
    pub fn ask(&self, cue: Cue) {
        let asked = match cue {
            Cue::Begin => 1,
            Cue::End => 2,
            Cue::Enter | Cue::Leave => return,
        };
        self.header().asked.store(asked, Ordering::SeqCst);
    }

    /// Requests since the last time.
    #[inline]
    #[must_use]
    pub fn take_asked(&self) -> Option<Cue> {
        let asked = &self.header().asked;
        if asked.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match asked.swap(0, Ordering::SeqCst) {
            1 => Some(Cue::Begin),
            2 => Some(Cue::End),
            _ => None,
        }
    }

    pub(super) fn announce(&self) {
        self.header().announced.0.fetch_add(1, Ordering::SeqCst);
        wake(&self.header().announced.0, i32::MAX);
    }
}

impl CodeLog for Ring {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        let slot = self.header().code_index.get(block.0 as usize)?;
        let offset = slot.load(Ordering::Acquire).checked_sub(1)? as usize;
        // SAFETY: a non-zero index was stored with release order after the description was
        // complete, and descriptions never change nor move.
        unsafe {
            let from = self.code_area().add(offset);
            let [address, counts] = from.cast::<[u64; 2]>().read_unaligned();
            let (instructions, bytes) = (counts as u32 as usize, (counts >> 32) as usize);
            let lengths = from.add(DESCRIPTION_HEAD);
            Some(BlockCode {
                address: VirtAddr::new(address),
                lengths: std::slice::from_raw_parts(lengths, instructions),
                bytes: std::slice::from_raw_parts(lengths.add(instructions), bytes),
            })
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and every borrow of it ends
        // with `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), TOTAL_BYTES) };
    }
}

const _: () = assert!(MAX_BLOCKS <= u32::MAX as usize);

fn ring_error(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Ring { step, source }
}

/// Sleeps until `futex` no longer holds `expected`, a wake-up comes, or the time is over.
pub(super) fn wait(futex: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the address is that of a live atomic, the time-out outlives the call. The futex is
    // not private because the two sides are different processes.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            futex.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
        );
    }
}

/// Wakes at most so many who sleep on `futex`.
pub(super) fn wake(futex: &AtomicU32, most: i32) {
    // SAFETY: the address is that of a live atomic.
    unsafe { libc::syscall(libc::SYS_futex, futex.as_ptr(), libc::FUTEX_WAKE, most) };
}
