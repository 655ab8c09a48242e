//! The hardware's half: the table of migrations in the LLC.

use contigua_units::Frame;
use serde::{Deserialize, Serialize};

/// Entries that a table may have at most. The authors' slices have 16 (their prototype's public
/// description); at 1000 migrations a second of 2 ms each, two are live on average.
pub const MAX_ENTRIES: usize = 16;

/// Energy of a look-up, in femtojoules: the authors' value for the table of a slice (Contiguitas,
/// hardware cost: 0.0017 nJ an access, 0.64 mW of leakage, 0.0038 mm²).
pub const LOOKUP_FEMTOJOULES: u64 = 1_700;

/// Lines of a 4 KB page.
pub const LINES_PER_PAGE: u8 = 64;

/// One of a migration's two frames, as named by an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Alias {
    /// The frame that the page leaves.
    Source,
    /// The frame that the page goes to.
    Destination,
}

impl Alias {
    /// The other frame.
    #[inline]
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Source => Self::Destination,
            Self::Destination => Self::Source,
        }
    }
}

/// Caching of a migrating page's lines in private caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(contigua_state::Plain)]
pub enum Mode {
    /// They may, each line under one of the two frames at a time (article, "Hardware Migration of
    /// Previously Unmovable Pages", step 4).
    #[default]
    Cacheable,
    /// They may not: every access is served by the LLC. Simpler and slower; published as a design
    /// point without details. Here the LLC's reply tells the core not to keep the line; a flag in
    /// the page table would reach a core only after an invalidation of its TLB, which is what
    /// migration avoids.
    Noncacheable,
}

/// When the page tables are switched. Both orders are public.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(contigua_state::Plain)]
pub enum SwitchOrder {
    /// Copy, then set the page tables, then wait for invalidations (the article, steps 1 to 5).
    #[default]
    CopyThenSwitch,
    /// Set the page tables, wait for invalidations, then copy (the authors' draft of 2024-10).
    SwitchThenCopy,
}

/// Request to the LLC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// A core's load, fetch or page walk missed its private caches.
    Read,
    /// A core wants to write: a store or an atomic operation that missed, or that hit a shared line.
    Own,
    /// A private cache gives a dirty line back, by eviction or because it was recalled. It goes to the
    /// frame that has the line, not to the one that it names (ours: the article redirects
    /// "appropriate traffic").
    WriteBack,
    /// A device reads.
    DeviceRead,
    /// A device writes.
    DeviceWrite,
}

/// Service of a request by the LLC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The frame that has the line, or receives it.
    pub location: Alias,
    /// First recall the line from every private cache, the requester's too, that holds it under the
    /// other frame; dirty data is a [`Request::WriteBack`] of that frame (article, step 4).
    pub invalidate_opposite: bool,
    /// True if the requester may keep the line. If not, a read gets the data only, and a write is
    /// performed at `location`.
    pub retain: bool,
}

/// Why a table does not accept a migration. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Every entry is in use: try again when one was retired.
    #[error("all {capacity} entries of the migration table are in use")]
    Full {
        /// Entries that the table has.
        capacity: usize,
    },
    /// Source and destination are one frame.
    #[error("{frame} cannot move onto itself")]
    Same {
        /// The frame.
        frame: Frame,
    },
    /// A migration from or to this frame is under way; chains are not followed.
    #[error("{frame} is in use by another migration")]
    Busy {
        /// The frame.
        frame: Frame,
    },
}

/// Why an entry cannot go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClearError {
    /// R1: lines are still to be copied.
    #[error("only {pointer} of {lines} lines are copied")]
    NotCopied {
        /// Lines that were copied.
        pointer: u8,
        /// Lines of a page.
        lines: u8,
    },
    /// [`Table::retire`] before [`Table::clear`].
    #[error("the entry was not cleared")]
    NotCleared,
}

/// A migration that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Admission {
    /// Its entry.
    pub entry: EntryId,
    /// Recall the source's lines from private caches now ([`Mode::Noncacheable`]; ours); only then
    /// may the copy begin and the operating system be told.
    pub recall_source_lines: bool,
}

