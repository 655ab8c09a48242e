//! Demand traces replayed in virtual time: what a policy would have done, in milliseconds.
//!
//! A trace says how much memory a program uses when. The replay makes it use that much, with
//! allocations of a given mixture of sizes that it removes in a given order, since not demand but
//! the order of removal decides how many huge pages become empty. Nothing depends on the machine:
//! the same trace and settings give the same result. The [`Program`] can be put over other systems,
//! such as a simulated server.

use crate::{Config, METADATA_ALIGN, Metadata, Os, PAGE_BYTES, PageHeap, Span, Statistics};
use core::cell::Cell;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::rc::Rc;
use std::vec::Vec;

/// Nanoseconds of a second.
const SECOND: u64 = crate::config::SECOND;

/// From a time on, a program uses so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Nanoseconds since the start; not less than that of the step before.
    pub time: u64,
    /// Bytes.
    pub used: u64,
}

/// Order in which a program removes allocations when it needs less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The oldest.
    Oldest,
    /// The newest.
    Newest,
    /// Any, drawn with this seed.
    Random(u64),
}

/// Settings of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The heap's.
    pub config: Config,
    /// Sizes of allocations in heap pages, used in turn; none counts as single pages. The last one
    /// of a step is cut to the demand.
    pub sizes: Vec<u32>,
    /// Order of removals.
    pub removal: Removal,
    /// Nanoseconds between calls of [`PageHeap::periodic`] and between samples. Our choice: 1 s, as
    /// a background thread would.
    pub step: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config: Config::DEFAULT,
            sizes: std::vec![1],
            removal: Removal::Newest,
            step: SECOND,
        }
    }
}

/// The heap at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds since the start.
    pub time: u64,
    /// The heap's figures.
    pub statistics: Statistics,
}

/// Means over all samples of a replay, each of which stands for the same time. Bytes unless stated
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Used.
    pub used: f64,
    /// Mapped.
    pub mapped: f64,
    /// Free and mapped: average fragmentation.
    pub average_fragmentation: f64,
    /// Realized fragmentation.
    pub realized_fragmentation: f64,
    /// Share of used memory in unbroken huge pages, 0 to 1.
    pub coverage: f64,
    /// Huge pages broken, in all (a number).
    pub broken_total: u64,
    /// Withheld by the policy, in all.
    pub skipped: u64,
    /// Share of that which was needed again, of what is decided, 0 to 1; 0 if nothing is.
    pub skipped_correct: f64,
}

impl Summary {
    /// The means of some samples.
    #[must_use]
    pub fn of(samples: &[Sample]) -> Self {
        let count = samples.len().max(1) as f64;
        let mean = |figure: &dyn Fn(&Statistics) -> f64| {
            samples.iter().map(|s| figure(&s.statistics)).sum::<f64>() / count
        };
        let last = samples.last().map(|s| s.statistics).unwrap_or_default();
        let decided = last.skipped_correct + last.skipped_incorrect;
        Self {
            used: mean(&|s| s.used as f64),
            mapped: mean(&|s| s.mapped as f64),
            average_fragmentation: mean(&|s| s.free_mapped as f64),
            realized_fragmentation: mean(&|s| s.realized_fragmentation as f64),
            coverage: mean(&Statistics::coverage),
            broken_total: last.broken_total,
            skipped: last.skipped,
            skipped_correct: last.skipped_correct as f64 / decided.max(1) as f64,
        }
    }
}

/// Replays a trace until `end` nanoseconds. One sample each [`step`](Settings::step), taken after
/// the periodic release of that time. Demand that the heap refuses, for a limit in the settings, is
/// left out.
#[must_use]
pub fn replay(trace: &[Demand], end: u64, settings: &Settings) -> Vec<Sample> {
    let clock = Rc::new(Cell::new(0));
    let mut program = Program::new(VirtualOs::new(clock.clone()), settings.clone());
    let mut samples = Vec::new();
    let step = settings.step.max(1);
    let mut trace = trace.iter().peekable();
    let mut next_sample = 0;
    while next_sample <= end {
        if let Some(demand) = trace.next_if(|demand| demand.time < next_sample || demand.time == 0)
        {
            clock.set(demand.time);
            program.use_bytes(demand.used);
            continue;
        }
        clock.set(next_sample);
        program.heap_mut().periodic();
        samples.push(Sample {
            time: next_sample,
            statistics: program.heap().statistics(),
        });
        next_sample += step;
    }
    samples
}

/// A number below `bound` (`SplitMix64`): the same on every machine, which a trace must be.
#[must_use]
pub fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31) % bound.max(1)
}

/// A program that uses as much memory as it is told, over any system.
pub struct Program<O: Os> {
    heap: PageHeap<O>,
    settings: Settings,
    /// From `first` on, oldest first.
    live: Vec<Span>,
    first: usize,
    used: u64,
    turn: usize,
    random: u64,
}

impl<O: Os> Program<O> {
    /// A program that uses nothing yet.
    #[must_use]
    pub fn new(os: O, settings: Settings) -> Self {
        Self {
            heap: PageHeap::new(os, settings.config),
            live: Vec::new(),
            first: 0,
            used: 0,
            turn: 0,
            random: match settings.removal {
                Removal::Random(seed) => seed,
                _ => 0,
            },
            settings,
        }
    }

    /// Its heap.
    #[must_use]
    pub const fn heap(&self) -> &PageHeap<O> {
        &self.heap
    }

