//! Misses of the TLB by working set: `cargo run --release -p contigua-translation --example reach`.

use contigua_cache::Geometry;
use contigua_paging::{HoleBitmaps, Leaf, PageTable, Segment, SpaceId};
use contigua_translation::schemes::base;
use contigua_translation::{
    Access, Hardware, L1Config, L2Config, Lookup, MemoryPort, Mmu, Request, Tables, TlbConfig,
    WalkCacheConfig,
};
use contigua_units::{Cycles, Frame, PageSize, PhysAddr, VirtAddr};

/// Memory that takes 50 cycles for an entry of a page table.
struct Flat;

impl MemoryPort for Flat {
    fn reference(&mut self, _: PhysAddr) -> Cycles {
        Cycles::new(50)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PAGES: u64 = 1 << 14;
    let geometry = |entries, ways| Some(Geometry { entries, ways });
    let first = L1Config {
        pages_4k: geometry(64, 4),
        pages_2m: geometry(32, 4),
        pages_1g: None,
    };
    let tlb = TlbConfig {
        l1d: first.clone(),
        l1i: first,
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

    let mut table = PageTable::new(Frame::new(0));
    let mut node = 1 << 24;
    for page in 0..PAGES {
        let leaf = Leaf::new(Frame::new(page as u32 + 1), PageSize::Size4K, true);
        table.map(VirtAddr::new(page << 12), leaf, |_| {
            node += 1;
            Some(Frame::new(node))
        })?;
    }
    let holes = HoleBitmaps::default();

    println!("working set  L1 misses  page walks, of 100 loads");
    for pages in [32, 1024, PAGES] {
        let mut mmu = Mmu::new(&hardware, &base::Config {})?;
        let loads = 4 * PAGES;
        for step in 0..loads {
            let page = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let address = VirtAddr::new((page % pages) << 12);
            let request = Request::new(address, SpaceId(1), Access::Read);
            if let Lookup::Miss = mmu.read(request.address, request.space) {
                let mut tables = Tables {
                    table: &mut table,
                    holes: &holes,
                    segment: Segment::NONE,
                    rest_segs: None,
                    host: None,
                };
                mmu.miss(&request, &mut tables, &mut Flat);
            }
        }
        let counters = mmu.counters();
        let share = |count: u64| 100.0 * count as f64 / loads as f64;
        println!(
            "{:>7} KiB  {:>9.1}  {:>10.1}",
            pages * 4,
            share(counters.data.misses()),
            share(counters.load_misses.walk_completed_4k)
        );
    }
    Ok(())
}
