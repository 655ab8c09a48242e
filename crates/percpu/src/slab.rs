//! The memory layout of a slab: for each class a stack of words, the addresses of objects.
//!
//! A slab belongs to one CPU or to one thread. It begins with one header word per class, of four
//! 16-bit fields, all indices of words in the slab:
//!
//! | bits | field | |
//! |---|---|---|
//! | 0..16 | `current` | first free slot; the stack's top lies below it |
//! | 16..32 | `begin` | first slot of the class; 0 as long as the class was never used here |
//! | 32..48 | `end` | behind the last slot that may be used now |
//! | 48..64 | `held` | misses before the stack may grow again |
//!
//! Only who owns the slab changes `current` (for a CPU: a restartable sequence on it). `end` is a
//! policy that anybody may change between `begin` and `begin + slots`. The word of class 0 keeps
//! the slab's remaining budget in bytes, the class that is next to give some up, and the pops that are
//! left before one fails. A word behind the
//! headers counts misses: one for all CPUs would go from one's cache to the other's at each miss.

use core::sync::atomic::{AtomicI32, AtomicU16, AtomicU64, AtomicUsize, Ordering};

/// Objects that a stack may hold when it is used for the first time: what is handed over is
/// touched, so a class that is hardly used should not begin with a batch. Our choice.
const FIRST_STEP: u16 = 4;

/// log2 of the bytes in a slab.
pub const SLAB_SHIFT: u32 = 19;
/// Bytes in a slab; most of them are never touched.
pub const SLAB_BYTES: usize = 1 << SLAB_SHIFT;
/// Words in a slab.
pub const SLAB_WORDS: usize = SLAB_BYTES / 8;

/// Words of a slab before the first stack: headers of so many classes, and two counts, in whole cache lines.
pub const fn header_words(classes: usize) -> usize {
    (classes + 2).next_multiple_of(8)
}

/// Slots and batch of a class's stack.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// Bytes in an object.
    pub size: u32,
    /// Most objects in the stack.
    pub slots: u16,
    /// Index of its first slot, in words.
    pub first_slot: u16,
    /// Objects that move between the stack and others at once.
    pub batch: u16,
}

/// A slab by its address.
#[derive(Clone, Copy, Debug)]
pub struct Slab {
    address: usize,
    stacks: &'static [Stack],
}

impl Slab {
    /// The slab at `address`, with a stack for each class but class 0.
    ///
    /// # Safety
    /// [`SLAB_BYTES`] of zeroed or initialized slab memory lie there and stay mapped; the stacks lie in them,
    /// behind [`header_words`] and apart from each other; and all methods are called with classes that have one.
    pub const unsafe fn at(address: usize, stacks: &'static [Stack]) -> Self {
        Self { address, stacks }
    }