/// One step of the copying engine: recall the line, copy it. Atomic for requests to this line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct CopyStep {
    /// Line of the page.
    pub line: u8,
    /// The frame that it is copied from.
    pub source: Frame,
    /// The frame that it is copied to.
    pub destination: Frame,
    /// Before the copy, take the line out of private caches under the source frame; dirty data goes
    /// to the source (article, step 2).
    pub recall_source: bool,
    /// Access under the destination frame; dirty data goes to the source too, which has the line
    /// until it is copied.
    pub recall_destination: bool,
    /// True for the page's last line: tell the operating system.
    pub last: bool,
}

/// Steps before a cleared entry may be retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Clearing {
    /// R4 (ours): recall the source's lines from private caches. Do it while the entry lives, so that
    /// dirty data goes to the destination as all write-backs do.
    pub recall_source_lines: bool,
}

/// A migration that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// The frame that the page left.
    pub source: Frame,
    /// The frame that has it.
    pub destination: Frame,
}

/// Names a live entry of a table. Valid from [`Table::migrate`] to [`Table::retire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, contigua_state::Plain)]
pub struct EntryId(u8);

impl EntryId {
    /// The entry's place in the table, below its capacity.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Progress of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, contigua_state::Plain)]
enum Progress {
    /// Requests are redirected; the copy has not been started.
    #[default]
    Waiting,
    /// The engine copies, or has copied, the lines below the pointer.
    Copying,
    /// An uncorrectable memory error stopped the copy for good.
    Frozen,
    /// All lines are copied, and Clear was received.
    Clearing,
}

/// Source frame, destination frame, next line to copy, flags (article, "metadata table").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, contigua_state::Plain)]
struct Entry {
    source: Frame,
    destination: Frame,
    pointer: u8,
    mode: Mode,
    order: SwitchOrder,
    progress: Progress,
}

/// The table of migrations of an LLC.
///
/// The lines of a page, and of its two frames, are spread over the slices of an LLC; the sources do
/// not say how slices agree. Here, as in a machine that sends each request for line *i* to the slice
/// of the source's line *i*, there is one point where requests for a line are put in order, and one
/// table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, contigua_state::State)]
pub struct Table {
    entries: [Entry; MAX_ENTRIES],
    /// Bit *i*: entry *i* is live. Entries that are not are all zero.
    live: u16,
    #[state(skip)]
    capacity: u8,
    #[state(skip)]
    lines: u8,
}

impl Table {
    /// An empty table of `capacity` entries for pages of 64 lines.
    ///
    /// # Panics
    /// If the capacity is 0 or above [`MAX_ENTRIES`].
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self::with_lines(capacity, LINES_PER_PAGE)
    }

    /// An empty table for pages of `lines` lines: a model checker's pages have one or two.
    ///
    /// # Panics
    /// If the capacity is 0 or above [`MAX_ENTRIES`], or pages have no lines or more than 64.
    #[must_use]
    pub const fn with_lines(capacity: usize, lines: u8) -> Self {
        assert!(capacity > 0 && capacity <= MAX_ENTRIES);
        assert!(lines > 0 && lines <= LINES_PER_PAGE);
        let free = Entry {
            source: Frame::new(0),
            destination: Frame::new(0),
            pointer: 0,
            mode: Mode::Cacheable,
            order: SwitchOrder::CopyThenSwitch,
            progress: Progress::Waiting,
        };
        Self {
            entries: [free; MAX_ENTRIES],
            live: 0,
            capacity: capacity as u8,
            lines,
        }
    }

    /// Bits of storage in each slice. An entry has two frame numbers of 40 bits, the next line to
    /// copy (0 to 64), and flags (article, "metadata table"; mechanisms B1 counts three of them).
    #[must_use]
    pub const fn storage_bits(&self) -> u64 {
        const ENTRY_BITS: u64 = 40 + 40 + 7 + 3;
        self.capacity as u64 * ENTRY_BITS
    }

