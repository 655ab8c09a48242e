//! The stacks that were seen, each with the size of the objects that it allocated: a hash table
//! of lists that only grow at their heads.

use core::ptr::null_mut;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::metadata;

const LISTS: usize = 4096;
/// Stacks that are kept at most: 35 MB of the deepest ones. What allocates from others is not
/// sampled, and the profile says so.
const MOST: usize = 1 << 16;

static TABLE: [AtomicPtr<Stack>; LISTS] = [const { AtomicPtr::new(null_mut()) }; LISTS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);

/// A call stack and a size. Its frames lie behind it in memory.
#[repr(C)]
pub struct Stack {
    next: *mut Stack,
    hash: u64,
    /// Bytes in each of its objects.
    pub size: usize,
    depth: usize,
    /// Samples that were taken.
    pub allocated: AtomicU64,
    /// Of those, freed again.
    pub freed: AtomicU64,
}

impl Stack {
    /// Addresses of calls, the innermost first.
    pub fn frames(&self) -> &[usize] {
        // By their address: a pointer made from `self` reaches as far as `self`, not to what follows.
        let frames = (&raw const *self) as usize + size_of::<Stack>();
        // SAFETY: `create` put them there before anybody saw the stack, and nobody changes them.
        // Needed because stacks lie outside of Rust's heap.
        unsafe { slice::from_raw_parts(frames as *const usize, self.depth) }
    }

    fn create(frames: &[usize], size: usize, hash: u64) -> Option<*mut Stack> {
        let bytes = size_of::<Stack>() + size_of_val(frames);
        let stack = metadata::permanent(bytes)?.as_ptr() as usize as *mut Stack;
        // SAFETY: fresh memory for a stack and its frames, aligned to 64 bytes.
        unsafe {
            stack.write(Stack {
                next: null_mut(),
                hash,
                size,
                depth: frames.len(),
                allocated: AtomicU64::new(0),
                freed: AtomicU64::new(0),
            });
            stack
                .add(1)
                .cast::<usize>()
                .copy_from_nonoverlapping(frames.as_ptr(), frames.len());
        }
        Some(stack)
    }
}

/// FNV-1a over words, with the high half folded in.
fn hash(frames: &[usize], size: usize) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ size as u64;
    for &frame in frames {
        hash = (hash ^ frame as u64).wrapping_mul(0x0100_0000_01b3);
        hash ^= hash >> 32;
    }
    hash
}

/// The list that begins at `stack`.
fn list(stack: *mut Stack) -> impl Iterator<Item = &'static Stack> {
    // SAFETY: lists hold stacks, which live for ever; `next` does not change once others see it.
    let at = |stack: *mut Stack| unsafe { stack.as_ref() };
    core::iter::successors(at(stack), move |stack| at(stack.next))
}

/// The entry of a stack and size, made if there is none; `None` if there is no room.
pub fn find(frames: &[usize], size: usize) -> Option<&'static Stack> {
    let hash = hash(frames, size);
    let head = &TABLE[hash as usize % LISTS];
    let is_it =
        |stack: &&Stack| stack.hash == hash && stack.size == size && stack.frames() == frames;
    let mut first = head.load(Ordering::Acquire);
    if let Some(found) = list(first).find(is_it) {
        return Some(found);
    }
    if COUNT.fetch_add(1, Ordering::Relaxed) >= MOST {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        LOST.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let stack = Stack::create(frames, size, hash)?;
    loop {
        // SAFETY: nobody else sees the stack before the exchange succeeds.
        unsafe { (*stack).next = first };
        match head.compare_exchange(first, stack, Ordering::Release, Ordering::Acquire) {
            // SAFETY: stacks live for ever.
            Ok(_) => return unsafe { stack.as_ref() },
            // Two threads may enter the same stack; readers of profiles add them up.
            Err(now) => first = now,
        }
    }
}

/// All entries.
pub fn all() -> impl Iterator<Item = &'static Stack> {
    TABLE
        .iter()
        .flat_map(|head| list(head.load(Ordering::Acquire)))
}

/// Samples that were not taken because the table was full.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_stack_found_again_and_told_from_others() {
        let first = find(&[1, 2, 3], 64).expect("room");
        assert!(core::ptr::eq(first, find(&[1, 2, 3], 64).expect("room")));
        assert_eq!((first.frames(), first.size), (&[1, 2, 3][..], 64));
        for (frames, size) in [(&[1, 2, 3][..], 80), (&[1, 2], 64), (&[1, 2, 4], 64)] {
            assert!(!core::ptr::eq(first, find(frames, size).expect("room")));
        }
        assert!(all().any(|stack| core::ptr::eq(stack, first)));
    }
}
