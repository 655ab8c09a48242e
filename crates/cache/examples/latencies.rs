//! Latency by working set, in cycles: `cargo run --release -p contigua-cache --example latencies`.

use contigua_cache::coherent::{
    CoreRequest, DramConfig, Insertion, MemorySystem, PrefetchConfig, SharedConfig, Topology,
};
use contigua_cache::{AccessKind, HierarchyConfig, LevelConfig};
use contigua_units::{Bytes, Cycles, Megahertz, Nanoseconds, PhysAddr};

fn level(size: u64, ways: u32, latency: u64) -> LevelConfig {
    LevelConfig {
        size: Bytes::new(size),
        ways,
        latency_cycles: Cycles::new(latency),
    }
}

fn main() -> Result<(), contigua_cache::Error> {
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
            directory_entries: 32_768,
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
    println!("working set  cycles per load");
    for size in [16_u64 << 10, 512 << 10, 8 << 20, 256 << 20] {
        let table = config.shared.table(config.llc.ways)?;
        let mut memory: MemorySystem = MemorySystem::new(&config, Megahertz::new(2100), 1, table)?;
        let lines = size / 64;
        // Each line once, in an order without a stride; then the pass that counts.
        let mut time = Cycles::ZERO;
        let mut total = Cycles::ZERO;
        for step in 0..2 * lines {
            let line = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) % lines;
            let request = CoreRequest {
                core: 0,
                address: PhysAddr::new(line * 64),
                kind: AccessKind::Read,
                time,
                instruction: 1,
            };
            let latency = memory.access(&request, |()| ());
            time += latency;
            if step >= lines {
                total += latency;
            }
        }
        println!(
            "{:>11}  {:>15.1}",
            Bytes::new(size).to_string(),
            total.get() as f64 / lines as f64
        );
    }
    Ok(())
}
