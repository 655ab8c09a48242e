//! Central caches: the spans of a class, and the objects that are in them.
//!
//! Spans with free objects are in lists by how full they are, and the fullest give first, so that
//! nearly empty spans get a chance to become empty and go back to the page heap.

use core::ptr::{NonNull, null_mut};

use crate::classes::{CLASSES, COUNT, MAX_BATCH};
use crate::lock::{Guarded, Lock};
use crate::pagemap::PAGE_BYTES;
use crate::span::{NO_LIST, Span};
use crate::{pagemap, pages, sys};

const LISTS: usize = 8;

struct Central {
    lists: [*mut Span; LISTS],
    spans: usize,
    free: usize,
}

static CENTRAL: [Guarded<Central>; COUNT] = [const {
    Guarded::new(Central {
        lists: [null_mut(); LISTS],
        spans: 0,
        free: 0,
    })
}; COUNT];

/// What a class has.
#[derive(Clone, Copy, Default)]
pub struct Occupancy {
    /// Spans.
    pub spans: usize,
    /// Objects that are in them.
    pub free: usize,
}

/// The lock of a class, for the fork handlers.
pub fn lock(class: usize) -> &'static Lock {
    &CENTRAL[class].lock
}

/// What `class` has now.
pub fn occupancy(class: usize) -> Occupancy {
    let central = CENTRAL[class].lock();
    Occupancy {
        spans: central.spans,
        free: central.free,
    }
}

/// What `class` has now, unless its lock is held.
pub fn try_occupancy(class: usize) -> Option<Occupancy> {
    let central = CENTRAL[class].try_lock()?;
    Some(Occupancy {
        spans: central.spans,
        free: central.free,
    })
}

/// The list for a span with `free` of its class's objects in it; the last one is for empty spans.
fn list_for(free: u16, class: usize) -> u8 {
    if free == 0 {
        NO_LIST
    } else {
        (usize::from(free) * (LISTS - 1) / usize::from(CLASSES[class].objects)) as u8
    }
}

impl Central {
    /// Move a span to the list that its occupancy asks for.
    ///
    /// # Safety
    /// The span belongs to this central cache.
    unsafe fn file(&mut self, span: *mut Span, list: u8) {
        // SAFETY: spans of a class are changed under its lock only, which the caller has; links
        // lead to living spans of the same class. Needed because spans are linked by raw pointers.
        unsafe {
            let old = (*span).list;
            if old == list {
                return;
            }
            if old != NO_LIST {
                let (next, previous) = ((*span).next, (*span).previous);
                if previous.is_null() {
                    self.lists[usize::from(old)] = next;
                } else {
                    (*previous).next = next;
                }
                if !next.is_null() {
                    (*next).previous = previous;
                }
            }
            (*span).list = list;
            if list != NO_LIST {
                let first = self.lists[usize::from(list)];
                (*span).next = first;
                (*span).previous = null_mut();
                if !first.is_null() {
                    (*first).previous = span;
                }
                self.lists[usize::from(list)] = span;
            }
        }
    }

    /// File a span, if it is one, where its occupancy says.
    ///
    /// # Safety
    /// As `file`.
    unsafe fn settle(&mut self, span: *mut Span, class: usize) {
        if !span.is_null() {
            // SAFETY: the caller's promise.
            unsafe {
                let list = list_for((*span).free, class);
                self.file(span, list);
            }
        }
    }

    fn take(&mut self, class: usize, out: &mut [usize]) -> usize {
        let mut taken = 0;
        for list in 0..LISTS {
            while taken < out.len() && !self.lists[list].is_null() {
                let span = self.lists[list];
                // SAFETY: lists hold living spans of this class, and the lock is held.
                unsafe {
                    taken += (*span).take(&mut out[taken..]);
                    let list = list_for((*span).free, class);
                    self.file(span, list);
                }
            }
        }
        self.free -= taken;
        taken
    }
}

