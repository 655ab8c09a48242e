//! What hardware and how much memory a simulated server may have.
//!
//! Structures are allocated as they are described. No hardware that exists reaches these limits, and
//! all structures of one core at their limits still take less than 500 MB.

use contigua_cache::{Geometry, LevelConfig};
use contigua_translation::WalkCacheConfig;
use contigua_units::{Bytes, Cycles, Nanoseconds, PAGE_BYTES};

use crate::Error;
use crate::config::MachineConfig;

const MAX_CLOCK_MEGAHERTZ: u64 = 100_000;
const MAX_TLB_ENTRIES: u64 = 1 << 14;
const MAX_L2_TLBS: u64 = 8;
const MAX_L1_BYTES: u64 = 1 << 20;
const MAX_L2_BYTES: u64 = 16 << 20;
const MAX_LLC_BYTES: u64 = 5 << 28;
const MAX_WAYS: u64 = 1 << 14;
const MAX_SLICES: u64 = 256;
/// A round trip over all slices fits in 32 bits.
const MAX_HOP_CYCLES: u64 = 1 << 20;
const MAX_DIRECTORY_ENTRIES: u64 = 1 << 24;
const MAX_CHANNELS: u64 = 64;
const MAX_BANKS: u64 = 4096;
const MAX_ROW_BYTES: u64 = 1 << 20;
/// Of one latency: sums of 2^32 of them fit.
const MAX_CYCLES: u64 = 1 << 30;
const MAX_NANOSECONDS: u64 = 1_000_000_000;

/// The least memory of a simulated server.
const LEAST_MEMORY: Bytes = Bytes::new(16 << 20);
/// The most: 16 bytes of metadata a frame are 16 GB of host memory then.
const MOST_MEMORY: Bytes = Bytes::new(4 << 40);

/// Bytes of the host's memory that a simulated frame takes.
const FRAME_BYTES: u64 = 16;

/// Checks that a simulated server can have that much memory, and this computer can simulate it.
pub(crate) fn check_memory(memory: Bytes) -> Result<(), Error> {
    if !(LEAST_MEMORY..=MOST_MEMORY).contains(&memory) {
        return Err(Error::Memory {
            memory,
            least: LEAST_MEMORY,
            most: MOST_MEMORY,
        });
    }
    let needed = Bytes::new(memory.get() / PAGE_BYTES * FRAME_BYTES);
    match available() {
        // Where nobody knows, it is tried.
        Some(available) if available < needed => Err(Error::HostMemory {
            memory,
            needed,
            available,
        }),
        _ => Ok(()),
    }
}

/// Memory of this computer that programs can have without swapping.
fn available() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(Bytes::new(kibibytes << 10))
}

/// Collects the first value that is out of range.
struct Checks(Option<String>);

impl Checks {
    fn range(&mut self, key: &str, value: u64, least: u64, most: u64) {
        if self.0.is_none() && !(least..=most).contains(&value) {
            self.0 = Some(format!("{key} is {value}; it is {least} to {most}"));
        }
    }

    fn bytes(&mut self, key: &str, value: Bytes, most: u64) {
        if self.0.is_none() && !(1..=most).contains(&value.get()) {
            self.0 = Some(format!(
                "{key} is {value}; it is at most {}",
                Bytes::new(most)
            ));
        }
    }

    fn cycles(&mut self, key: &str, value: Cycles) {
        self.range(key, value.get(), 0, MAX_CYCLES);
    }

    fn time(&mut self, key: &str, value: Nanoseconds) {
        if self.0.is_none() && value.get() > MAX_NANOSECONDS {
            let most = Nanoseconds::new(MAX_NANOSECONDS);
            self.0 = Some(format!("{key} is {value}; it is at most {most}"));
        }
    }

    fn array(&mut self, key: &str, array: Option<Geometry>) {
        if let Some(Geometry { entries, ways }) = array {
            self.range(
                &format!("{key}.entries"),
                entries.into(),
                1,
                MAX_TLB_ENTRIES,
            );
            self.range(&format!("{key}.ways"), ways.into(), 1, MAX_WAYS);
        }
    }

    fn walk_cache(&mut self, key: &str, cache: &WalkCacheConfig) {
        self.array(&format!("{key}.pml5e"), cache.pml5e);
        self.array(&format!("{key}.pml4e"), cache.pml4e);
        self.array(&format!("{key}.pdpte"), cache.pdpte);
        self.array(&format!("{key}.pde"), cache.pde);
        self.cycles(&format!("{key}.start_cycles"), cache.start_cycles);
    }

