//! Records of the slots. All of it is atomic, because a report reads what others may be writing.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::rseq::pattern;
use crate::{sys, tls, unwind};

/// Slots: long-lived objects keep theirs, and a freed one waits for as many others. Our choice.
pub const COUNT: usize = 256;
/// Bytes of the longest object. Our choice.
pub const MOST: usize = 64 << 10;

/// Beginning of the pool, which is a guard page, and its bytes; 0 if nothing is guarded.
pub static BEGIN: AtomicUsize = AtomicUsize::new(0);
pub static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes from a slot to the next one: its own, and a guard page.
pub fn stride() -> usize {
    MOST + sys::page_bytes()
}

/// Returns where a slot begins, behind its guard page.
pub fn begin_of(index: usize) -> usize {
    BEGIN.load(Ordering::Relaxed) + sys::page_bytes() + index * stride()
}

/// The slot that `address` lies in or right before.
pub fn index_of(address: usize) -> usize {
    ((address - BEGIN.load(Ordering::Relaxed)) / stride()).min(COUNT - 1)
}

/// Frames that a stack keeps.
const FRAMES: usize = 40;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Never used, or about to be.
    Blank,
    /// An object's.
    Live,
    /// A freed object's.
    Freed,
}

/// Stack of an allocation, free or mistake: the thread, and addresses of calls, the innermost
/// first.
pub struct Trace {
    thread: AtomicUsize,
    depth: AtomicUsize,
    frames: [AtomicUsize; FRAMES],
}

impl Trace {
    /// Empty trace.
    pub const fn new() -> Self {
        Self {
            thread: AtomicUsize::new(0),
            depth: AtomicUsize::new(0),
            frames: [const { AtomicUsize::new(0) }; FRAMES],
        }
    }

    /// Forget it.
    fn clear(&self) {
        self.depth.store(0, Ordering::Relaxed);
    }

    /// The calling thread does it now.
    #[inline(never)]
    pub fn take(&self) {
        let mut frames = [0; FRAMES];
        let depth = unwind::capture(&mut frames, &[]);
        self.thread.store(tls::thread_pointer(), Ordering::Relaxed);
        self.keep(&frames[..depth]);
    }

    /// These are the addresses.
    pub fn keep(&self, frames: &[usize]) {
        for (slot, frame) in self.frames.iter().zip(frames) {
            slot.store(*frame, Ordering::Relaxed);
        }
        self.depth.store(frames.len(), Ordering::Release);
    }

    /// Thread ID, as debuggers show it.
    pub fn thread(&self) -> usize {
        self.thread.load(Ordering::Relaxed)
    }

    /// Addresses of calls, the innermost first; none if nobody did anything.
    pub fn frames(&self) -> impl Iterator<Item = usize> {
        let depth = self.depth.load(Ordering::Acquire).min(FRAMES);
        self.frames[..depth]
            .iter()
            .map(|frame| frame.load(Ordering::Relaxed))
    }
}

/// A slot: its object, or its last one.
pub struct Slot {
    state: AtomicU8,
    address: AtomicUsize,
    size: AtomicUsize,
    /// Stack of the allocation.
    pub allocated: Trace,
    /// Stack of the free.
    pub freed: Trace,
}

/// All slots. What was never used takes no memory.
pub static SLOTS: [Slot; COUNT] = [const {
    Slot {
        state: AtomicU8::new(State::Blank as u8),
        address: AtomicUsize::new(0),
        size: AtomicUsize::new(0),
        allocated: Trace::new(),
        freed: Trace::new(),
    }
}; COUNT];

impl Slot {
    /// State of the slot.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            1 => State::Live,
            2 => State::Freed,
            _ => State::Blank,
        }
    }

    /// Say what it is from now on.
    pub fn set(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// It is a freed object's, if it was a living one's: of several callers one gets `true`.
    pub fn leave(&self) -> bool {
        self.state
            .compare_exchange(
                State::Live as u8,
                State::Freed as u8,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Address of the object.
    pub fn address(&self) -> usize {
        self.address.load(Ordering::Relaxed)
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// The calling thread allocates an object here, of which nobody else knows.
    pub fn begin(&self, address: usize, size: usize) {
        self.set(State::Blank);
        self.freed.clear();
        self.address.store(address, Ordering::Relaxed);
        self.size.store(size, Ordering::Relaxed);
        self.allocated.take();
    }

    /// The calling thread frees the object.
    pub fn end(&self) {
        self.freed.take();
    }

    /// Splits `pages` into the parts before and behind the object.
    fn around(&self, pages: Range<usize>) -> [Range<usize>; 2] {
        let (address, size) = (self.address(), self.size());
        [pages.start..address, address + size..pages.end]
    }

    /// Write the pattern into what of `pages` is not the object's.
    pub fn fill(&self, pages: Range<usize>) {
        for part in self.around(pages) {
            // SAFETY: the caller opened the pages, and nobody else knows of them.
            unsafe { (part.start as *mut u8).write_bytes(pattern(), part.len()) };
        }
    }

    /// The first byte that is not the object's and was written to since.
    pub fn damaged(&self, pages: Range<usize>) -> Option<usize> {
        // Behind the object first: more programs write there.
        let [before, behind] = self.around(pages);
        [behind, before].into_iter().flatten().find(|&address| {
            // SAFETY: pages of an object that is not inaccessible yet.
            unsafe { (address as *const u8).read() != pattern() }
        })
    }

    /// Distance of `address` from the object in bytes: 0 in it.
    pub fn distance(&self, address: usize) -> usize {
        let begin = self.address();
        let end = begin + self.size().max(1);
        begin
            .saturating_sub(address)
            .max((address + 1).saturating_sub(end))
    }
}
