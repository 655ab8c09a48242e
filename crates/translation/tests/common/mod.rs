//! Small servers for tests of translation.
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use contigua_cache::Geometry;
use contigua_frames::{Boxed, Config, FrameClass, Frames, Layout, Placement};
use contigua_paging::{AddressSpace, Buckets, Effects, Memory, Segment, SpaceId, TableShape};
use contigua_translation::{
    Access, Answer, Hardware, HostTables, L1Config, L2Config, Lookup, MemoryPort, Mmu,
    NestedConfig, Request, Scheme, SchemeConfig, Tables, TlbConfig, WalkCacheConfig,
};
use contigua_units::{Bytes, Cycles, PAGE_BYTES, PageSize, PhysAddr, VirtAddr};

pub const BASE: u64 = 0x4000_0000;
pub const ID: SpaceId = SpaceId(0);
pub const L2_LATENCY: u64 = 7;

/// Remembers what walkers read; each reference takes 100 cycles.
#[derive(Default)]
pub struct Recorder(pub Vec<PhysAddr>);

impl MemoryPort for Recorder {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        self.0.push(address);
        Cycles::new(100)
    }

    /// Takes as long as one.
    fn references_at_once(&mut self, addresses: &[PhysAddr]) -> Cycles {
        self.0.extend(addresses.first());
        Cycles::new(100)
    }

    /// Nobody waits for it: it is not remembered.
    fn reference_aside(&mut self, _: PhysAddr) {}
}

pub const fn geometry(entries: u32, ways: u32) -> Geometry {
    Geometry { entries, ways }
}

/// TLBs as large as Skylake's.
pub fn tlb() -> TlbConfig {
    let l1 = L1Config {
        pages_4k: Some(geometry(64, 4)),
        pages_2m: Some(geometry(32, 4)),
        pages_1g: None,
    };
    TlbConfig {
        l1d: l1.clone(),
        l1i: l1,
        l2: vec![L2Config {
            entries: 1536,
            ways: 12,
            latency_cycles: Cycles::new(L2_LATENCY),
            holds: vec![PageSize::Size4K, PageSize::Size2M],
        }],
        address_space_ids: true,
    }
}

/// TLBs with few entries, which fill.
pub fn small_tlb() -> TlbConfig {
    let l1 = L1Config {
        pages_4k: Some(geometry(8, 2)),
        pages_2m: Some(geometry(2, 2)),
        pages_1g: None,
    };
    let mut tlb = tlb();
    (tlb.l1d, tlb.l1i) = (l1.clone(), l1);
    (tlb.l2[0].entries, tlb.l2[0].ways) = (32, 4);
    tlb
}

pub fn scheme(name: &str, more: &str) -> SchemeConfig {
    #[derive(serde::Deserialize)]
    struct Design {
        translation: SchemeConfig,
    }
    let text = format!("[translation.{name}]\n{more}");
    toml::from_str::<Design>(&text).unwrap().translation
}

/// A scheme with its name.
#[derive(Clone)]
pub struct Tested {
    pub name: String,
    scheme: Rc<dyn Deref<Target = dyn Scheme>>,
}

impl Tested {
    /// One of the list, with parameters.
    pub fn listed(name: &str, more: &str) -> Self {
        Self {
            name: format!("{name} {more}"),
            scheme: Rc::new(scheme(name, more)),
        }
    }

    /// Any other.
    pub fn new(name: &str, config: impl Scheme + 'static) -> Self {
        let config: Box<dyn Scheme> = Box::new(config);
        Self {
            name: name.to_owned(),
            scheme: Rc::new(config),
        }
    }
}

impl Deref for Tested {
    type Target = dyn Scheme;

    fn deref(&self) -> &Self::Target {
        &**self.scheme
    }
}

