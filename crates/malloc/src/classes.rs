//! Size classes: which sizes small objects have, and how many of them move and lie together.
//!
//! Sizes are 8, the multiples of 16 up to 128, and then eight equal steps to each doubling up to
//! 256 KB. A request therefore wastes less than 16 bytes or less than 1/8 of its object, whichever
//! is more, and every multiple of a power of two up to a page has a class that keeps it aligned.
//! All tables are constants: nothing has to be initialized before the first allocation.

use contigua_percpu::{SLAB_WORDS, Stack, header_words};

use crate::near::near;
pub use crate::sizes::COUNT;
use crate::sizes::PAGE_BYTES;

/// Largest size that is served from a size class.
pub const MAX_SMALL: usize = 256 << 10;
/// Most objects that move between two levels of caching at once.
pub const MAX_BATCH: usize = 128;
/// Most objects in a span.
pub const MAX_OBJECTS: usize = 1024;

/// Largest size that the table of small sizes answers.
pub const TABLE_BYTES: usize = 1024;
/// First class of the geometric part, whose sizes lie above 128 bytes.
const FIRST_GEOMETRIC: usize = 10;

/// Properties of a class.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Class {
    /// `ceil(2^64 / size)`: divides an offset in a span by a multiplication, and says in the same
    /// way whether it is a multiple of `size` (Lemire, Kaser and Kurz 2019).
    magic: u64,
    /// Bytes in an object.
    pub size: u32,
    /// Objects in a span.
    pub objects: u16,
    /// Pages in a span.
    pub pages: u16,
    /// Objects that move between two levels at once.
    pub batch: u16,
    /// Most objects of the class in its transfer cache.
    pub transfer_slots: u16,
}

impl Class {
    /// Returns true if an object begins `offset` bytes behind the beginning of a span.
    #[inline(always)]
    pub const fn begins_at(&self, offset: usize) -> bool {
        (offset as u64).wrapping_mul(self.magic) < self.magic
    }

    /// The number of the object that covers the byte at `offset` in a span.
    #[inline(always)]
    pub const fn index_of(&self, offset: usize) -> usize {
        ((self.magic as u128 * offset as u128) >> 64) as usize
    }
}

const fn size_of_class(class: usize) -> usize {
    match class {
        0 => 0,
        1 => 8,
        _ if class < FIRST_GEOMETRIC => (class - 1) * 16,
        _ => {
            let step = class - FIRST_GEOMETRIC;
            let base = 128 << (step / 8);
            base + (step % 8 + 1) * (base / 8)
        }
    }
}

