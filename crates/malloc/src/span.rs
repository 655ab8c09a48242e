//! Metadata of spans.
//!
//! A span is a run of pages with equal objects, or one large object. Its metadata lies apart from
//! it, so that a stray write into an object does not corrupt the allocator, and so that a page
//! that is given back to the system is not touched again.

use core::ops::Range;
use core::ptr::{NonNull, null_mut};

use crate::classes::{CLASSES, MAX_OBJECTS};
use crate::metadata;
use crate::sizes::PAGE_BYTES;

/// A run of pages. A small-object span is followed in memory by its bitmap, one bit for each
/// object, set as long as the object is in the span and carved.
///
/// A new span's objects are carved in order, all that begin in a page of the page heap at once: then
/// they get their canaries, and the page gets its tag. So `free` refuses an address in a page of
/// which nothing was ever handed out, and what it accepts elsewhere has a canary, so that it is never
/// handed out to two owners.
#[repr(C)]
pub struct Span {
    /// Neighbors in a list of its central cache.
    pub next: *mut Span,
    /// See `next`. Of a large object: its stack in the profile (`profile::keep`), or null.
    pub previous: *mut Span,
    /// Address of the first page.
    pub address: usize,
    /// Number of pages.
    pub pages: u32,
    /// Objects that are in the span, carved or not.
    pub free: u16,
    /// The list that it is in, or `NO_LIST`.
    pub list: u8,
    /// Its class, 0 for a large object.
    pub class: u8,
    /// Number of objects, from the first, that were ever handed out or may be: the others are
    /// addresses that `free` refuses.
    pub carved: u16,
}

/// Log2 of the bitmap words of a class's metadata.
const fn kind_of(class: usize) -> usize {
    let objects = CLASSES[class].objects as usize;
    objects.div_ceil(64).next_power_of_two().ilog2() as usize
}

const _: () =
    assert!((MAX_OBJECTS.div_ceil(64).next_power_of_two().ilog2() as usize) < metadata::KINDS);

impl Span {
    /// Metadata for a span of `class` (0: a large object) with all its objects in it, none carved.
    pub fn create(address: usize, pages: u32, class: usize) -> Option<NonNull<Span>> {
        let kind = kind_of(class);
        let bytes = (size_of::<Span>() + (8 << kind)).next_multiple_of(16);
        let span = metadata::take(kind, bytes)?.cast::<Span>().as_ptr();
        let objects = CLASSES[class].objects;
        // SAFETY: the pool gave memory for a span and `1 << kind` words that nobody else uses.
        // Needed because metadata lies outside of Rust's heap.
        unsafe {
            span.write(Span {
                next: null_mut(),
                previous: null_mut(),
                address,
                pages,
                free: objects,
                list: NO_LIST,
                class: class as u8,
                carved: 0,
            });
            span.add(1).cast::<u64>().write_bytes(0, 1 << kind);
        }
        NonNull::new(span)
    }

    /// Recycle metadata that nobody refers to any more.
    ///
    /// # Safety
    /// The span came from [`Span::create`] and is not used again.
    pub unsafe fn recycle(span: NonNull<Span>) {
        // SAFETY: the caller gives the span up.
        unsafe { metadata::give(span.cast()) };
    }

    fn bitmap(&mut self) -> &mut [u64] {
        let words = usize::from(CLASSES[usize::from(self.class)].objects).div_ceil(64);
        // By its address: a pointer made from `self` reaches as far as `self`, not to what follows.
        let first = (&raw mut *self) as usize + size_of::<Span>();
        // SAFETY: `create` put this many words behind the span, and they are borrowed with it.
        unsafe { core::slice::from_raw_parts_mut(first as *mut u64, words) }
    }

