//! The page of shared memory in which a process shows its heap's figures.
//!
//! The page is the mapping named [`NAME`] in `/proc/PID/maps`: an anonymous file, so that nothing
//! is left behind by a process that is killed. A reader opens `/proc/PID/mem` (or the file below
//! `/proc/PID/map_files`) at the mapping's beginning and copies [`Page`]. It is consistent if
//! `sequence` is even and the same before and after; it is written at most once a second.
//!
//! [`Reader`] does that (feature `reader`):
//!
//! ```no_run
//! let page = contigua_telemetry::Reader::of_process(1234)?.read()?;
//! for figure in page.known() {
//!     println!("{} {} {:?}: {}", figure.name, figure.value, figure.unit, figure.help);
//! }
//! # Ok::<(), contigua_telemetry::Error>(())
//! ```

#![no_std]

#[cfg(any(feature = "reader", test))]
extern crate std;

#[cfg(feature = "reader")]
mod reader;

use core::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(feature = "reader")]
pub use reader::{Error, Reader};

/// Name of the mapping in `/proc/PID/maps` (the kernel puts `/memfd:` before it and ` (deleted)`
/// behind it).
pub const NAME: &str = "contigua-malloc";
/// Words of [`Page`].
const WORDS: usize = size_of::<Page>() / 8;
const SEQUENCE: usize = core::mem::offset_of!(Page, sequence) / 8;
/// The first word of the page: `CONTIGUA` in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CONTIGUA");
/// The layout's version; fields are only ever added at the end.
pub const VERSION: u32 = 1;

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// A number of things or events.
    Count,
    /// Nanoseconds.
    Nanoseconds,
}

/// Type of a value: counter or gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Up and down.
    Gauge,
    /// Only up, from 0 at the start of the process.
    Counter,
}

/// A figure, and what is to be known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its name in [`Page`].
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Counter or gauge.
    pub kind: Kind,
    /// One sentence, or two.
    pub help: &'static str,
    /// Its value.
    pub value: u64,
}

