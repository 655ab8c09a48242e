//! Figures: collecting them, the shared page, and the text of `contigua_malloc_stats`.

use core::fmt::Write;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use contigua_pageheap::Statistics;
use contigua_telemetry::{MAGIC, Page, Shared, VERSION};

use crate::classes::{CLASSES, COUNT};
use crate::lock::{Guarded, Lock};
use crate::{clock, front, heap, pages, setup, sys};

const PAGE: usize = 4096;
const _: () = assert!(size_of::<Page>() <= PAGE);
/// A process shows its figures once it has lived this long: short-lived ones are spared the work.
const GRACE_NANOSECONDS: u64 = 500_000_000;

#[cfg_attr(test, allow(dead_code, reason = "tests have no destructor"))]
static AT_EXIT: AtomicBool = AtomicBool::new(false);
/// The page, made before the program can forbid itself the calls that it takes (seccomp); null if it is not wanted.
static MADE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// True once the page has values.
static SHOWN: AtomicBool = AtomicBool::new(false);
static WRITING: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Remember what the environment says.
pub fn configure(shared: bool, at_exit: bool) {
    let made = if shared {
        sys::map_named(c"contigua-malloc", PAGE)
    } else {
        None
    };
    MADE.store(
        made.map_or(null_mut(), |page| page.cast().as_ptr()),
        Ordering::Relaxed,
    );
    AT_EXIT.store(at_exit, Ordering::Relaxed);
    STARTED.store(clock::coarse_nanoseconds(), Ordering::Relaxed);
}

/// The page, if it is wanted.
fn made() -> Option<Shared> {
    // SAFETY: a page that `configure` mapped for this.
    NonNull::new(MADE.load(Ordering::Relaxed)).map(|page| unsafe { Shared::at(page.as_ptr()) })
}

/// The child of a fork has a copy of its parent's page, which says nothing until the child is old
/// enough to have figures of its own.
pub fn after_fork() {
    if SHOWN.swap(false, Ordering::Relaxed) {
        made().inspect(|shared| shared.clear());
    }
    WRITING.store(false, Ordering::Relaxed);
    STARTED.store(clock::coarse_nanoseconds(), Ordering::Relaxed);
}

/// Cached objects of each class.
type Classes = [front::Cached; COUNT];
/// Room for it that a signal handler's stack has not.
static TRIED: Guarded<Classes> = Guarded::new([front::Cached::NONE; COUNT]);

/// The lock of that room, for the fork handlers.
pub fn lock() -> &'static Lock {
    &TRIED.lock
}

/// All figures.
pub fn collect() -> Page {
    let classes = core::array::from_fn(front::cached);
    figures(&pages::statistics(), &classes)
}

fn figures(heap: &Statistics, classes: &Classes) -> Page {
    let (large_in_use, large_objects) = heap::large();
    let mut all = front::Cached::NONE;
    for cached in classes {
        all.cpu += cached.cpu;
        all.transfer += cached.transfer;
        all.central += cached.central;
        all.spans += cached.spans;
    }
    Page {
        magic: MAGIC,
        version: VERSION,
        figures: Page::NAMES.len() as u32,
        sequence: 0,
        nanoseconds: clock::coarse_nanoseconds(),
        small_in_use: all.in_use() as u64,
        large_in_use: large_in_use as u64,
        large_objects: large_objects as u64,
        cpu_cached: all.cpu as u64,
        transfer_cached: all.transfer as u64,
        central_free: all.central as u64,
        misses: front::misses() as u64,
        heap_used: heap.used,
        heap_mapped: heap.mapped,
        heap_free_mapped: heap.free_mapped,
        heap_unmapped: heap.unmapped,
        heap_cached: heap.cached,
        filler_used: heap.filler_used,
        filler_used_intact: heap.filler_used_intact,
        huge_intact: heap.huge_intact,
        huge_broken: heap.huge_broken,
        broken_total: heap.broken_total,
        peak_used: heap.peak_used,
        peak_mapped: heap.peak_mapped,
        recent_peak_used: heap.recent_peak_used,
        average_fragmentation: heap.average_fragmentation,
        realized_fragmentation: heap.realized_fragmentation,
        skipped: heap.skipped,
        skipped_correct: heap.skipped_correct,
        skipped_incorrect: heap.skipped_incorrect,
        released_whole: heap.released_whole,
        released_broken: heap.released_broken,
        released_for_limit: heap.released_for_limit,
        limit_failures: heap.limit_failures,
        system_failures: heap.system_failures,
        metadata: heap.metadata,
    }
}

/// Write the shared page, if the process has lived long enough to have one.
pub fn update() {
    let Some(shared) = made() else {
        return;
    };
    if WRITING.swap(true, Ordering::Acquire) {
        return;
    }
    let age = clock::coarse_nanoseconds().wrapping_sub(STARTED.load(Ordering::Relaxed));
    if SHOWN.load(Ordering::Relaxed) || age >= GRACE_NANOSECONDS {
        SHOWN.store(true, Ordering::Relaxed);
        shared.write(&collect());
    }
    WRITING.store(false, Ordering::Release);
}

/// Last contents of the shared page; `None` if there is none, or it is being written.
pub fn last() -> Option<Page> {
    made()
        .filter(|_| SHOWN.load(Ordering::Relaxed))
        .and_then(Shared::read)
}

/// The figures as text: one a line, then the classes that have spans.
pub fn write_text(out: &mut dyn Write) -> core::fmt::Result {
    setup::ensure();
    let classes = core::array::from_fn(front::cached);
    write_page(out, &figures(&pages::statistics(), &classes))?;
    write_classes(out, &classes)
}

/// As [`write_text`], without waiting for anybody: `None`, and nothing is written, if somebody
/// holds a lock. Needs little stack.
pub fn try_write_text(out: &mut dyn Write) -> Option<core::fmt::Result> {
    let mut classes = TRIED.try_lock()?;
    for (class, cached) in classes.iter_mut().enumerate() {
        *cached = front::cached(class);
    }
    let page = figures(&pages::try_statistics()?, &classes);
    Some(write_page(out, &page).and_then(|()| write_classes(out, &classes)))
}

/// Figures, one a line.
pub fn write_page(out: &mut dyn Write, page: &Page) -> core::fmt::Result {
    for (name, value) in page.figures() {
        writeln!(out, "{name:<24}{value:>20}")?;
    }
    Ok(())
}

fn write_classes(out: &mut dyn Write, classes: &Classes) -> core::fmt::Result {
    let caches = if front::is_per_cpu() {
        "CPUs"
    } else {
        "threads"
    };
    writeln!(out, "caches of               {caches:>20}")?;
    writeln!(out, "  size    in use     cached       free")?;
    for (known, cached) in CLASSES.iter().zip(classes) {
        if cached.spans > 0 {
            writeln!(
                out,
                "{:>6}{:>10}{:>11}{:>11}",
                known.size,
                cached.in_use(),
                cached.cpu + cached.transfer,
                cached.central
            )?;
        }
    }
    Ok(())
}

/// The figures as text, on standard error.
pub fn write_to_standard_error() {
    let mut line = sys::Line::<{ 16 << 10 }>::new();
    let _ = write_text(&mut line);
    sys::write_all(2, line.as_bytes());
}

/// At the end of the process.
#[cfg(not(test))]
pub fn at_exit() {
    if AT_EXIT.load(Ordering::Relaxed) {
        write_to_standard_error();
    }
}
