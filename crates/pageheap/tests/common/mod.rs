//! An operating system for tests: a clock that the test sets, and the contents of every page.

use contigua_pageheap::{Allocated, HUGE_BYTES, METADATA_ALIGN, Metadata, Os, PAGE_BYTES, Span};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::rc::Rc;

pub const SECOND: u64 = 1_000_000_000;
pub const MB: usize = 1 << 20;
pub const MB_PAGES: u32 = (MB / PAGE_BYTES) as u32;

/// Machine of the test: its memory, and switches.
pub struct World {
    pub now: Cell<u64>,
    /// Last value written to a page; a missing one reads as zero.
    pub contents: RefCell<HashMap<usize, u64>>,
    /// Every release: address and bytes.
    pub releases: RefCell<Vec<(usize, usize)>>,
    /// True if released memory reads as zero.
    pub zeroes: Cell<bool>,
    /// Bytes that `back` still gives.
    pub memory: Cell<usize>,
    /// Makes `memory` pay once for an address, for ever; and the addresses that were paid for.
    pub charges_usable: Cell<bool>,
    pub usable: RefCell<HashSet<usize>>,
    /// Bytes that one reservation has at most, and where the next one goes.
    pub largest_reservation: Cell<usize>,
    pub next_address: Cell<usize>,
    /// Bytes of metadata that are still given.
    pub metadata: Cell<usize>,
    pub collapses: Cell<u32>,
    pub collapse_works: Cell<bool>,
    pub release_works: Cell<bool>,
    pub clock_reads: Cell<u64>,
}

impl World {
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            now: Cell::new(1000 * SECOND),
            contents: RefCell::default(),
            releases: RefCell::default(),
            zeroes: Cell::new(true),
            memory: Cell::new(usize::MAX),
            charges_usable: Cell::new(false),
            usable: RefCell::default(),
            largest_reservation: Cell::new(usize::MAX),
            next_address: Cell::new(1 << 40),
            metadata: Cell::new(usize::MAX),
            collapses: Cell::new(0),
            collapse_works: Cell::new(true),
            release_works: Cell::new(true),
            clock_reads: Cell::new(0),
        })
    }

    pub fn pass(&self, time: u64) {
        self.now.set(self.now.get() + time);
    }

    /// Returns true if all pages are zero but those reported dirty.
    pub fn is_zero(&self, found: &Allocated) -> bool {
        let contents = self.contents.borrow();
        let dirty = found.dirty();
        pages(found.span)
            .enumerate()
            .filter(|(index, _)| !dirty.contains(&(index * PAGE_BYTES)))
            .all(|(_, page)| !contents.contains_key(&page))
    }

    pub fn write(&self, span: Span, stamp: u64) {
        let mut contents = self.contents.borrow_mut();
        for page in pages(span) {
            contents.insert(page, stamp);
        }
    }

    pub fn holds(&self, span: Span, stamp: u64) -> bool {
        let contents = self.contents.borrow();
        pages(span).all(|page| contents.get(&page) == Some(&stamp))
    }
}

fn pages(span: Span) -> impl Iterator<Item = usize> {
    (span.address..span.end()).step_by(PAGE_BYTES)
}

pub struct TestOs {
    world: Rc<World>,
    metadata: Vec<(NonNull<u8>, Layout)>,
}

impl TestOs {
    pub fn new(world: &Rc<World>) -> Self {
        Self {
            world: world.clone(),
            metadata: Vec::new(),
        }
    }
}

impl Drop for TestOs {
    fn drop(&mut self) {
        for &(start, layout) in &self.metadata {
            // SAFETY: allocated below with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

impl Os for TestOs {
    fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
        let left = self.world.metadata.get().checked_sub(bytes)?;
        self.world.metadata.set(left);
        let layout = Layout::from_size_align(bytes, METADATA_ALIGN).ok()?;
        // SAFETY: the heap asks for more than nothing; the memory is new, zero, aligned, and freed
        // when this is dropped.
        unsafe {
            let start = NonNull::new(alloc_zeroed(layout))?;
            self.metadata.push((start, layout));
            Some(Metadata::new(start, bytes))
        }
    }

    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize> {
        if bytes > self.world.largest_reservation.get() {
            return None;
        }
        let address = self
            .world
            .next_address
            .get()
            .checked_next_multiple_of(align)?;
        self.world.next_address.set(address.checked_add(bytes)?);
        Some(address)
    }

    fn back(&mut self, address: usize, bytes: usize) -> bool {
        assert!(address.is_multiple_of(HUGE_BYTES) && bytes.is_multiple_of(HUGE_BYTES));
        let mut usable = self.world.usable.borrow_mut();
        let fresh = (address..address + bytes)
            .step_by(HUGE_BYTES)
            .filter(|at| !self.world.charges_usable.get() || !usable.contains(at));
        let cost = fresh.count() * HUGE_BYTES;
        let Some(left) = self.world.memory.get().checked_sub(cost) else {
            return false;
        };
        self.world.memory.set(left);
        usable.extend((address..address + bytes).step_by(HUGE_BYTES));
        true
    }

    fn release(&mut self, address: usize, bytes: usize) -> bool {
        assert!(bytes > 0);
        if !self.world.release_works.get() {
            return false;
        }
        self.world.releases.borrow_mut().push((address, bytes));
        if self.world.memory.get() < usize::MAX / 2 && !self.world.charges_usable.get() {
            self.world.memory.set(self.world.memory.get() + bytes);
        }
        let span = Span {
            address,
            pages: (bytes / PAGE_BYTES) as u32,
        };
        let mut contents = self.world.contents.borrow_mut();
        for page in pages(span) {
            if self.world.zeroes.get() {
                contents.remove(&page);
            } else {
                contents.insert(page, u64::MAX);
            }
        }
        true
    }

    fn release_zeroes(&self) -> bool {
        self.world.zeroes.get()
    }

    fn collapse(&mut self, _address: usize) -> bool {
        self.world.collapses.set(self.world.collapses.get() + 1);
        self.world.collapse_works.get()
    }

    fn now(&self) -> u64 {
        self.world.clock_reads.set(self.world.clock_reads.get() + 1);
        self.world.now.get()
    }
}
