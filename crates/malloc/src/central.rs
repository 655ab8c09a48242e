//! Central caches: the spans of a class, and the objects that are in them.
//!
//! Spans with free objects are in lists by how full they are, and the fullest give first, so that
//! nearly empty spans get a chance to become empty and go back to the page heap.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::classes::{CLASSES, COUNT, MAX_BATCH};
use crate::lock::{Guarded, Lock};
use crate::sizes::PAGE_SHIFT;
use crate::span::{Carved, NO_LIST, Span};
use crate::{harden, heap, pagemap, pages, sys};

const LISTS: usize = 8;
/// Bytes of a class that are free in spans from which on these may be sparse. Our choice.
const SPARSE_BYTES: usize = 256 << 10;

struct Central {
    /// Spans with objects to give.
    lists: [*mut Span; LISTS],
    /// The span that is being carved, or null: there is at most one.
    fresh: *mut Span,
    spans: usize,
    free: usize,
}

/// A central cache, and its counts as the lock's last holder left them, for those who only count.
struct Counted {
    central: Guarded<Central>,
    spans: AtomicUsize,
    free: AtomicUsize,
}

static CENTRAL: [Counted; COUNT] = [const {
    Counted {
        central: Guarded::new(Central {
            lists: [null_mut(); LISTS],
            fresh: null_mut(),
            spans: 0,
            free: 0,
        }),
        spans: AtomicUsize::new(0),
        free: AtomicUsize::new(0),
    }
}; COUNT];

/// Spans and free objects of a class.
#[derive(Clone, Copy, Default)]
pub struct Occupancy {
    /// Spans.
    pub spans: usize,
    /// Objects that are in them.
    pub free: usize,
}

/// The lock of a class, for the fork handlers.
pub fn lock(class: usize) -> &'static Lock {
    &CENTRAL[class].central.lock
}

/// Returns the occupancy of `class`, without its lock.
pub fn occupancy(class: usize) -> Occupancy {
    Occupancy {
        spans: CENTRAL[class].spans.load(Ordering::Relaxed),
        free: CENTRAL[class].free.load(Ordering::Relaxed),
    }
}

/// Returns true if much of the memory of a class is free in its spans.
pub fn is_sparse(class: usize) -> bool {
    let Occupancy { spans, free } = occupancy(class);
    let known = &CLASSES[class];
    free * known.size as usize >= SPARSE_BYTES && free * 4 >= spans * usize::from(known.objects)
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

    /// File a span where its occupancy says.
    ///
    /// # Safety
    /// As `file`.
    unsafe fn settle(&mut self, span: *mut Span, class: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let list = if (*span).is_bare() {
                NO_LIST
            } else {
                list_for((*span).free, class)
            };
            self.file(span, list);
        }
    }

    /// Take objects that lie in spans, up to `out.len()`; returns the number taken.
    fn take(&mut self, class: usize, out: &mut [usize]) -> usize {
        let mut taken = 0;
        for list in 0..LISTS {
            while taken < out.len() && !self.lists[list].is_null() {
                let span = self.lists[list];
                // SAFETY: lists hold living spans of this class, and the lock is held.
                unsafe {
                    taken += (*span).take(&mut out[taken..]);
                    self.settle(span, class);
                }
            }
        }
        self.free -= taken;
        taken
    }

    /// Carve at least `wanted` objects, if the span that is being carved has as many. They are the
    /// caller's, who has to [`open`] them.
    fn carve(&mut self, class: usize, wanted: usize) -> Option<Carved> {
        let span = NonNull::new(self.fresh)?;
        // SAFETY: `fresh` is a living span of this class, and the lock is held.
        let (carved, whole) = unsafe {
            let carved = (*span.as_ptr()).carve(wanted);
            let whole = (*span.as_ptr()).carved == CLASSES[class].objects;
            (carved, whole)
        };
        if whole {
            self.fresh = null_mut();
        }
        self.free -= carved.count();
        Some(carved)
    }

    /// Carve a new span, unless there are objects in others.
    fn begin(&mut self, class: usize, span: NonNull<Span>, wanted: usize) -> Option<Carved> {
        if !self.fresh.is_null() || self.lists.iter().any(|first| !first.is_null()) {
            return None;
        }
        self.spans += 1;
        self.free += usize::from(CLASSES[class].objects);
        self.fresh = span.as_ptr();
        let carved = self.carve(class, wanted);
        self.tell(class);
        carved
    }

    /// Say how much there is to those who only count.
    fn tell(&self, class: usize) {
        CENTRAL[class].spans.store(self.spans, Ordering::Relaxed);
        CENTRAL[class].free.store(self.free, Ordering::Relaxed);
    }
}

