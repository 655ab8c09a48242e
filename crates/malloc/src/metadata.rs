//! Memory that metadata comes from: some stays for ever, that of spans goes back.
//!
//! Metadata of spans is in chunks of blocks of one size. A chunk of which nothing is in use any more keeps its
//! first page only, so that a program that once had gigabytes of small objects does not keep their
//! metadata (0.6 %).

use core::ptr::{NonNull, null_mut};

use crate::lock::{Guarded, Lock};
use crate::sys;

/// Bytes of a chunk, which begins at a multiple of them.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of addresses that chunks are cut from.
const AREA_BYTES: usize = 2 << 20;
/// Bytes of a mapping for what stays.
const PERMANENT_BYTES: usize = 256 << 10;
/// Sizes of blocks at most.
pub const KINDS: usize = 8;

/// Header of a chunk. Changed under the pool's lock.
#[repr(C, align(64))]
struct Chunk {
    /// Neighbors in the list of chunks of its kind that have room, or of the empty ones.
    next: *mut Chunk,
    previous: *mut Chunk,
    /// Blocks that were given back.
    recycled: *mut Block,
    /// Bytes from the chunk's beginning that were ever given out.
    used: usize,
    /// Blocks in use.
    live: usize,
    kind: usize,
    bytes: usize,
}

/// A block that is not in use.
struct Block {
    next: *mut Block,
}

struct Pool {
    /// Chunks with room, by kind.
    room: [*mut Chunk; KINDS],
    /// An empty chunk that still has its memory, and those that have not.
    spare: *mut Chunk,
    empty: *mut Chunk,
    /// Addresses for chunks.
    area: usize,
    area_end: usize,
    /// Memory that is never given back.
    next: usize,
    end: usize,
}

static POOL: Guarded<Pool> = Guarded::new(Pool {
    room: [null_mut(); KINDS],
    spare: null_mut(),
    empty: null_mut(),
    area: 0,
    area_end: 0,
    next: 0,
    end: 0,
});

/// The pool's lock, for the fork handlers.
pub fn lock() -> &'static Lock {
    &POOL.lock
}

/// Memory that is never returned, zeroed and aligned to 64 bytes.
pub fn permanent(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.next_multiple_of(64);
    if bytes > PERMANENT_BYTES / 4 {
        return sys::map(bytes);
    }
    supplied(PERMANENT_BYTES, |pool, fresh| {
        if pool.end - pool.next < bytes {
            pool.next = fresh.take()?;
            pool.end = pool.next + PERMANENT_BYTES;
        }
        pool.next += bytes;
        NonNull::new((pool.next - bytes) as *mut u8)
    })
}

/// Do something with the pool that may need a mapping of so many bytes and then takes it: the system maps
/// without the pool's lock.
fn supplied<T>(
    bytes: usize,
    act: impl Fn(&mut Pool, &mut Option<usize>) -> Option<T>,
) -> Option<T> {
    let mut fresh = None;
    loop {
        let done = act(&mut POOL.lock(), &mut fresh);
        if let Some(done) = done {
            // Another thread was faster.
            if let Some(address) = fresh {
                sys::unmap(address as *mut u8, bytes);
            }
            return Some(done);
        }
        fresh = Some(sys::map(bytes)?.as_ptr() as usize);
    }
}

/// A block of a kind, whose blocks all have so many bytes: a multiple of 8. Its contents are anything.
pub fn take(kind: usize, bytes: usize) -> Option<NonNull<u64>> {
    supplied(AREA_BYTES, |pool, fresh| pool.take(kind, bytes, fresh))
}