    fn field(self, class: usize, offset: usize) -> &'static AtomicU16 {
        debug_assert!(class < self.stacks.len() && offset < 8);
        // SAFETY: `at` promised a mapped slab, and headers are its first words; all access
        // to headers is atomic. Needed because slabs come from the system.
        unsafe { &*((self.address + class * 8 + offset) as *const AtomicU16) }
    }

    /// First free slot of `class`.
    pub fn current(self, class: usize) -> &'static AtomicU16 {
        self.field(class, 0)
    }

    /// First slot of `class`, or 0.
    pub fn begin(self, class: usize) -> u16 {
        self.field(class, 2).load(Ordering::Relaxed)
    }

    /// Behind the last slot of `class` that may be used now.
    pub fn end(self, class: usize) -> &'static AtomicU16 {
        self.field(class, 4)
    }

    /// Misses of `class` before its stack may grow again, for those who close it.
    pub fn held(self, class: usize) -> &'static AtomicU16 {
        self.field(class, 6)
    }

    /// Objects of `class` that are in the slab.
    pub fn length(self, class: usize) -> usize {
        usize::from(
            self.current(class)
                .load(Ordering::Relaxed)
                .saturating_sub(self.begin(class)),
        )
    }

    /// Objects of `class` that may be in the slab.
    pub fn capacity(self, class: usize) -> usize {
        usize::from(
            self.end(class)
                .load(Ordering::Relaxed)
                .saturating_sub(self.begin(class)),
        )
    }

    /// The header of an empty stack without capacity.
    pub fn empty_header(self, class: usize) -> u64 {
        let first = u64::from(self.stacks[class].first_slot);
        first | first << 16 | first << 32
    }

    /// The whole header of `class`.
    pub fn header(self, class: usize) -> &'static AtomicU64 {
        debug_assert!(class < self.stacks.len());
        // SAFETY: as in `field`; headers are words.
        unsafe { &*((self.address + class * 8) as *const AtomicU64) }
    }

    /// Bytes that capacities may still grow by. Starts at 0 and counts down; see `grow`.
    fn used(self) -> &'static AtomicI32 {
        // SAFETY: as in `field`; class 0 has no stack.
        unsafe { &*(self.address as *const AtomicI32) }
    }

    fn hand(self) -> &'static AtomicU16 {
        self.field(0, 4)
    }

    /// Pops that are left before one fails, or 0 for 65,536. For the slab's owner.
    pub fn pops_left(self) -> &'static AtomicU16 {
        self.field(0, 6)
    }

    /// Counts a pop of a slab that belongs to a thread; whether it is to fail.
    pub fn fails(self) -> bool {
        let left = self.pops_left().load(Ordering::Relaxed).wrapping_sub(1);
        self.pops_left().store(left, Ordering::Relaxed);
        left == 0
    }

    /// Number of times that a stack had to be refilled or emptied. Increments by two threads at
    /// once may count as one.
    pub fn misses(self) -> &'static AtomicUsize {
        // SAFETY: as in `field`; the word behind the headers.
        unsafe { &*((self.address + self.stacks.len() * 8) as *const AtomicUsize) }
    }

    /// Returns true if the stack of `class` may hold more.
    pub fn may_grow(self, class: usize) -> bool {
        self.capacity(class) < usize::from(self.stacks[class].slots)
    }

    /// Number of classes that the slab's users looked at; for them alone. Two threads at once may
    /// count as one.
    pub fn seen(self) -> &'static AtomicUsize {
        // SAFETY: as in `misses`; the word behind that.
        unsafe { &*((self.address + self.stacks.len() * 8 + 8) as *const AtomicUsize) }
    }

    /// Let `class` hold twice as much, but at least four objects and at most a batch more, within
    /// `budget` bytes for all classes together. `false` if it may not.
    pub fn grow(self, class: usize, budget: i32) -> bool {
        let known = &self.stacks[class];
        let end = self.end(class).load(Ordering::Relaxed);
        let most = known.first_slot + known.slots;
        if end >= most {
            return false;
        }
        let step = (self.capacity(class) as u16)
            .max(FIRST_STEP)
            .min(known.batch)
            .min(most - end);
        let bytes = i32::from(step) * known.size.cast_signed();
        if self.used().fetch_add(bytes, Ordering::Relaxed) + bytes > budget {
            self.used().fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        let grown = self
            .end(class)
            .compare_exchange(end, end + step, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if !grown {
            self.used().fetch_sub(bytes, Ordering::Relaxed);
        }
        grown
    }

    /// Take all capacity from `class`. It may then hold more objects; the caller moves those away.
    pub fn close(self, class: usize) {
        let (begin, end) = (self.begin(class), self.end(class).load(Ordering::Relaxed));
        let closed = end > begin
            && self
                .end(class)
                .compare_exchange(end, begin, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if closed {
            let bytes = i32::from(end - begin) * self.stacks[class].size.cast_signed();
            self.used().fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Take one batch of capacity from the next class that has some, and say which class it was.
    /// It may then hold more objects than its capacity; the caller moves those away.
    pub fn shrink_next(self, except: usize) -> Option<usize> {
        for _ in 0..16 {
            let class = 1 + usize::from(self.hand().fetch_add(1, Ordering::Relaxed))
                % (self.stacks.len() - 1);
            let known = &self.stacks[class];
            let capacity = self.capacity(class) as u16;
            if class == except || capacity == 0 {
                continue;
            }
            let step = known.batch.min(capacity);
            let end = self.end(class).load(Ordering::Relaxed);
            if self
                .end(class)
                .compare_exchange(end, end - step, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                self.used().fetch_sub(
                    i32::from(step) * known.size.cast_signed(),
                    Ordering::Relaxed,
                );
                return Some(class);
            }
        }
        None
    }

    fn slot(self, index: u16) -> *mut usize {
        (self.address + usize::from(index) * 8) as *mut usize
    }

    /// An object of the stack, the lowest first.
    ///
    /// # Safety
    /// No thread changes the stack, and `index` is below its length.
    pub unsafe fn item(self, class: usize, index: usize) -> usize {
        // SAFETY: the caller's promise: a slot of this class in the slab.
        unsafe { self.slot(self.begin(class) + index as u16).read() }
    }

    /// Take the object on top.
    ///
    /// # Safety
    /// No other thread takes or puts at the same time.
    pub unsafe fn pop(self, class: usize) -> Option<usize> {
        let current = self.current(class).load(Ordering::Relaxed);
        if current <= self.begin(class) {
            return None;
        }
        // SAFETY: `begin <= current - 1 < begin + slots`: a slot of this class in the slab.
        let item = unsafe { self.slot(current - 1).read() };
        self.current(class).store(current - 1, Ordering::Relaxed);
        Some(item)
    }

    /// Put an object on top; `false` if the stack is full.
    ///
    /// # Safety
    /// No other thread takes or puts at the same time.
    pub unsafe fn push(self, class: usize, item: usize) -> bool {
        let current = self.current(class).load(Ordering::Relaxed);
        if current >= self.end(class).load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: `current < end <= begin + slots`: a slot of this class in the slab.
        unsafe { self.slot(current).write(item) };
        self.current(class).store(current + 1, Ordering::Relaxed);
        true
    }
}