impl fmt::Debug for Tested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Every scheme of the list, some with other parameters, and that of the guide.
pub fn schemes() -> Vec<Tested> {
    let variants = [
        ("perforated", "lazy = true"),
        ("direct-segment", "policy = \"opt-in\""),
        ("colt", "run_log2 = 3"),
        ("colt", "run_log2 = 0\nhuge.enabled = \"always\""),
        ("amd-coalescing", "group_log2 = 3"),
        (
            "amd-coalescing",
            "huge.enabled = \"madvise\"\nhuge.sizes = { 16kB = \"always\", 256kB = \"inherit\" }",
        ),
        ("arm-contiguous", "huge.sizes.1024kB = \"always\""),
        ("thp", "sizes = { 32kB = \"always\", 512kB = \"madvise\" }"),
        ("spot", "least_pages = 1\nconfidence = 0"),
        ("atp-sbfp", "threshold = 0"),
        ("svnapot", "largest_log2 = 3"),
        ("svnapot", "largest_log2 = 4\nall_sizes = false"),
        ("mosaic", "arity_log2 = 6"),
        ("mosaic", "arity_log2 = 1\nhuge.enabled = \"madvise\""),
        // Sets of few ways, which fill; most of memory, and none.
        (
            "utopia",
            "base_share = 0.03\nbase_ways = 1\nhuge_share = 0.13\nhuge_ways = 1",
        ),
        (
            "utopia",
            "base_share = 0.4\nhuge_share = 0.2\nhuge_ways = 2\ncache = \"256\"",
        ),
        (
            "utopia",
            "base_share = 0.0\nhuge_share = 0.0\nhuge.enabled = \"never\"",
        ),
        ("chirp", "counters = 16\nthreshold = 1"),
        ("victima", "least_walks = 0\nleast_cost = 0\nmost_cost = 15"),
        ("ecpt", "way = \"4KiB\"\nfull_percent = 10"),
        ("hdc", "size = \"16KiB\"\nhuge.enabled = \"always\""),
        ("dmt", "least = \"2MiB\""),
        (
            "dmt",
            "least = \"2MiB\"\nregisters = 2\nmerge_percent = 50\nhuge.enabled = \"never\"",
        ),
        (
            "ecpt",
            "way = \"4KiB\"\nchunk = \"4KiB\"\nfull_percent = 10\nways = 4",
        ),
    ];
    let listed = SchemeConfig::NAMES.iter().map(|&name| match name {
        "hugetlb" => (name, "page = \"2m\""),
        // Memory is small.
        "hdc" => (name, "size = \"64KiB\""),
        _ => (name, ""),
    });
    let all = listed.chain(variants);
    let mut all: Vec<_> = all.map(|(name, more)| Tested::listed(name, more)).collect();
    all.push(Tested::new("victim", crate::victim::Config::default()));
    all
}

/// An MMU with such TLBs and page-walk caches, of a machine or of a virtual one.
pub fn mmu_of(
    scheme: &dyn Scheme,
    tlb: &TlbConfig,
    walk_cache: &WalkCacheConfig,
    nested: Option<&NestedConfig>,
) -> Mmu {
    let hardware = Hardware {
        tlb,
        walk_cache,
        nested,
    };
    Mmu::new(&hardware, scheme).unwrap()
}

/// An MMU without page-walk caches, so that walks read everything.
pub fn mmu_without_walk_caches(scheme: &SchemeConfig, nested: bool) -> Mmu {
    let walk_cache = WalkCacheConfig::default();
    let config = NestedConfig {
        tlb: None,
        walk_cache: walk_cache.clone(),
    };
    mmu_of(&**scheme, &tlb(), &walk_cache, nested.then_some(&config))
}

pub fn mmu(scheme: &SchemeConfig) -> Mmu {
    mmu_of(&**scheme, &tlb(), &NestedConfig::default().walk_cache, None)
}

pub fn memory(frames: usize) -> Memory {
    let config = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let layout = Layout::new(frames, 0, 1);
    Frames::new(Boxed::new(layout), config, Placement::default())
        .unwrap()
        .into()
}

/// Buckets in which a scheme's pages are placed.
pub fn buckets(scheme: &dyn Scheme, memory: &Memory) -> Option<Buckets> {
    let buckets = scheme.places_by_hash();
    buckets.then(|| Buckets::of(memory.total()))
}