    fn level(&mut self, key: &str, level: &LevelConfig, most: u64) {
        self.bytes(&format!("{key}.size"), level.size, most);
        self.range(&format!("{key}.ways"), level.ways.into(), 1, MAX_WAYS);
        self.cycles(&format!("{key}.latency_cycles"), level.latency_cycles);
    }
}

impl MachineConfig {
    /// Checks that every value is one that hardware could have, before anything is allocated for
    /// it.
    ///
    /// # Errors
    /// A sentence with the key, its value and its limits.
    pub fn validate(&self) -> Result<(), String> {
        check(self)?;
        self.core.validate().map_err(|error| error.to_string())
    }
}

/// The first value of a machine that no hardware has, with what it may be.
fn check(machine: &MachineConfig) -> Result<(), String> {
    let mut checks = Checks(None);
    let clock = u64::from(machine.clock.get());
    checks.range("clock, in MHz,", clock, 1, MAX_CLOCK_MEGAHERTZ);
    translation(&mut checks, machine);
    caches(&mut checks, machine);
    kernel(&mut checks, machine);
    checks.0.map_or(Ok(()), Err)
}

fn translation(checks: &mut Checks, machine: &MachineConfig) {
    for (key, level) in [("tlb.l1d", &machine.tlb.l1d), ("tlb.l1i", &machine.tlb.l1i)] {
        checks.array(&format!("{key}.4k"), level.pages_4k);
        checks.array(&format!("{key}.2m"), level.pages_2m);
        checks.array(&format!("{key}.1g"), level.pages_1g);
    }
    let count = machine.tlb.l2.len() as u64;
    checks.range("the number of tlb.l2", count, 0, MAX_L2_TLBS);
    for level in &machine.tlb.l2 {
        let (entries, ways) = (level.entries, level.ways);
        checks.array("tlb.l2", Some(Geometry { entries, ways }));
        checks.cycles("tlb.l2.latency_cycles", level.latency_cycles);
    }
    checks.walk_cache("walk_cache", &machine.walk_cache);
    checks.array("nested.tlb", machine.nested.tlb);
    checks.walk_cache("nested.walk_cache", &machine.nested.walk_cache);
}

fn caches(checks: &mut Checks, machine: &MachineConfig) {
    let cache = &machine.cache;
    checks.level("cache.l1i", &cache.l1i, MAX_L1_BYTES);
    checks.level("cache.l1d", &cache.l1d, MAX_L1_BYTES);
    checks.level("cache.l2", &cache.l2, MAX_L2_BYTES);
    checks.level("cache.llc", &cache.llc, MAX_LLC_BYTES);
    checks.time("cache.memory_latency", cache.memory_latency);
    let shared = &cache.shared;
    checks.range("cache.shared.slices", shared.slices.into(), 1, MAX_SLICES);
    checks.range(
        "cache.shared.directory_entries, of all slices together,",
        u64::from(shared.directory_entries) * u64::from(shared.slices),
        1,
        MAX_DIRECTORY_ENTRIES,
    );
    let ways = shared.directory_ways.into();
    checks.range("cache.shared.directory_ways", ways, 1, MAX_WAYS);
    let hop = shared.hop_cycles.get();
    checks.range("cache.shared.hop_cycles", hop, 0, MAX_HOP_CYCLES);
    let dram = &cache.dram;
    checks.range("cache.dram.channels", dram.channels.into(), 1, MAX_CHANNELS);
    checks.range("cache.dram.banks", dram.banks.into(), 1, MAX_BANKS);
    checks.bytes("cache.dram.row", dram.row, MAX_ROW_BYTES);
    checks.time("cache.dram.activate", dram.activate);
    checks.time("cache.dram.precharge", dram.precharge);
    let speed = dram.channel_megabytes_per_second.into();
    let key = "cache.dram.channel_megabytes_per_second";
    checks.range(key, speed, 1, u32::MAX.into());
    let mut least = 1;
    for loaded in &dram.loaded {
        let percent = loaded.percent.into();
        checks.range("cache.dram.loaded.percent", percent, least, 100);
        checks.time("cache.dram.loaded.latency", loaded.latency);
        least = percent + 1;
    }
}

