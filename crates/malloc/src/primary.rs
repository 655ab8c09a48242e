//! The primary region on `HugeTLB` pages: faults that do not fail, and forks.
//!
//! Such pages come from a pool. A mapping reserves its share, so that a fault finds a page, but for
//! two cases, in which the kernel has nothing better than `SIGBUS`:
//!
//! - A control group (`hugetlb`) refuses the page. So memory is populated when the heap first uses
//!   it, by a call that can say no; ordinary memory then takes the place of the page.
//! - A page is copied on write after a fork, and the pool is empty: reservations are not for copies.
//!   The child dies when it next touches the page, whoever wrote. (On Linux 6.18 a child may even
//!   read zeros where its parent has a page of 1 GB.) So a child trusts none of it: it makes all of
//!   the region ordinary memory, and the parent sends it what the heap uses, before either goes on.
//!   A fork costs as much as copying that twice; `vfork` and `posix_spawn` cost nothing.
//!
//! A gap remains: in a process with threads, the C library touches open `FILE`s in the child before
//! anybody else is asked, and a thread that writes while the parent sends may be seen to have done
//! so before the fork.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use contigua_pageheap::HUGE_BYTES;

use crate::sys;

/// Not in use.
const UNUSED: u8 = 0;
/// Populated, and used by the heap.
const HUGE: u8 = 1;
/// Ordinary memory has taken its place.
const ORDINARY: u8 = 2;

/// Linux 5.14 and later; libc's constant is missing on some targets.
const MADV_POPULATE_WRITE: libc::c_int = 23;

// One thread at a time makes memory usable, which changes these; and every lock is held during a fork.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(HUGE_BYTES);
/// A byte for each 2 MB: one of the constants above.
static STATES: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// The connection through which a parent sends its child what the heap uses: its end, the child's.
static ENDS: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

/// True once a refusal was reported.
static SAID: AtomicBool = AtomicBool::new(false);

/// Begin with a mapping of pages of `page` bytes. False if there is no memory for the records.
pub fn begin(address: usize, bytes: usize, page: usize) -> bool {
    let Some(states) = sys::map(bytes / HUGE_BYTES) else {
        return false;
    };
    STATES.store(states.as_ptr().cast(), Ordering::Relaxed);
    PAGE.store(page, Ordering::Relaxed);
    START.store(address, Ordering::Relaxed);
    END.store(address + bytes, Ordering::Relaxed);
    true
}

/// Returns true if an address belongs to the region.
#[inline]
pub fn contains(address: usize) -> bool {
    (START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&address)
}

/// The states of the huge pages of a range.
fn states(range: core::ops::Range<usize>) -> &'static [AtomicU8] {
    let first = (range.start - START.load(Ordering::Relaxed)) / HUGE_BYTES;
    let count = (range.end - range.start) / HUGE_BYTES;
    // SAFETY: `begin` mapped a byte for each huge page of the region, in which callers' ranges lie;
    // zeros are valid. Needed because records of any size come from the system.
    unsafe { core::slice::from_raw_parts(STATES.load(Ordering::Relaxed).add(first), count) }
}

/// Give the memory that the heap is about to use for the first time, `HugeTLB` pages as far as there
/// are any. False if there is none of either kind.
pub fn back(address: usize, bytes: usize) -> bool {
    let page = PAGE.load(Ordering::Relaxed);
    let mut at = address & !(page - 1);
    while at < address + bytes {
        let all = states(at..at + page);
        // A page of 1 GB is populated once, for the first of its parts.
        let known = all
            .iter()
            .any(|state| state.load(Ordering::Relaxed) != UNUSED);
        if !known && !populate(at, page) {
            if !replace(at, page) {
                return false;
            }
            for state in all {
                state.store(ORDINARY, Ordering::Relaxed);
            }
        }
        at += page;
    }
    for state in states(address..address + bytes) {
        // What was ordinary stays so.
        let _ = state.compare_exchange(UNUSED, HUGE, Ordering::Relaxed, Ordering::Relaxed);
    }
    true
}

/// Fault a page in. A kernel that does not know the call does it at the first access.
fn populate(address: usize, page: usize) -> bool {
    // SAFETY: the range is of the region, and populating changes no contents.
    unsafe {
        libc::madvise(address as *mut libc::c_void, page, MADV_POPULATE_WRITE) == 0
            || sys::errno() == libc::EINVAL
    }
}

/// Put ordinary memory where a page has nothing in use.
fn replace(address: usize, page: usize) -> bool {
    if !map_at(address, page) {
        return false;
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        sys::message(format_args!(
            "the HugeTLB memory of CONTIGUA_MALLOC_PRIMARY was refused half-way (a limit of the \
             control group?); going on with ordinary memory"
        ));
    }
    true
}

/// Zeroed ordinary memory at an address.
fn map_at(address: usize, bytes: usize) -> bool {
    let done = sys::open(address, bytes);
    if done {
        // SAFETY: the pages were just mapped. Advice changes no contents.
        unsafe { libc::madvise(address as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE) };
    }
    done
}