/// Takes memory for the restrictive segments of a scheme.
pub fn take_rest_segs(scheme: &dyn Scheme, memory: &mut Memory) {
    let bytes = Bytes::new(memory.total() * PAGE_BYTES);
    memory.take_rest_segs(&scheme.rest_segs(bytes), true, &mut ());
}

pub fn space(scheme: &SchemeConfig, memory: &mut Memory) -> AddressSpace {
    let shape = TableShape {
        has_shadows: scheme.has_shadows(),
        hashing: scheme.hashing(),
        areas: scheme.areas(false),
        buckets: buckets(&**scheme, memory),
        ..TableShape::default()
    };
    let mut space = AddressSpace::with(ID, shape, memory).unwrap();
    grow(&mut space, memory);
    space
}

/// Lets hashed tables grow, as kernels do before faults and calls, and makes areas, as they do after them.
pub fn grow(space: &mut AddressSpace, memory: &mut Memory) {
    let take =
        |order, memory: &mut Memory| memory.take_block(order, FrameClass::PageTable, &mut ());
    space.grow_table(take, memory, &mut Effects::default());
    let take =
        |frames, memory: &mut Memory| memory.take_run(frames, FrameClass::PageTable, &mut ());
    space.make_areas(take, memory, &mut Effects::default());
}

/// Result of an access, and the references it made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Hit(PhysAddr),
    Translated(PhysAddr, Cycles, Vec<PhysAddr>),
    Fault,
}

impl Outcome {
    pub fn references(&self) -> usize {
        match self {
            Self::Translated(_, _, references) => references.len(),
            Self::Hit(_) | Self::Fault => 0,
        }
    }

    pub fn physical(&self) -> Option<PhysAddr> {
        match self {
            Self::Hit(physical) | Self::Translated(physical, ..) => Some(*physical),
            Self::Fault => None,
        }
    }
}

/// One access to tables that are as they are.
pub fn access(
    mmu: &mut Mmu,
    space: &mut AddressSpace,
    memory: &Memory,
    host: Option<(&mut AddressSpace, &Memory)>,
    address: VirtAddr,
    access: Access,
) -> Outcome {
    let lookup = match access {
        Access::Read => mmu.read(address, space.id()),
        Access::Write => mmu.write(address, space.id()),
        Access::Execute => mmu.fetch(address, space.id()),
    };
    if let Lookup::Hit(physical) = lookup {
        return Outcome::Hit(physical);
    }
    let request = Request::new(address, space.id(), access);
    let segment = space.segment();
    let mut tables = Tables {
        segment,
        table: space.table_mut(),
        holes: &memory.holes,
        rest_segs: None,
        host: host.map(|(space, memory)| HostTables {
            segment: space.segment(),
            table: space.table_mut(),
            holes: &memory.holes,
        }),
    };
    let mut port = Recorder::default();
    match mmu.miss(&request, &mut tables, &mut port) {
        Answer::Translated {
            physical, latency, ..
        } => Outcome::Translated(physical, latency, port.0),
        Answer::Fault { .. } => Outcome::Fault,
    }
}

/// Accesses an address, and lets the kernel handle a fault.
pub fn access_or_fault(
    mmu: &mut Mmu,
    space: &mut AddressSpace,
    memory: &mut Memory,
    scheme: &SchemeConfig,
    address: VirtAddr,
    kind: Access,
) -> Outcome {
    for _ in 0..6 {
        mmu.dispatch(space.segment(), true);
        let outcome = access(mmu, space, memory, None, address, kind);
        if outcome != Outcome::Fault {
            return outcome;
        }
        let mut effects = Effects::default();
        let write = kind == Access::Write;
        space
            .fault(address, write, &*scheme.policy(), memory, &mut effects)
            .unwrap();
        for range in effects.invalidations {
            mmu.invalidate(space.id(), range);
        }
    }
    panic!("{kind:?} at {address} faults for ever");
}

pub fn counter(mmu: &Mmu, name: &str) -> u64 {
    let counters = mmu.scheme_counters();
    let found = counters.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}

pub fn segment(base: u64, limit: u64, offset: u64) -> Segment {
    Segment {
        base: VirtAddr::new(base),
        limit: VirtAddr::new(limit),
        offset,
    }
}