fn kernel(checks: &mut Checks, machine: &MachineConfig) {
    let costs = &machine.kernel;
    for (key, cycles) in [
        ("page_fault_cycles", costs.page_fault_cycles),
        ("zero_4k_cycles", costs.zero_4k_cycles),
        ("zero_2m_cycles", costs.zero_2m_cycles),
        ("copy_4k_cycles", costs.copy_4k_cycles),
        ("page_table_node_cycles", costs.page_table_node_cycles),
        ("syscall_cycles", costs.syscall_cycles),
        ("vma_cycles", costs.vma_cycles),
        ("unmap_page_cycles", costs.unmap_page_cycles),
        ("free_page_cycles", costs.free_page_cycles),
        ("protect_page_cycles", costs.protect_page_cycles),
        ("fork_page_cycles", costs.fork_page_cycles),
        ("context_switch_cycles", costs.context_switch_cycles),
        ("invalidation_cycles", costs.invalidation_cycles),
        ("page_table_entry_cycles", costs.page_table_entry_cycles),
        ("interrupt_cycles", costs.interrupt_cycles),
        ("interrupt_target_cycles", costs.interrupt_target_cycles),
        ("interrupt_handler_cycles", costs.interrupt_handler_cycles),
    ] {
        checks.cycles(&format!("kernel.{key}"), cycles);
    }
    checks.time("kernel.time_slice", costs.time_slice);
    let penalty = machine.core.mispredict_penalty_cycles;
    checks.cycles("core.mispredict_penalty_cycles", penalty);
}

#[cfg(test)]
mod tests {
    use crate::config::parse_machine;

    const SKYLAKE: &str = include_str!("../../../python/contigua/data/machines/skylake.toml");

    #[test]
    fn machines_that_exist_are_within_limits() {
        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../python/contigua/data/machines"
        );
        let mut count = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            parse_machine(&text, &path.display().to_string()).unwrap();
            count += 1;
        }
        assert!(count >= 9, "{count} machines");
    }

    #[test]
    fn an_absurd_size_is_refused_with_its_key_and_its_limit() {
        for (from, to, expected) in [
            (
                "entries = 1536",
                "entries = 4294967288",
                "tlb.l2.entries is 4294967288",
            ),
            (
                "2m = { entries = 32,",
                "2m = { entries = 4000000000,",
                "tlb.l1d.2m.entries",
            ),
            (
                "pde = { entries = 32,",
                "pde = { entries = 4000000000,",
                "walk_cache.pde.entries",
            ),
            (
                "size = \"1MiB\"",
                "size = \"1TiB\"",
                "cache.l2.size is 1TiB; it is at most 16MiB",
            ),
            (
                "size = \"22MiB\"",
                "size = \"16777215TiB\"",
                "cache.llc.size",
            ),
            ("slices = 16", "slices = 4294967295", "cache.shared.slices"),
            (
                "directory_entries = 24576",
                "directory_entries = 4000000000",
                "directory_entries",
            ),
            (
                "channels = 6",
                "channels = 4294967295",
                "cache.dram.channels",
            ),
            (
                "hop_cycles = 2",
                "hop_cycles = 1000000000",
                "cache.shared.hop_cycles",
            ),
            ("banks = 32", "banks = 4294967295", "cache.dram.banks"),
            ("percent = 10", "percent = 101", "cache.dram.loaded.percent"),
            ("percent = 10", "percent = 1", "cache.dram.loaded.percent"),
            ("row = \"8KiB\"", "row = \"8TiB\"", "cache.dram.row"),
            (
                "syscall_cycles = 200",
                "syscall_cycles = 18446744073709551",
                "kernel.syscall_cycles",
            ),
            (
                "unmap_page_cycles = 150",
                "unmap_page_cycles = 18446744073709551",
                "kernel.unmap_page_cycles",
            ),
            ("\"85ns\"", "\"85000000s\"", "cache.memory_latency"),
            (
                "pml4e = {",
                "start_cycles = 18446744073709551\npml4e = {",
                "walk_cache.start_cycles",
            ),
            ("window = 224", "window = 4294967295", "core.window"),
            (
                "direction_entries = 16384",
                "direction_entries = 2147483648",
                "direction_entries",
            ),
            ("\"2.1GHz\"", "\"4000GHz\"", "clock"),
        ] {
            assert!(SKYLAKE.contains(from), "{from}");
            let text = SKYLAKE.replacen(from, to, 1);
            let error = parse_machine(&text, "big.toml").unwrap_err().to_string();
            assert!(error.contains("big.toml"), "{error}");
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