macro_rules! page {
    ($($(#[doc = $help:literal])+ $name:ident: $unit:ident $kind:ident,)*) => {
        /// The page's contents.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct Page {
            /// [`MAGIC`].
            pub magic: u64,
            /// [`VERSION`].
            pub version: u32,
            /// The number of figures that the process has.
            pub figures: u32,
            /// Odd while the page is being written.
            pub sequence: u64,
            $($(#[doc = $help])* #[doc = concat!(" ", stringify!($unit), ".")] pub $name: u64,)*
        }

        impl Page {
            /// The names of all figures, in order.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// All figures with their names, in order.
            #[must_use]
            pub fn figures(&self) -> [(&'static str, u64); Self::NAMES.len()] {
                [$((stringify!($name), self.$name)),*]
            }

            #[cfg(feature = "reader")]
            fn values_mut(&mut self) -> [&mut u64; Self::NAMES.len()] {
                [$(&mut self.$name),*]
            }

            /// The figures that the process has and we know, in order.
            pub fn known(&self) -> impl Iterator<Item = Figure> + use<> {
                let all: [Figure; Self::NAMES.len()] = [$(Figure {
                    name: stringify!($name),
                    unit: Unit::$unit,
                    kind: Kind::$kind,
                    help: concat!($($help),+).trim_ascii(),
                    value: self.$name,
                }),*];
                all.into_iter().take(self.figures as usize)
            }
        }
    };
}

page! {
    /// When this was written, on the monotonic clock, in nanoseconds.
    nanoseconds: Nanoseconds Gauge,
    /// In small objects that the program has (with per-thread caches: or that threads cache).
    small_in_use: Bytes Gauge,
    /// In large objects that the program has.
    large_in_use: Bytes Gauge,
    /// Large objects that the program has (a number).
    large_objects: Count Gauge,
    /// In caches of CPUs.
    cpu_cached: Bytes Gauge,
    /// In transfer caches.
    transfer_cached: Bytes Gauge,
    /// Free in spans of small objects.
    central_free: Bytes Gauge,
    /// Refills and drains of caches (a number).
    misses: Count Counter,
    /// The page heap's pages in use.
    heap_used: Bytes Gauge,
    /// The page heap's memory that is backed.
    heap_mapped: Bytes Gauge,
    /// Of that, free: the fragmentation of the moment.
    heap_free_mapped: Bytes Gauge,
    /// Addresses without memory.
    heap_unmapped: Bytes Gauge,
    /// In whole free huge pages.
    heap_cached: Bytes Gauge,
    /// Used, in huge pages that several allocations share.
    filler_used: Bytes Gauge,
    /// Of that, in huge pages that are whole.
    filler_used_intact: Bytes Gauge,
    /// Whole huge pages (a number).
    huge_intact: Count Gauge,
    /// Huge pages that are backed in part (a number).
    huge_broken: Count Gauge,
    /// Huge pages that were broken since the start (a number).
    broken_total: Count Counter,
    /// Largest use since the start.
    peak_used: Bytes Gauge,
    /// Largest mapped memory since the start.
    peak_mapped: Bytes Gauge,
    /// Largest use within the adaptive policy's interval.
    recent_peak_used: Bytes Gauge,
    /// Fragmentation, averaged over the last five minutes.
    average_fragmentation: Bytes Gauge,
    /// Memory that was free throughout the last five minutes.
    realized_fragmentation: Bytes Gauge,
    /// Releases that the adaptive policy withheld.
    skipped: Bytes Counter,
    /// Of those, needed again in time.
    skipped_correct: Bytes Counter,
    /// Of those, not needed.
    skipped_incorrect: Bytes Counter,
    /// Given back in whole huge pages since the start.
    released_whole: Bytes Counter,
    /// Given back in pieces of huge pages since the start.
    released_broken: Bytes Counter,
    /// Of both, because of a limit.
    released_for_limit: Bytes Counter,
    /// Requests that failed because of the hard limit (a number).
    limit_failures: Count Counter,
    /// Requests that failed for want of memory (a number).
    system_failures: Count Counter,
    /// In the allocator's own records, as far as the page heap counts them.
    metadata: Bytes Gauge,
}

/// The page in the memory of the process that it is about: one thread writes at a time, and anybody
/// may read, without a lock (a sequence lock).
#[derive(Clone, Copy, Debug)]
pub struct Shared(&'static [AtomicU64; WORDS]);

impl Shared {
    /// The page at `address`.
    ///
    /// # Safety
    /// As many bytes as [`Page`] has lie there, aligned to words, stay mapped, and are not accessed
    /// but as atomics.
    #[must_use]
    pub const unsafe fn at(address: *const AtomicU64) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { &*address.cast::<[AtomicU64; WORDS]>() })
    }

    /// Write all of it.
    pub fn write(self, page: &Page) {
        // SAFETY: `Page` is made of words without padding.
        let source = unsafe { &*(&raw const *page).cast::<[u64; WORDS]>() };
        let sequence = self.0[SEQUENCE].load(Ordering::Relaxed) | 1;
        self.0[SEQUENCE].store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        for (index, (word, value)) in self.0.iter().zip(source).enumerate() {
            if index != SEQUENCE {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.0[SEQUENCE].store(sequence + 1, Ordering::Release);
    }

    /// Have it say nothing, until it is written again.
    pub fn clear(self) {
        self.0[0].store(0, Ordering::Relaxed);
    }

    /// Reads the page; `None` while it is being written.
    #[must_use]
    pub fn read(self) -> Option<Page> {
        let mut page = Page::default();
        // SAFETY: `Page` is made of words without padding, any of which is valid.
        let copy = unsafe { &mut *(&raw mut page).cast::<[u64; WORDS]>() };
        let before = self.0[SEQUENCE].load(Ordering::Acquire);
        for (copy, word) in copy.iter_mut().zip(self.0) {
            *copy = word.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        let after = self.0[SEQUENCE].load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telemetry_page_is_read_whole() {
        static WORDS_HERE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
        // SAFETY: a static of this size that nobody else uses.
        let shared = unsafe { Shared::at(WORDS_HERE.as_ptr()) };
        let page = |value| Page {
            magic: MAGIC,
            nanoseconds: value,
            metadata: value,
            ..Page::default()
        };
        shared.write(&page(1));
        std::thread::scope(|scope| {
            scope.spawn(|| (2..20_000).for_each(|value| shared.write(&page(value))));
            for _ in 0..20_000 {
                if let Some(read) = shared.read() {
                    assert_eq!(read.nanoseconds, read.metadata);
                }
            }
        });
        assert_eq!(shared.read().map(|read| read.metadata), Some(19_999));
        WORDS_HERE[SEQUENCE].store(7, Ordering::Relaxed);
        assert_eq!(shared.read(), None);
        shared.clear();
        assert_eq!(WORDS_HERE[0].load(Ordering::Relaxed), 0);
    }
}
