//! Conventional translation: an L2 TLB, page-walk caches, and a walker of the radix table.

use contigua_paging::{Leaf, SpaceId};
use contigua_units::{Cycles, PageSize, PhysAddr, VirtAddr, VirtRange};

use crate::tlb::L2Tlb;
use crate::walker::{HostFault, Walked, Walker};
use crate::{
    Access, Error, Evicted, Hardware, MemoryPort, Request, Tables, Translation, Translator,
    TranslatorCounters,
};

/// The hardware of today's processors behind the L1 TLBs. Schemes build on it: they look up, walk
/// and fill as [`Radix::translate`](Translator::translate) does, and put their own in between.
///
/// ```
/// use contigua_paging::{HoleBitmaps, Leaf, PageTable, Segment, SpaceId};
/// use contigua_translation::*;
/// use contigua_units::{Cycles, Frame, PageSize, PhysAddr, VirtAddr};
///
/// struct TenCycles;
///
/// impl MemoryPort for TenCycles {
///     fn reference(&mut self, _: PhysAddr) -> Cycles {
///         Cycles::new(10)
///     }
/// }
///
/// // An L2 TLB of four sets with one way.
/// let tlb: TlbConfig = toml::from_str(
///     r#"
///     l1d = { 4k = { entries = 4, ways = 4 } }
///     l1i = { 4k = { entries = 4, ways = 4 } }
///     l2 = [{ entries = 4, ways = 1, latency_cycles = 7, holds = ["4k"] }]
///     "#,
/// )?;
/// let walk_cache = WalkCacheConfig::default();
/// let hardware = Hardware { tlb: &tlb, walk_cache: &walk_cache, nested: None };
/// let mut radix = Radix::new(&hardware)?;
///
/// // Pages 0 to 7 are in frames 100 to 107.
/// let (mut table, mut nodes) = (PageTable::new(Frame::new(0)), 1..);
/// for page in 0..8 {
///     let leaf = Leaf::new(Frame::new(100 + page), PageSize::Size4K, true);
///     let address = VirtAddr::new(u64::from(page) << 12);
///     table.map(address, leaf, |_| nodes.next().map(Frame::new)).unwrap();
/// }
/// let holes = HoleBitmaps::default();
/// let mut tables = Tables {
///     table: &mut table,
///     holes: &holes,
///     segment: Segment::NONE,
///     rest_segs: None,
///     host: None,
/// };
///
/// let read = |page: u64| Request::new(VirtAddr::new(page << 12), SpaceId(0), Access::Read);
/// assert_eq!(radix.look_up(&read(1)), None);
/// let (leaf, cycles) = radix.walk(&read(1), &mut tables, &mut TenCycles).unwrap();
/// // The L2 TLB and four levels of tables.
/// assert_eq!((leaf.frame, cycles), (Frame::new(101), Cycles::new(7 + 4 * 10)));
/// assert_eq!(radix.fill(&read(1), leaf), None);
/// assert_eq!(radix.look_up(&read(1)).unwrap().frame, leaf.frame);
///
/// // Page 5 has the same set: page 1 is evicted.
/// let (other, _) = radix.walk(&read(5), &mut tables, &mut TenCycles).unwrap();
/// let evicted = radix.fill(&read(5), other).unwrap();
/// assert_eq!((evicted.address, evicted.leaf.frame), (read(1).address, leaf.frame));
///
/// // No page: the fault is what `translate` returns.
/// let fault = radix.walk(&read(8), &mut tables, &mut TenCycles).unwrap_err();
/// assert!(matches!(fault, Translation::Fault { host: None, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, contigua_state::State)]
pub struct Radix {
    pub(crate) l2: L2Tlb,
    pub(crate) walker: Walker,
    /// Bits that an entry for a page of 2 MB has beside those of a page.
    #[state(skip)]
    pub(crate) map_bits: u64,
}

impl Radix {
    /// Empty structures.
    ///
    /// # Errors
    /// [`Error`], when a geometry is impossible.
    pub fn new(hardware: &Hardware<'_>) -> Result<Self, Error> {
        Self::with_groups(hardware, 0)
    }

    /// Empty structures, with L2 TLB entries for aligned groups of at most two to the power of `group` pages.
    pub(crate) fn with_groups(hardware: &Hardware<'_>, group: u32) -> Result<Self, Error> {
        Ok(Self {
            l2: L2Tlb::new(&hardware.tlb.l2, group)?,
            walker: Walker::new(hardware)?,
            map_bits: 0,
        })
    }

    /// Cycles that a look-up of the L2 TLB takes.
    #[must_use]
    pub fn latency(&self) -> Cycles {
        self.l2.latency()
    }

    /// The page that the L2 TLB has, if it allows the access.
    #[inline]
    pub fn look_up(&mut self, request: &Request) -> Option<Leaf> {
        let leaf = self.l2.lookup(request.address, request.space)?;
        if allows(leaf, request.access) {
            self.walker.counters.hit(leaf.size);
            return Some(leaf);
        }
        // The tables may allow by now what they did not allow before.
        self.l2.remove(request.address, request.space);
        None
    }

    /// Returns true if the L2 TLB has a page of an address, which is no use of its entry.
    #[must_use]
    pub fn holds(&self, address: VirtAddr, space: SpaceId) -> bool {
        self.l2.holds(address, space)
    }

    /// Enters a page in the L2 TLB, if it holds its size, and returns what had to go.
    #[inline]
    pub fn fill(&mut self, request: &Request, leaf: Leaf) -> Option<Evicted> {
        self.l2.insert(request.address, request.space, leaf)
    }

    /// Counts a miss of the first level that was answered without a walk.
    pub fn count_hit(&mut self, size: PageSize) {
        self.walker.counters.hit(size);
    }

