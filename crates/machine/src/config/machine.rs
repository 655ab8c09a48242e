//! The hardware of a simulated server, and what its kernel's work costs.

use contigua_cache::HierarchyConfig;
use contigua_core::CoreConfig;
use contigua_paging::Levels;
use contigua_translation::{NestedConfig, TlbConfig, WalkCacheConfig};
use contigua_units::{Bytes, Cycles, Megahertz, Nanoseconds};
use serde::{Deserialize, Serialize};

use super::iommu::IommuConfig;
use super::network::NetworkConfig;

/// The hardware of a simulated server: a file in `machines/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineConfig {
    /// Description of the machine, for readers.
    pub description: String,
    /// Clock of the core.
    #[schemars(extend("x-minimum" = "1MHz", "x-maximum" = "100GHz"))]
    pub clock: Megahertz,
    /// Physical memory.
    #[schemars(extend("x-minimum" = "16MiB", "x-maximum" = "4TiB"))]
    pub memory: Bytes,
    /// The core.
    pub core: CoreConfig,
    /// Translation lookaside buffers.
    pub tlb: TlbConfig,
    /// Page-walk caches.
    pub walk_cache: WalkCacheConfig,
    /// Walker of a guest's physical addresses, for designs with a host.
    #[serde(default)]
    pub nested: NestedConfig,
    /// Levels of the page tables.
    #[serde(default)]
    pub page_table_levels: PageTableLevels,
    /// Caches and memory.
    pub cache: HierarchyConfig,
    /// Translation of devices' addresses.
    #[serde(default)]
    pub iommu: IommuConfig,
    /// The network device.
    #[serde(default)]
    pub network: NetworkConfig,
    /// Costs of the kernel's work.
    pub kernel: KernelCosts,
}

/// 4 or 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct PageTableLevels(pub Levels);

impl schemars::JsonSchema for PageTableLevels {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PageTableLevels".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "description": "4 or 5.", "type": "integer", "enum": [4, 5] })
    }
}

impl TryFrom<u8> for PageTableLevels {
    type Error = String;

    fn try_from(levels: u8) -> Result<Self, String> {
        match levels {
            4 => Ok(Self(Levels::Four)),
            5 => Ok(Self(Levels::Five)),
            other => Err(format!("page tables have 4 or 5 levels, not {other}")),
        }
    }
}

impl From<PageTableLevels> for u8 {
    fn from(levels: PageTableLevels) -> Self {
        levels.0.count() as Self
    }
}

/// Cycles that the kernel's work takes. The kernel's own accesses are not simulated, so these
/// figures include them; `docs/reference/costs.md` names their sources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelCosts {
    /// Entering, handling and leaving a page fault, without zeroing or copying. A page that a call
    /// maps (`MAP_POPULATE`) costs the same without entry and exit, which are `syscall_cycles`.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub page_fault_cycles: Cycles,
    /// Zeroing a 4 KB page.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub zero_4k_cycles: Cycles,
    /// Zeroing a 2 MB page.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub zero_2m_cycles: Cycles,
    /// Copying a 4 KB page.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub copy_4k_cycles: Cycles,
    /// Allocating and zeroing a page-table node.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub page_table_node_cycles: Cycles,
    /// Entering and leaving a system call, without what it does.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub syscall_cycles: Cycles,
    /// Finding, splitting and merging VMAs in a call that maps, unmaps, protects or moves memory.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub vma_cycles: Cycles,
    /// Unmapping a page of any size: clearing its entry, reverse mapping and counters.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub unmap_page_cycles: Cycles,
    /// Freeing a page of any size, or a page-table node, in a batch.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub free_page_cycles: Cycles,
    /// Rewriting the entry of a page of any size in a range: another permission, a split, a move.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub protect_page_cycles: Cycles,
    /// Copying the entry of a page of any size to a child, with reverse mapping and counters;
    /// mapping a page of a file around the one that a fault is for.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub fork_page_cycles: Cycles,
    /// Switching from a thread to another one.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub context_switch_cycles: Cycles,
    /// Time for which a thread runs while others wait for its core.
    #[serde(default = "KernelCosts::default_time_slice")]
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "1s"))]
    pub time_slice: Nanoseconds,
    /// Invalidating a range of addresses in the local TLBs.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub invalidation_cycles: Cycles,
    /// Clearing or writing a page-table entry with its lock held.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub page_table_entry_cycles: Cycles,
    /// Interrupting other cores: what it takes whatever their number.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub interrupt_cycles: Cycles,
    /// Cycles for each of them, until its acknowledgement is there.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub interrupt_target_cycles: Cycles,
    /// Cycles of a core that is interrupted to invalidate.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub interrupt_handler_cycles: Cycles,
}

impl KernelCosts {
    /// Linux's base slice is 2.8 to 3 ms with eight processors and more (`kernel/sched/fair.c`,
    /// `sysctl_sched_base_slice`, Linux 6.6 to 6.12), and ends with the next tick: 4 ms with
    /// Debian's and Ubuntu's 250 ticks a second.
    const fn default_time_slice() -> Nanoseconds {
        Nanoseconds::new(4_000_000)
    }
}