const fn clamp(value: usize, low: usize, high: usize) -> usize {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

/// The smallest span that wastes at most 1/16 of itself at its end and holds enough objects that
/// the page heap is not asked for each of them.
const fn pages_of_span(size: usize) -> usize {
    let enough = match size {
        0..=8192 => 8,
        8193..=32768 => 4,
        _ => 1,
    };
    let mut pages = 1;
    loop {
        let bytes = pages * PAGE_BYTES;
        if bytes / size >= enough && bytes % size <= bytes / 16 {
            return pages;
        }
        pages += 1;
    }
}

const fn build() -> [Class; COUNT] {
    let mut table = [Class {
        magic: 0,
        size: 0,
        objects: 0,
        pages: 0,
        batch: 0,
        transfer_slots: 0,
    }; COUNT];
    let mut class = 1;
    while class < COUNT {
        let size = size_of_class(class);
        let pages = pages_of_span(size);
        let batch = clamp((32 << 10) / size, 1, MAX_BATCH);
        table[class] = Class {
            magic: (u64::MAX / size as u64) + 1,
            size: size as u32,
            objects: (pages * PAGE_BYTES / size) as u16,
            pages: pages as u16,
            batch: batch as u16,
            transfer_slots: clamp((128 << 10) / size, 2 * batch, 2048) as u16,
        };
        class += 1;
    }
    table
}

const fn build_small() -> [u8; TABLE_BYTES / 8 + 1] {
    let mut table = [1; TABLE_BYTES / 8 + 1];
    let mut class = 1;
    let mut index = 0;
    while index < table.len() {
        while size_of_class(class) < index * 8 {
            class += 1;
        }
        table[index] = class as u8;
        index += 1;
    }
    table
}

/// All classes.
pub static CLASSES: [Class; COUNT] = TABLE;
const TABLE: [Class; COUNT] = build();
/// Their stacks in a front-end cache.
pub static STACKS: [Stack; COUNT] = {
    let none = Stack {
        size: 0,
        slots: 0,
        first_slot: 0,
        batch: 0,
    };
    let mut stacks = [none; COUNT];
    let (mut class, mut next_slot) = (1, header_words(COUNT));
    while class < COUNT {
        let Class { size, batch, .. } = TABLE[class];
        let slots = clamp((256 << 10) / size as usize, 4, 2048);
        stacks[class] = Stack {
            size,
            slots: slots as u16,
            first_slot: next_slot as u16,
            batch,
        };
        next_slot += slots;
        class += 1;
    }
    assert!(next_slot <= SLAB_WORDS);
    stacks
};
/// Multipliers of [`Class::begins_at`], where a free finds them with one load.
static MAGIC: [u64; 256] = {
    let mut table = [0; 256];
    let mut class = 1;
    while class < COUNT {
        table[class] = TABLE[class].magic;
        class += 1;
    }
    table
};
static SMALL: [u8; TABLE_BYTES / 8 + 1] = build_small();

/// Returns true if an object of the class in a page's tag begins `offset` bytes behind the
/// beginning of its span; `false` for values that are no class.
#[inline(always)]
pub fn begins_at(class: usize, offset: usize) -> bool {
    let magic = near!(MAGIC: [u64; 256])[class];
    (offset as u64).wrapping_mul(magic) < magic
}

/// The class that serves `size` bytes, at most [`MAX_SMALL`].
#[inline(always)]
pub fn class_of(size: usize) -> usize {
    debug_assert!(size <= MAX_SMALL);
    if size <= TABLE_BYTES {
        near!(SMALL: [u8; TABLE_BYTES / 8 + 1])[(size + 7) >> 3] as usize
    } else {
        let last = size - 1;
        let log = last.ilog2() as usize;
        FIRST_GEOMETRIC + (log - 7) * 8 + ((last >> (log - 3)) & 7)
    }
}

/// The class that serves `size` bytes at a multiple of `align`, a power of two up to a page, or
/// `None` if no class does.
pub fn class_of_aligned(size: usize, align: usize) -> Option<usize> {
    if size > MAX_SMALL || align > PAGE_BYTES {
        return None;
    }
    let mut class = class_of(size.max(align));
    while class < COUNT {
        if (CLASSES[class].size as usize).is_multiple_of(align) {
            return Some(class);
        }
        class += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn do_classes_grow_and_end_at_the_largest_small_size() {
        for pair in CLASSES[1..].windows(2) {
            assert!(pair[0].size < pair[1].size);
        }
        assert_eq!(CLASSES[COUNT - 1].size as usize, MAX_SMALL);
    }

    #[test]
    fn does_each_span_fit_its_metadata_and_waste_little() {
        for class in &CLASSES[1..] {
            let bytes = class.pages as usize * PAGE_BYTES;
            let used = class.objects as usize * class.size as usize;
            assert!(class.objects >= 1 && class.objects as usize <= MAX_OBJECTS);
            assert!(class.pages <= 256, "a page's index in its span is one byte");
            assert!((bytes - used) * 16 <= bytes, "size {}", class.size);
        }
    }

    #[test]
    fn is_every_size_served_by_the_smallest_class_that_fits() {
        for size in 0..=MAX_SMALL {
            let class = class_of(size);
            assert!(CLASSES[class].size as usize >= size);
            assert!(class == 1 || (CLASSES[class - 1].size as usize) < size);
        }
    }

    proptest! {
        #[test]
        fn is_waste_bounded(size in 1..=MAX_SMALL) {
            let waste = CLASSES[class_of(size)].size as usize - size;
            prop_assert!(waste < 16 || waste * 8 < CLASSES[class_of(size)].size as usize);
        }

        #[test]
        fn are_aligned_classes_aligned(size in 0..=MAX_SMALL, log in 0..14u32) {
            if let Some(class) = class_of_aligned(size, 1 << log) {
                let found = CLASSES[class].size as usize;
                prop_assert!(found >= size && found.is_multiple_of(1 << log));
            } else {
                prop_assert!(size > MAX_SMALL - PAGE_BYTES);
            }
        }

        #[test]
        fn does_multiplication_divide(class in 1..COUNT, offset in 0..(256 * PAGE_BYTES)) {
            let class = &CLASSES[class];
            let size = class.size as usize;
            prop_assert_eq!(class.begins_at(offset), offset % size == 0);
            prop_assert_eq!(class.index_of(offset), offset / size);
        }
    }
}
