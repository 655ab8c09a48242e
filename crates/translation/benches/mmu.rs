//! Cost of one translation, by where it is found.

use std::hint::black_box;

use contigua_cache::Geometry;
use contigua_paging::{HoleBitmaps, Leaf, PageTable, Segment, SpaceId};
use contigua_translation::schemes::base;
use contigua_translation::{
    Access, Hardware, L1Config, L2Config, Lookup, MemoryPort, Mmu, Request, Tables, TlbConfig,
    WalkCacheConfig,
};
use contigua_units::{Cycles, Frame, PageSize, PhysAddr, VirtAddr};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

struct Free;

impl MemoryPort for Free {
    fn reference(&mut self, _: PhysAddr) -> Cycles {
        Cycles::ZERO
    }
}

fn skylake() -> Mmu {
    let geometry = |entries, ways| Some(Geometry { entries, ways });
    let tlb = TlbConfig {
        l1d: L1Config {
            pages_4k: geometry(64, 4),
            pages_2m: geometry(32, 4),
            pages_1g: geometry(4, 4),
        },
        l1i: L1Config {
            pages_4k: geometry(128, 8),
            pages_2m: geometry(8, 8),
            pages_1g: None,
        },
        l2: vec![L2Config {
            entries: 1536,
            ways: 12,
            latency_cycles: Cycles::new(9),
            holds: vec![PageSize::Size4K, PageSize::Size2M],
        }],
        address_space_ids: true,
    };
    let walk_cache = WalkCacheConfig {
        pml5e: None,
        pml4e: geometry(2, 2),
        pdpte: geometry(4, 4),
        pde: geometry(32, 4),
        start_cycles: Cycles::ZERO,
    };
    let hardware = Hardware {
        tlb: &tlb,
        walk_cache: &walk_cache,
        nested: None,
    };
    Mmu::new(&hardware, &base::Config {}).expect("a well-formed preset")
}

fn translations(c: &mut Criterion) {
    const PAGES: u64 = 1 << 16;
    let mut table = PageTable::new(Frame::new(0));
    let mut node = 1 << 24;
    for page in 0..PAGES {
        let leaf = Leaf::new(Frame::new(page as u32 + 1), PageSize::Size4K, true);
        let new_node = |_| {
            node += 1;
            Some(Frame::new(node))
        };
        table
            .map(VirtAddr::new(page << 12), leaf, new_node)
            .expect("pages are mapped once");
    }
    let holes = HoleBitmaps::default();
    let mut group = c.benchmark_group("mmu");
    group.throughput(Throughput::Elements(1));
    for (name, pages) in [("l1", 16), ("l2", 1024), ("walk", PAGES)] {
        let mut mmu = skylake();
        let mut state = 1_u64;
        group.bench_function(name, |b| {
            b.iter(|| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let address = VirtAddr::new(((state >> 33) % pages) << 12);
                match mmu.read(address, SpaceId(1)) {
                    Lookup::Hit(physical) => black_box(physical),
                    Lookup::Miss => {
                        let request = Request::new(address, SpaceId(1), Access::Read);
                        let mut tables = Tables {
                            table: &mut table,
                            holes: &holes,
                            segment: Segment::NONE,
                            rest_segs: None,
                            host: None,
                        };
                        black_box(mmu.miss(&request, &mut tables, &mut Free));
                        PhysAddr::default()
                    }
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, translations);
criterion_main!(benches);