/// Take a block back. To be called without a lock.
///
/// # Safety
/// It came from [`take`], and nobody uses it again.
pub unsafe fn give(block: NonNull<u64>) {
    let chunk = (block.as_ptr() as usize & !(CHUNK_BYTES - 1)) as *mut Chunk;
    let mut pool = POOL.lock();
    // SAFETY: blocks lie in their chunks, which are theirs who has the lock; the caller gives the block up.
    unsafe {
        if is_full(chunk) {
            pool.link(chunk);
        }
        let block = block.cast::<Block>().as_ptr();
        block.write(Block {
            next: (*chunk).recycled,
        });
        (*chunk).recycled = block;
        (*chunk).live -= 1;
        let others = !(*chunk).next.is_null() || !(*chunk).previous.is_null();
        if (*chunk).live > 0 || !others {
            return;
        }
        pool.unlink(chunk);
        if pool.spare.is_null() {
            pool.spare = chunk;
            return;
        }
        let used = (*chunk).used;
        drop(pool);
        let kept = sys::page_bytes();
        let gone = used.next_multiple_of(kept).saturating_sub(kept);
        sys::discard(chunk as usize + kept, gone);
        let mut pool = POOL.lock();
        (*chunk).next = pool.empty;
        pool.empty = chunk;
    }
}

/// Returns true if a chunk has no room.
///
/// # Safety
/// The caller has the pool's lock, and this is a chunk in use.
unsafe fn is_full(chunk: *mut Chunk) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*chunk).recycled.is_null() && (*chunk).used + (*chunk).bytes > CHUNK_BYTES }
}

impl Pool {
    /// See [`take`].
    fn take(
        &mut self,
        kind: usize,
        bytes: usize,
        area: &mut Option<usize>,
    ) -> Option<NonNull<u64>> {
        if self.room[kind].is_null() {
            let fresh = self.fresh(area)?;
            // SAFETY: nobody else knows the chunk, whose memory is ours. Needed because metadata lies outside of
            // Rust's heap; so in all of this module.
            unsafe {
                fresh.write(Chunk {
                    next: null_mut(),
                    previous: null_mut(),
                    recycled: null_mut(),
                    used: size_of::<Chunk>(),
                    live: 0,
                    kind,
                    bytes,
                });
                self.link(fresh);
            }
        }
        let chunk = self.room[kind];
        // SAFETY: chunks in lists are whole, and theirs who has the lock; what was given back is a `Block`.
        unsafe {
            let mut block = (*chunk).recycled;
            if block.is_null() {
                block = (chunk as usize + (*chunk).used) as *mut Block;
                (*chunk).used += bytes;
            } else {
                (*chunk).recycled = (*block).next;
            }
            (*chunk).live += 1;
            if is_full(chunk) {
                self.unlink(chunk);
            }
            NonNull::new(block.cast())
        }
    }

    /// A chunk of which nothing is in use, in no list; none if that needs an area.
    fn fresh(&mut self, area: &mut Option<usize>) -> Option<*mut Chunk> {
        if !self.spare.is_null() {
            return Some(core::mem::replace(&mut self.spare, null_mut()));
        }
        if !self.empty.is_null() {
            let chunk = self.empty;
            // SAFETY: empty chunks have their first page and are linked through `next`.
            self.empty = unsafe { (*chunk).next };
            return Some(chunk);
        }
        if self.area_end - self.area < CHUNK_BYTES {
            let area = area.take()?;
            self.area = area.next_multiple_of(CHUNK_BYTES);
            self.area_end = area + AREA_BYTES;
        }
        self.area += CHUNK_BYTES;
        Some((self.area - CHUNK_BYTES) as *mut Chunk)
    }

    /// Put a chunk into the list of those of its kind that have room.
    ///
    /// # Safety
    /// It is whole and in no list.
    unsafe fn link(&mut self, chunk: *mut Chunk) {
        // SAFETY: the caller's promise; chunks in lists are whole.
        unsafe {
            let first = &mut self.room[(*chunk).kind];
            (*chunk).next = *first;
            (*chunk).previous = null_mut();
            if let Some(next) = first.as_mut() {
                next.previous = chunk;
            }
            *first = chunk;
        }
    }

    /// Take a chunk out of that list.
    ///
    /// # Safety
    /// It is in the list.
    unsafe fn unlink(&mut self, chunk: *mut Chunk) {
        // SAFETY: the caller's promise; chunks in lists are whole.
        unsafe {
            let (next, previous) = ((*chunk).next, (*chunk).previous);
            match previous.as_mut() {
                Some(previous) => previous.next = next,
                None => self.room[(*chunk).kind] = next,
            }
            if let Some(next) = next.as_mut() {
                next.previous = previous;
            }
        }
    }
}
