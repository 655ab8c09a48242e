//! Classes with sparse spans: once a second, caches give back what they hold of them, and for some misses hold nothing.
//!
//! The object that was freed last is the next to be handed out. So after a change of sizes a few cached objects, which
//! hardly anybody needs, keep spans that have nothing else; and those that are needed stay where they are, in as many
//! spans as before. Central caches hand out of the fullest spans, but caches hardly ever ask them.

use core::sync::atomic::{AtomicUsize, Ordering};

use contigua_percpu::Slab;

use super::{Place, backoff, empty};
use crate::classes::COUNT;
use crate::{central, transfer};

/// Misses for which a cache holds nothing of a class with sparse spans: in a few seconds each of some thousand objects
/// goes through them once. Our choice.
const HELD: u16 = 256;

/// Number of classes that each cache is to have looked at.
static DUE: AtomicUsize = AtomicUsize::new(0);

/// Have each cache look at all classes once, as misses come.
pub fn begin_round() {
    DUE.fetch_add(COUNT - 1, Ordering::Relaxed);
}

/// Classes that this cache has to look at. Earlier rounds are not made up for.
#[inline]
pub fn left(slab: Slab) -> usize {
    let left = DUE
        .load(Ordering::Relaxed)
        .wrapping_sub(slab.seen().load(Ordering::Relaxed));
    left.min(COUNT - 1)
}

/// Look at the classes that this cache has to look at, up to the first that is sparse: it is a slow path of the
/// program's.
#[cold]
#[inline(never)]
pub fn look(place: Place, slab: Slab) {
    let (due, left) = (DUE.load(Ordering::Relaxed), left(slab));
    for left in (0..left).rev() {
        let class = 1 + left;
        slab.seen().store(due.wrapping_sub(left), Ordering::Relaxed);
        if central::is_sparse(class) && slab.length(class) + transfer::length(class) > 0 {
            backoff::emptying(|| {
                // A class that was never used here has no header yet.
                if slab.begin(class) > 0 {
                    slab.held(class).store(HELD, Ordering::Relaxed);
                    slab.close(class);
                }
                empty(place, slab, class, central::give);
                transfer::shrink(class, 0);
            });
            break;
        }
    }
}