    /// Returns true if no migration is under way, so that every request is served as if there were
    /// no table.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Migrations under way.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live.count_ones() as usize
    }

    /// Migrations that can be under way at the same time.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The migrations under way, in the order of their entries.
    pub fn entries(&self) -> impl Iterator<Item = EntryId> + use<> {
        let live = self.live;
        (0..MAX_ENTRIES as u8)
            .filter(move |slot| live >> slot & 1 == 1)
            .map(EntryId)
    }

    /// The migration that this frame takes part in, and as what.
    #[inline]
    #[must_use]
    pub fn find(&self, frame: Frame) -> Option<(EntryId, Alias)> {
        let mut rest = self.live;
        while rest != 0 {
            let slot = rest.trailing_zeros();
            let entry = &self.entries[slot as usize];
            if entry.source == frame {
                return Some((EntryId(slot as u8), Alias::Source));
            }
            if entry.destination == frame {
                return Some((EntryId(slot as u8), Alias::Destination));
            }
            rest &= rest - 1;
        }
        None
    }

    /// The command Migrate: from now on requests for both frames are redirected (article, step 1).
    /// In [`SwitchOrder::CopyThenSwitch`] the copy begins when the source's lines were recalled, if
    /// they have to be.
    ///
    /// The operating system vouches that `destination` is free, its own, and not in private caches
    /// ([`TransferEffect::FlushDestination`](crate::migration::TransferEffect::FlushDestination)),
    /// and that both frames are 4 KB pages.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing has changed. A full table is reported last, since only that passes.
    pub fn migrate(
        &mut self,
        source: Frame,
        destination: Frame,
        mode: Mode,
        order: SwitchOrder,
    ) -> Result<Admission, Refusal> {
        if source == destination {
            return Err(Refusal::Same { frame: source });
        }
        for frame in [source, destination] {
            if self.find(frame).is_some() {
                return Err(Refusal::Busy { frame });
            }
        }
        let slot = self.live.trailing_ones() as usize;
        if slot >= self.capacity() {
            return Err(Refusal::Full {
                capacity: self.capacity(),
            });
        }
        self.live |= 1 << slot;
        self.entries[slot] = Entry {
            source,
            destination,
            pointer: 0,
            mode,
            order,
            progress: match order {
                SwitchOrder::CopyThenSwitch => Progress::Copying,
                SwitchOrder::SwitchThenCopy => Progress::Waiting,
            },
        };
        Ok(Admission {
            entry: EntryId(slot as u8),
            recall_source_lines: mode == Mode::Noncacheable,
        })
    }

    /// Returns the service of a request for line `line` of the page, by either frame. The whole
    /// service of a request, and a step of the copy, are atomic towards each other for one line.
    ///
    /// The destination has the lines below the pointer, the source the others, whichever frame the
    /// request names: reads, writes, devices and write-backs alike (article: the page may be accessed
    /// with either mapping during the copy).
    #[inline]
    #[must_use]
    pub fn serve(&self, entry: EntryId, line: u8, request: Request) -> Service {
        let entry = self.entry(entry);
        let location = if line < entry.pointer {
            Alias::Destination
        } else {
            Alias::Source
        };
        // In noncacheable mode nothing enters private caches after Migrate has emptied them.
        let cacheable = entry.mode == Mode::Cacheable;
        Service {
            location,
            invalidate_opposite: cacheable && request != Request::WriteBack,
            retain: cacheable && matches!(request, Request::Read | Request::Own),
        }
    }

    /// The command that starts the copy in [`SwitchOrder::SwitchThenCopy`]. Without effect if the
    /// copy has begun.
    pub fn start_copy(&mut self, entry: EntryId) {
        let entry = self.entry_mut(entry);
        if entry.progress == Progress::Waiting {
            entry.progress = Progress::Copying;
        }
    }

    /// The next step of the copy, which the caller performs before it serves another request for
    /// that line. `None` when all lines are copied, or the copy was not started or was frozen.
    pub fn copy_step(&mut self, entry: EntryId) -> Option<CopyStep> {
        let lines = self.lines;
        let entry = self.entry_mut(entry);
        if entry.progress != Progress::Copying || entry.pointer == lines {
            return None;
        }
        let line = entry.pointer;
        entry.pointer += 1;
        let recall = entry.mode == Mode::Cacheable;
        Some(CopyStep {
            line,
            source: entry.source,
            destination: entry.destination,
            recall_source: recall,
            recall_destination: recall,
            last: entry.pointer == lines,
        })
    }

    /// Stops the copy for good because the next line cannot be read or written. Requests are
    /// redirected as before; the entry stays, and the operating system never frees the source.
    pub fn freeze(&mut self, entry: EntryId) {
        let entry = self.entry_mut(entry);
        if matches!(entry.progress, Progress::Waiting | Progress::Copying) {
            entry.progress = Progress::Frozen;
        }
    }

    /// The command Clear: the operating system has seen R2 and R3, the hardware looks at R1 (all
    /// lines are copied) and says what R4 (no private cache has a source line) takes. The entry
    /// redirects until [`Table::retire`].
    ///
    /// In [`SwitchOrder::SwitchThenCopy`] no core could name the source any more when the copy
    /// recalled its lines, and in [`Mode::Noncacheable`] none could keep one.
    ///
    /// # Errors
    /// [`ClearError::NotCopied`]; nothing has changed.
    pub fn clear(&mut self, entry: EntryId) -> Result<Clearing, ClearError> {
        let lines = self.lines;
        let entry = self.entry_mut(entry);
        if entry.pointer < lines {
            return Err(ClearError::NotCopied {
                pointer: entry.pointer,
                lines,
            });
        }
        entry.progress = Progress::Clearing;
        Ok(Clearing {
            recall_source_lines: entry.order == SwitchOrder::CopyThenSwitch
                && entry.mode == Mode::Cacheable,
        })
    }

    /// Ends the migration; [`Clearing`] was obeyed. Tell the operating system.
    ///
    /// # Errors
    /// [`ClearError::NotCleared`]; nothing has changed.
    pub fn retire(&mut self, entry: EntryId) -> Result<Retired, ClearError> {
        let Entry {
            source,
            destination,
            progress,
            ..
        } = *self.entry(entry);
        if progress != Progress::Clearing {
            return Err(ClearError::NotCleared);
        }
        self.entries[entry.index()] = Entry::default();
        self.live &= !(1 << entry.0);
        Ok(Retired {
            source,
            destination,
        })
    }

    /// The frame behind an alias.
    #[inline]
    #[must_use]
    pub fn frame(&self, entry: EntryId, alias: Alias) -> Frame {
        let entry = self.entry(entry);
        match alias {
            Alias::Source => entry.source,
            Alias::Destination => entry.destination,
        }
    }

    /// The next line to copy: the lines below it are in the destination.
    #[must_use]
    pub fn pointer(&self, entry: EntryId) -> u8 {
        self.entry(entry).pointer
    }

    /// Returns true if the copy has been started and is neither complete nor frozen.
    #[must_use]
    pub fn is_copying(&self, entry: EntryId) -> bool {
        let entry = self.entry(entry);
        entry.progress == Progress::Copying && entry.pointer < self.lines
    }

    /// Caching of this page's lines in private caches.
    #[must_use]
    pub fn mode(&self, entry: EntryId) -> Mode {
        self.entry(entry).mode
    }

    /// When this page's tables are switched.
    #[must_use]
    pub fn order(&self, entry: EntryId) -> SwitchOrder {
        self.entry(entry).order
    }

    /// Checks that frames take part in one migration at most, that pointers are in range, and that
    /// free entries are empty.
    ///
    /// # Errors
    /// A sentence that names the entry.
    pub fn validate(&self) -> Result<(), String> {
        if u32::from(self.live) >> self.capacity != 0 {
            return Err(format!(
                "an entry beyond the capacity of {} is live: {:#b}",
                self.capacity, self.live
            ));
        }
        for (slot, entry) in self.entries.iter().enumerate() {
            if self.live >> slot & 1 == 0 {
                if *entry != Entry::default() {
                    return Err(format!("entry {slot} is free but not empty: {entry:?}"));
                }
                continue;
            }
            if entry.pointer > self.lines {
                return Err(format!(
                    "entry {slot} copied {} lines of {}",
                    entry.pointer, self.lines
                ));
            }
            let copied = entry.pointer == self.lines;
            let waits = entry.progress == Progress::Waiting;
            if waits && entry.pointer > 0 || entry.progress == Progress::Clearing && !copied {
                return Err(format!("entry {slot} is inconsistent: {entry:?}"));
            }
            if self.find(entry.source) != Some((EntryId(slot as u8), Alias::Source))
                || self.find(entry.destination) != Some((EntryId(slot as u8), Alias::Destination))
            {
                return Err(format!("entry {slot} shares a frame: {entry:?}"));
            }
        }
        Ok(())
    }

    #[inline]
    fn entry(&self, entry: EntryId) -> &Entry {
        debug_assert!(self.live >> entry.0 & 1 == 1, "{entry:?} is not live");
        &self.entries[entry.index()]
    }

    #[inline]
    fn entry_mut(&mut self, entry: EntryId) -> &mut Entry {
        debug_assert!(self.live >> entry.0 & 1 == 1, "{entry:?} is not live");
        &mut self.entries[entry.index()]
    }
}
