//! Limits on the hardware and memory of a simulated server.
//!
//! Structures are allocated as they are described. No hardware that exists reaches these limits, and
//! all structures of one core at their limits still take less than 500 MB.

use contigua_units::{Bytes, PAGE_BYTES};

use crate::Error;
use crate::config::MachineConfig;

const MAX_DIRECTORY_ENTRIES: u64 = 1 << 24;

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

impl MachineConfig {
    /// Checks what the ranges of single values leave open, before anything is allocated.
    ///
    /// # Errors
    /// A sentence with the key, its value and its limits.
    pub(crate) fn check(&self) -> Result<(), String> {
        let shared = &self.cache.shared;
        let entries = u64::from(shared.directory_entries) * u64::from(shared.slices);
        if entries > MAX_DIRECTORY_ENTRIES {
            return Err(format!(
                "cache.shared.directory_entries, of all slices together, is {entries}; it is at \
                 most {MAX_DIRECTORY_ENTRIES}"
            ));
        }
        let mut least = 1;
        for loaded in &self.cache.dram.loaded {
            if loaded.percent < least {
                return Err(format!(
                    "cache.dram.loaded.percent is {}; it is {least} to 100 after the one before",
                    loaded.percent
                ));
            }
            least = loaded.percent + 1;
        }
        self.core.validate().map_err(|error| error.to_string())
    }
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
                "tlb.l2[0].entries is 4294967288; it is 1 to 16384",
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
                "cache.l2.size is 1TiB; it is 64B to 16MiB",
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
            (
                "percent = 10",
                "percent = 101",
                "percent is 101; it is 1 to 100",
            ),
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