    /// Its heap, to let time pass for it.
    pub const fn heap_mut(&mut self) -> &mut PageHeap<O> {
        &mut self.heap
    }

    /// Its live allocations.
    #[must_use]
    pub fn live(&self) -> &[Span] {
        &self.live[self.first..]
    }

    /// Allocates or frees until it uses so many bytes, rounded up to heap pages. The allocations
    /// that it made for that, which are the last of [`live`](Self::live). What the heap refuses is
    /// left out.
    pub fn use_bytes(&mut self, bytes: u64) -> &[Span] {
        let pages = bytes.div_ceil(PAGE_BYTES as u64);
        let before = self.live.len();
        let mut allocated = 0;
        while self.used < pages {
            let sizes = &self.settings.sizes;
            let size = sizes.get(self.turn % sizes.len().max(1));
            self.turn += 1;
            let size = u64::from(*size.unwrap_or(&1)).clamp(1, pages - self.used);
            let Some(found) = self.heap.allocate(size as u32, 1) else {
                break;
            };
            self.live.push(found.span);
            self.used += size;
            allocated += 1;
        }
        if allocated > 0 {
            return &self.live[before..];
        }
        while self.used > pages {
            let Some(span) = self.remove() else { break };
            let size = u64::from(span.pages);
            let excess = self.used - pages;
            if size > excess {
                let kept = self.heap.shrink_in_place(span, (size - excess) as u32);
                self.live.push(kept);
                self.used = pages;
            } else {
                self.heap.free(span);
                self.used -= size;
            }
        }
        &[]
    }

    fn remove(&mut self) -> Option<Span> {
        match self.settings.removal {
            Removal::Newest => self.live.pop(),
            Removal::Oldest => {
                let span = self.live.get(self.first).copied()?;
                self.first += 1;
                // What is gone is dropped now and then, so that this stays cheap.
                if self.first > self.live.len() / 2 {
                    self.live.drain(..self.first);
                    self.first = 0;
                }
                Some(span)
            }
            Removal::Random(_) => {
                let count = self.live.len();
                if count == 0 {
                    return None;
                }
                let index = draw(&mut self.random, count as u64);
                Some(self.live.swap_remove(index as usize))
            }
        }
    }
}

/// A square wave: `high` bytes for the first half of each period, `low` for the second, for `end`
/// nanoseconds (Adaptive Subrelease, figures 4 and 5).
#[must_use]
pub fn square_wave(low: u64, high: u64, period: u64, end: u64) -> Vec<Demand> {
    let half = (period / 2).max(1);
    (0..=end / half)
        .map(|index| Demand {
            time: index * half,
            used: if index % 2 == 0 { high } else { low },
        })
        .collect()
}

/// Spikes of arbitrary size and lifetime over a base, drawn with a seed (Adaptive Subrelease,
/// section 5.5, which does not publish its own): on average one every `every` nanoseconds, each of
/// up to `highest` bytes for up to `longest` nanoseconds.
#[must_use]
pub fn spikes(
    base: u64,
    highest: u64,
    every: u64,
    longest: u64,
    end: u64,
    seed: u64,
) -> Vec<Demand> {
    let mut random = seed;
    let mut changes = Vec::new();
    let mut time = 0;
    while time < end {
        let size = i64::try_from(draw(&mut random, highest)).unwrap_or(i64::MAX);
        changes.push((time, size));
        changes.push((time + 1 + draw(&mut random, longest), -size));
        time += 1 + draw(&mut random, 2 * every);
    }
    changes.sort_by_key(|&(time, size)| (time, -size));
    let mut used = base;
    let mut trace = std::vec![Demand { time: 0, used }];
    for (time, size) in changes {
        used = used.saturating_add_signed(size);
        trace.push(Demand { time, used });
    }
    trace
}

/// A system with a clock and nothing else: addresses without memory behind them.
pub struct VirtualOs {
    clock: Rc<Cell<u64>>,
    next_address: usize,
    metadata: Vec<(NonNull<u8>, Layout)>,
}

impl VirtualOs {
    /// A system whose time is what the clock says, in nanoseconds.
    #[must_use]
    pub const fn new(clock: Rc<Cell<u64>>) -> Self {
        Self {
            clock,
            next_address: 1 << 40,
            metadata: Vec::new(),
        }
    }
}

impl Drop for VirtualOs {
    fn drop(&mut self) {
        for &(start, layout) in &self.metadata {
            // SAFETY: allocated in `metadata` with this layout, and freed only here.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

impl Os for VirtualOs {
    fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
        let layout = Layout::from_size_align(bytes.max(1), METADATA_ALIGN).ok()?;
        // SAFETY: the layout is not empty; the memory is new, zero, aligned, and freed only when
        // this system is dropped.
        unsafe {
            let start = NonNull::new(alloc_zeroed(layout))?;
            self.metadata.push((start, layout));
            Some(Metadata::new(start, bytes))
        }
    }

    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let address = self.next_address.checked_next_multiple_of(align)?;
        self.next_address = address.checked_add(bytes)?;
        Some(address)
    }

    fn back(&mut self, _address: usize, _bytes: usize) -> bool {
        true
    }

    fn release(&mut self, _address: usize, _bytes: usize) -> bool {
        true
    }

    fn collapse(&mut self, _address: usize) -> bool {
        true
    }

    fn now(&self) -> u64 {
        self.clock.get()
    }
}