/// Take objects out of spans, at least one unless there is no memory; how many it were.
pub fn take(class: usize, out: &mut [usize]) -> usize {
    let taken = CENTRAL[class].lock().take(class, out);
    if taken > 0 {
        return taken;
    }
    let Some(span) = new_span(class) else {
        return 0;
    };
    let mut central = CENTRAL[class].lock();
    let taken = central.take(class, out);
    if taken > 0 {
        // Somebody else was quicker. Filed with all of its objects the span would stay here until
        // one of them is used: only what comes back makes a span go.
        drop(central);
        give_up(span);
        return taken;
    }
    central.spans += 1;
    central.free += usize::from(CLASSES[class].objects);
    // SAFETY: the span is new and of this class.
    unsafe {
        let list = list_for((*span.as_ptr()).free, class);
        central.file(span.as_ptr(), list);
    }
    central.take(class, out)
}

fn new_span(class: usize) -> Option<NonNull<Span>> {
    let count = usize::from(CLASSES[class].pages);
    let found = pages::allocate(count, 1)?;
    let span = Span::create(found.address, count as u32, class);
    if let Some(span) = span {
        if pagemap::enter_small(found.address, count, class, span) {
            return Some(span);
        }
        // SAFETY: nobody has seen the span.
        unsafe { Span::recycle(span) };
    }
    pages::free(found.address, count);
    None
}

/// Put objects back into their spans; spans that become empty go back to the page heap.
pub fn give(class: usize, objects: &[usize]) {
    let mut empty = [null_mut::<Span>(); MAX_BATCH];
    for part in objects.chunks(MAX_BATCH) {
        let mut count = 0;
        {
            // The metadata of objects that were freed in no order is cold: ask for all of it at once.
            for &object in part {
                if let Some(span) = pagemap::span(object) {
                    pagemap::prefetch(span.as_ptr() as usize);
                }
            }
            let mut central = CENTRAL[class].lock();
            let (mut span, mut begin, mut end) = (null_mut::<Span>(), 0, 0);
            for &object in part {
                // Neighbours in a batch often are neighbours in memory.
                if object < begin || object >= end {
                    // SAFETY: as below.
                    unsafe { central.settle(span, class) };
                    let Some(found) = pagemap::span(object) else {
                        invalid(object);
                    };
                    span = found.as_ptr();
                    // SAFETY: an object that is out keeps its span alive, and the lock is held.
                    unsafe {
                        if usize::from((*span).class) != class {
                            invalid(object);
                        }
                        begin = (*span).address;
                        end = begin + (*span).pages as usize * PAGE_BYTES;
                    }
                }
                // SAFETY: as above.
                unsafe {
                    if !(*span).put(object) {
                        invalid(object);
                    }
                    central.free += 1;
                    if (*span).free == CLASSES[class].objects {
                        central.file(span, NO_LIST);
                        central.spans -= 1;
                        central.free -= usize::from((*span).free);
                        empty[count] = span;
                        count += 1;
                        (span, begin, end) = (null_mut(), 0, 0);
                    }
                }
            }
            // SAFETY: as above.
            unsafe { central.settle(span, class) };
        }
        empty[..count]
            .iter()
            .filter_map(|&span| NonNull::new(span))
            .for_each(give_up);
    }
}

/// Give a span that is in no list, and none of whose objects are out, back to the page heap.
fn give_up(span: NonNull<Span>) {
    // SAFETY: nobody else knows the span any more. Needed because spans are known by pointers.
    unsafe {
        let (address, count) = ((*span.as_ptr()).address, (*span.as_ptr()).pages as usize);
        pagemap::leave(address, count);
        Span::recycle(span);
        pages::free(address, count);
    }
}

#[cold]
fn invalid(object: usize) -> ! {
    sys::die(format_args!(
        "double or invalid free of {object:#x}, found when it went back to its span"
    ))
}
