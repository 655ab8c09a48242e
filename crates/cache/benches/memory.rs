//! Cost of one access, by where it hits.

use std::hint::black_box;

use contigua_cache::coherent::{
    CoreRequest, DramConfig, Insertion, MemorySystem, PrefetchConfig, SharedConfig, Topology,
};
use contigua_cache::{AccessKind, HierarchyConfig, LevelConfig};
use contigua_units::{Bytes, Cycles, Megahertz, Nanoseconds, PhysAddr};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn skylake() -> MemorySystem {
    let level = |size, ways, latency| LevelConfig {
        size: Bytes::new(size),
        ways,
        latency_cycles: Cycles::new(latency),
    };
    let config = HierarchyConfig {
        l1i: level(32 << 10, 8, 4),
        l1d: level(32 << 10, 8, 4),
        l2: level(1 << 20, 16, 14),
        llc: level(22 << 20, 11, 50),
        memory_latency: Nanoseconds::new(85),
        shared: SharedConfig {
            slices: 1,
            inclusive: false,
            insertion: Insertion::default(),
            directory_entries: 32768,
            directory_ways: 4,
            topology: Topology::Mesh,
            hop_cycles: Cycles::new(2),
            migration_entries: 16,
        },
        prefetch: PrefetchConfig {
            next_line_adapts: false,
            next_line: false,
            stride: false,
            stream_lines: 0,
            next_page: false,
        },
        dram: DramConfig {
            channels: 1,
            banks: 16,
            row: Bytes::new(8192),
            activate: Nanoseconds::new(14),
            precharge: Nanoseconds::new(14),
            channel_megabytes_per_second: 20_000,
            loaded: Vec::new(),
        },
    };
    let table = config.shared.table(config.llc.ways);
    let table = table.expect("a preset is well formed");
    MemorySystem::new(&config, Megahertz::new(2100), 1, table).expect("a preset is well formed")
}

fn accesses(c: &mut Criterion) {
    let mut group = c.benchmark_group("memory");
    group.throughput(Throughput::Elements(1));
    for (name, span) in [("l1", 16 << 10), ("l2", 512 << 10), ("memory", 256 << 20)] {
        let mut memory = skylake();
        let mut state = 1_u64;
        let mut time = Cycles::ZERO;
        group.bench_function(name, |b| {
            b.iter(|| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let address = PhysAddr::new((state >> 20) % span);
                time += Cycles::new(10);
                let request = CoreRequest {
                    core: 0,
                    address,
                    kind: AccessKind::Read,
                    time,
                    instruction: 1,
                };
                black_box(memory.access(&request, |()| ()))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, accesses);
criterion_main!(benches);