    /// Take up to `out.len()` carved objects, lowest first; returns the number taken.
    pub fn take(&mut self, out: &mut [usize]) -> usize {
        let (address, size) = (self.address, CLASSES[usize::from(self.class)].size as usize);
        let mut taken = 0;
        for (index, word) in self.bitmap().iter_mut().enumerate() {
            while *word != 0 && taken < out.len() {
                let object = index * 64 + word.trailing_zeros() as usize;
                *word &= *word - 1;
                out[taken] = address + object * size;
                taken += 1;
            }
        }
        self.free -= taken as u16;
        taken
    }

    /// Carve at least `wanted` objects, or all that are left: whole pages of them.
    pub fn carve(&mut self, wanted: usize) -> Carved {
        let class = &CLASSES[usize::from(self.class)];
        let (size, objects) = (class.size as usize, usize::from(class.objects));
        let first = usize::from(self.carved);
        let last = (first + wanted).min(objects) - 1;
        let page = last * size / PAGE_BYTES;
        let end = ((page + 1) * PAGE_BYTES).div_ceil(size).min(objects);
        self.carved = end as u16;
        self.free -= (end - first) as u16;
        let pages = if end == objects {
            self.pages as usize
        } else {
            end * size / PAGE_BYTES
        };
        Carved {
            span: self,
            address: self.address,
            size,
            objects: first..end,
            pages: first * size / PAGE_BYTES..pages,
        }
    }

    /// Returns true if no carved object is in the span.
    pub fn is_bare(&self) -> bool {
        let objects = CLASSES[usize::from(self.class)].objects;
        self.free == objects - self.carved
    }

    /// Put objects back, from the first on as long as they lie in the span; how many did.
    ///
    /// # Errors
    /// The first at which no carved object begins, or which is in the span already. Those before it
    /// are lost.
    pub fn put(&mut self, objects: &[usize]) -> Result<usize, usize> {
        let class = &CLASSES[usize::from(self.class)];
        let (address, carved) = (self.address, usize::from(self.carved));
        let bytes = self.pages as usize * PAGE_BYTES;
        let bitmap = self.bitmap();
        // The word at hand stays in a register: neighbors in a batch often are neighbors in memory,
        // and each would wait until the store of the one before can be read.
        let (mut at, mut word) = (0, bitmap[0]);
        let mut count = 0;
        for &object in objects {
            let offset = object.wrapping_sub(address);
            if offset >= bytes {
                break;
            }
            let index = class.index_of(offset);
            if !class.begins_at(offset) || index >= carved {
                return Err(object);
            }
            if index / 64 != at {
                bitmap[at] = word;
                at = index / 64;
                word = bitmap[at];
            }
            let bit = 1 << (index % 64);
            if word & bit != 0 {
                return Err(object);
            }
            word |= bit;
            count += 1;
        }
        bitmap[at] = word;
        self.free += count as u16;
        Ok(count)
    }

    /// Put those of just carved objects back that are not the first `count`.
    pub fn put_rest(&mut self, carved: &Carved, count: usize) {
        let (mut index, end) = (carved.objects.start + count, carved.objects.end);
        self.free += (end - index) as u16;
        let bitmap = self.bitmap();
        while index < end {
            let next = end.min((index / 64 + 1) * 64);
            bitmap[index / 64] |= (u64::MAX >> (64 - (next - index))) << (index % 64);
            index = next;
        }
    }
}

/// Objects that were just carved, and count as handed out.
pub struct Carved {
    /// Their span.
    pub span: *mut Span,
    /// Address of the span.
    pub address: usize,
    /// Bytes in each.
    pub size: usize,
    objects: Range<usize>,
    /// Pages of the span in which no object begins but these and earlier ones.
    pub pages: Range<usize>,
}

impl Carved {
    /// Number of objects.
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// Their addresses, lowest first.
    pub fn objects(&self) -> impl Iterator<Item = usize> {
        let (address, size) = (self.address, self.size);
        self.objects
            .clone()
            .map(move |index| address + index * size)
    }
}

/// The span is in no list.
pub const NO_LIST: u8 = u8::MAX;