/// Before a fork, with every lock held.
pub fn before_fork() {
    if END.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the array takes two descriptors. Without them the child says so.
    unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
    for (end, known) in ends.into_iter().zip(&ENDS) {
        known.store(end, Ordering::Relaxed);
    }
}

/// Close one end of the connection.
fn close(end: usize) {
    let descriptor = ENDS[end].swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        // SAFETY: this module opened it and nobody else has it.
        unsafe { libc::close(descriptor) };
    }
}

/// The pages of the region that are not ordinary memory yet, each with its states.
fn pages() -> impl Iterator<Item = (usize, &'static [AtomicU8])> {
    let page = PAGE.load(Ordering::Relaxed);
    (START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed))
        .step_by(page)
        .map(move |at| (at, states(at..at + page)))
        .filter(|(_, states)| states[0].load(Ordering::Relaxed) != ORDINARY)
}

/// Offsets of the parts of a page that the heap uses.
fn used(states: &[AtomicU8]) -> impl Iterator<Item = usize> {
    states
        .iter()
        .enumerate()
        .filter(|(_, state)| state.load(Ordering::Relaxed) == HUGE)
        .map(|(index, _)| index * HUGE_BYTES)
}

/// In the parent: send what the heap uses, until the child has it, has ended, or was never made.
pub fn in_parent() {
    close(1);
    let descriptor = ENDS[0].load(Ordering::Relaxed);
    if descriptor >= 0 {
        sys::preserving_errno(|| {
            for (address, states) in pages() {
                if !used(states).all(|offset| send(descriptor, address + offset)) {
                    break;
                }
            }
        });
    }
    close(0);
}

/// Send 2 MB that the heap uses. False if nobody listens any more.
fn send(descriptor: i32, address: usize) -> bool {
    // SAFETY: the heap uses these 2 MB. Not `write`, because the signal of a broken connection would be the program's.
    each_part(address, |from, bytes| unsafe {
        libc::send(descriptor, from, bytes, libc::MSG_NOSIGNAL)
    })
}

/// Receive 2 MB. False if the parent has ended, or could not connect.
fn receive(descriptor: i32, address: usize) -> bool {
    // SAFETY: the caller mapped these 2 MB for this.
    each_part(address, |to, bytes| unsafe {
        libc::recv(descriptor, to, bytes, 0)
    })
}

/// Have `transfer` pass on the 2 MB at an address, in parts of which it says how long they were. False if it fails.
fn each_part(address: usize, transfer: impl Fn(*mut libc::c_void, usize) -> isize) -> bool {
    let mut done = 0;
    while done < HUGE_BYTES {
        let part = transfer((address + done) as *mut libc::c_void, HUGE_BYTES - done);
        if part > 0 {
            done += part as usize;
        } else if part == 0 || sys::errno() != libc::EINTR {
            return false;
        }
    }
    true
}

/// In the child: all of the region becomes ordinary memory. Whether any was.
pub fn in_child() -> bool {
    if END.load(Ordering::Relaxed) == 0 {
        return false;
    }
    close(0);
    let descriptor = ENDS[1].load(Ordering::Relaxed);
    for (address, states) in pages() {
        let done = if used(states).next().is_some() {
            copy(descriptor, address, states)
        } else {
            map_at(address, states.len() * HUGE_BYTES)
        };
        if !done {
            sys::die(format_args!(
                "a forked child gets no copy of its HugeTLB memory at {address:#x}: no memory, no \
                 file descriptor, or its parent has ended"
            ));
        }
    }
    END.store(0, Ordering::Relaxed);
    START.store(0, Ordering::Relaxed);
    close(1);
    true
}

/// Receive what is used of the page at an address into ordinary memory and put that in its place.
fn copy(descriptor: i32, address: usize, states: &[AtomicU8]) -> bool {
    let bytes = states.len() * HUGE_BYTES;
    let Some(start) = sys::map(bytes + HUGE_BYTES) else {
        return false;
    };
    let start = start.as_ptr() as usize;
    // SAFETY: a new mapping at an address of the kernel's choice, which then moves to where the page
    // is; what alignment left over of it goes. Needed because a huge page moves whole only between
    // such addresses, and because the heap's must stay the same.
    unsafe {
        let to = start.next_multiple_of(HUGE_BYTES);
        let before = to - start;
        let fresh = to as *mut libc::c_void;
        libc::madvise(fresh, bytes, libc::MADV_HUGEPAGE);
        if !used(states).all(|offset| receive(descriptor, to + offset)) {
            return false;
        }
        let place = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let at = address as *mut libc::c_void;
        if libc::mremap(fresh, bytes, bytes, place, at) == libc::MAP_FAILED {
            return false;
        }
        if before > 0 {
            libc::munmap(start as *mut libc::c_void, before);
        }
        libc::munmap(fresh.byte_add(bytes), HUGE_BYTES - before);
    }
    true
}