    /// Walks the tables: the page around the address with any holes resolved, and the cycles since
    /// the first-level miss, those of the L2 TLB included. The L2 TLB stays as it is.
    ///
    /// # Errors
    /// The fault, when no page allows the access.
    #[inline]
    pub fn walk(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Result<(Leaf, Cycles), Translation> {
        let mut latency = self.l2.latency();
        let walked = self.walker.walk(request, tables, port, &mut latency);
        self.finish(walked, request, tables, port, latency)
    }

    /// Reads entries of hashed tables, all at once, where others walk; as [`Radix::walk`]. `begun` is the time from
    /// the miss in the L2 TLB until the entries are read.
    ///
    /// # Errors
    /// The fault, when no page allows the access.
    pub fn probe(
        &mut self,
        request: &Request,
        entries: &[PhysAddr],
        begun: Cycles,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Result<(Leaf, Cycles), Translation> {
        let mut latency = self.l2.latency() + begun;
        let walked = self
            .walker
            .probe(request, entries, tables, port, &mut latency);
        self.finish(walked, request, tables, port, latency)
    }

    /// Reads an entry of hashed tables before others; `begun` grows by the time. What faults is the host's table.
    ///
    /// # Errors
    /// The fault.
    pub fn read(
        &mut self,
        entry: PhysAddr,
        begun: &mut Cycles,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Result<(), Translation> {
        let read = self.walker.reference(entry, tables, port, begun);
        read.map_err(|HostFault(address)| {
            self.walker.counters.walks_faulting += 1;
            Translation::Fault {
                latency: self.l2.latency() + *begun,
                host: Some(address),
            }
        })
    }

    /// Bits of storage of hardware that walks no trees, but those of a host.
    #[must_use]
    pub fn storage_bits_without_walk_caches(&self) -> u64 {
        self.storage_bits() - self.walker.cache.storage_bits()
    }

    /// Makes an answer of what a walk found.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        walked: Walked,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        mut latency: Cycles,
    ) -> Result<(Leaf, Cycles), Translation> {
        let mut outcome = match walked {
            Walked::Found(found) => Ok(found),
            Walked::Fault { host } => Err(host),
        };
        // A host that perforates does so behind the back of hardware that does not.
        if let Ok(found) = &mut outcome
            && found.host.is_some_and(|host| host.perforation.is_some())
        {
            let physical = found.guest.physical(request.address);
            match self.walker.host_piece(physical, tables, port, &mut latency) {
                Ok(piece) => found.host = piece,
                Err(fault) => outcome = Err(Some(fault.0)),
            }
        }
        let counters = &mut self.walker.counters;
        match outcome {
            Ok(found) => {
                let page = found.page(request.address);
                counters.found(page.size);
                Ok((page, latency))
            }
            Err(host) => {
                counters.walks_faulting += 1;
                Err(Translation::Fault { latency, host })
            }
        }
    }
}

/// Returns true if a page allows an access.
#[must_use]
pub fn allows(leaf: Leaf, access: Access) -> bool {
    leaf.writable || access != Access::Write
}

/// A walk that began `time` after the L2 TLB had missed.
///
/// # Errors
/// As the walk's, that much later.
pub fn behind(
    time: Cycles,
    walked: Result<(Leaf, Cycles), Translation>,
) -> Result<(Leaf, Cycles), Translation> {
    match walked {
        Ok((leaf, latency)) => Ok((leaf, latency + time)),
        Err(Translation::Fault { latency, host }) => Err(Translation::Fault {
            latency: latency + time,
            host,
        }),
        Err(page) => Err(page),
    }
}

/// The answer that is a page, for the first-level TLB.
#[must_use]
pub fn page(leaf: Leaf, latency: Cycles, walked: bool) -> Translation {
    Translation::Page {
        leaf,
        latency,
        walked,
        group: false,
    }
}

impl Translator for Radix {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.look_up(request) {
            return page(leaf, self.l2.latency(), false);
        }
        match self.walk(request, tables, port) {
            Ok((leaf, latency)) => {
                self.fill(request, leaf);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.l2.invalidate(space, range);
        self.walker.invalidate(space, range);
    }

    fn flush(&mut self) {
        self.l2.clear();
        self.walker.flush();
    }

    fn counters(&self) -> TranslatorCounters {
        self.walker.counters
    }

    fn reset_counters(&mut self) {
        self.walker.counters = TranslatorCounters::default();
    }

    fn first_level_bits(&self, size: PageSize) -> u64 {
        u64::from(size == PageSize::Size2M) * self.map_bits
    }

    fn storage_bits(&self) -> u64 {
        let maps = self.l2.capacity_for(PageSize::Size2M) * self.map_bits;
        self.l2.storage_bits() + maps + self.walker.storage_bits()
    }
}

/// The address of the aligned group of pages around an address, and the page's number in it.
pub(crate) fn group_of(address: VirtAddr, group: u32) -> (VirtAddr, u32) {
    let bytes = contigua_units::PAGE_BYTES << group;
    let start = address.align_down(bytes);
    let part = (address - start) / contigua_units::PAGE_BYTES;
    (start, part as u32)
}

impl TranslatorCounters {
    /// Walks, whatever they found.
    #[must_use]
    pub const fn walks(&self) -> u64 {
        self.walks_4k + self.walks_2m + self.walks_1g + self.walks_faulting
    }

    /// Cycles of an average walk.
    #[must_use]
    pub fn cycles_per_walk(&self) -> f64 {
        let cycles: Cycles = self.walk_cycles;
        cycles.get() as f64 / self.walks().max(1) as f64
    }
}