/// Take objects out of spans, at least one unless there is no memory; returns the number taken.
pub fn take(class: usize, out: &mut [usize]) -> usize {
    let mut taken = 0;
    loop {
        let carved = {
            let mut central = CENTRAL[class].central.lock();
            taken += central.take(class, &mut out[taken..]);
            let carved = if taken < out.len() {
                central.carve(class, out.len() - taken)
            } else {
                None
            };
            central.tell(class);
            carved
        };
        if let Some(carved) = carved {
            return taken + finish(class, &carved, &mut out[taken..]);
        }
        if taken > 0 {
            return taken;
        }
        let Some(span) = new_span(class) else {
            return 0;
        };
        let carved = CENTRAL[class].central.lock().begin(class, span, out.len());
        match carved {
            Some(carved) => return finish(class, &carved, out),
            // Somebody else was faster. A span that nobody takes from would stay here for ever: only
            // what comes back makes a span go.
            None => give_up(span),
        }
    }
}

/// Hand out carved objects, and put those that are left into their span; returns the number handed
/// out.
fn finish(class: usize, carved: &Carved, out: &mut [usize]) -> usize {
    // Without the lock: it touches memory for the first time.
    open(class, carved);
    let count = carved.count().min(out.len());
    for (slot, object) in out.iter_mut().zip(carved.objects()) {
        *slot = object;
    }
    if count < carved.count() {
        let mut central = CENTRAL[class].central.lock();
        // SAFETY: the objects are out, which keeps their span alive, and the lock is held.
        unsafe {
            (*carved.span).put_rest(carved, count);
            central.settle(carved.span, class);
        }
        central.free += carved.count() - count;
        central.tell(class);
    }
    count
}

/// Give carved objects canaries, and their pages tags.
fn open(class: usize, carved: &Carved) {
    let poisoned = harden::is_on();
    for object in carved.objects() {
        // SAFETY: an object of at least a word begins here that nobody but the caller has. Needed
        // because what is free has a canary.
        unsafe { heap::write_canary(object) };
        if poisoned {
            harden::poison(object, carved.size);
        }
    }
    pagemap::open(carved.address, carved.pages.clone(), class);
}

fn new_span(class: usize) -> Option<NonNull<Span>> {
    let count = usize::from(CLASSES[class].pages);
    let found = pages::allocate(count, 1)?;
    let span = Span::create(found.address, count as u32, class);
    if let Some(span) = span {
        if pagemap::enter_small(found.address, count, span) {
            return Some(span);
        }
        // SAFETY: the span is not published yet.
        unsafe { Span::recycle(span) };
    }
    pages::free(found.address, count);
    None
}

/// Put objects back into their spans; spans that become empty go back to the page heap.
pub fn give(class: usize, objects: &[usize]) {
    for part in objects.chunks(MAX_BATCH) {
        // The metadata of objects that were freed in no order is cold: ask for all of it at once.
        let mut page = 0;
        for &object in part {
            if object >> PAGE_SHIFT != page
                && let Some(span) = pagemap::span(object)
            {
                page = object >> PAGE_SHIFT;
                pagemap::prefetch(span.as_ptr() as usize);
            }
        }
        let mut empty = null_mut::<Span>();
        {
            let mut central = CENTRAL[class].central.lock();
            let mut rest = part;
            while let Some(&object) = rest.first() {
                let Some(span) = pagemap::span(object) else {
                    invalid(object);
                };
                let span = span.as_ptr();
                // SAFETY: an object that is out keeps its span alive, and the lock is held.
                unsafe {
                    if usize::from((*span).class) != class {
                        invalid(object);
                    }
                    let count = match (*span).put(rest) {
                        Ok(0) => invalid(object),
                        Ok(count) => count,
                        Err(object) => invalid(object),
                    };
                    rest = &rest[count..];
                    central.free += count;
                    if (*span).free < CLASSES[class].objects {
                        central.settle(span, class);
                        continue;
                    }
                    central.file(span, NO_LIST);
                    if central.fresh == span {
                        central.fresh = null_mut();
                    }
                    central.spans -= 1;
                    central.free -= usize::from((*span).free);
                    (*span).next = empty;
                    empty = span;
                }
            }
            central.tell(class);
        }
        while let Some(span) = NonNull::new(empty) {
            // SAFETY: nobody else knows a span that is in no list and none of whose objects are out.
            empty = unsafe { (*span.as_ptr()).next };
            give_up(span);
        }
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
