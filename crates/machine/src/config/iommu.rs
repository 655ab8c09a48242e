//! The unit that translates addresses of devices.

use contigua_units::{Cycles, Megahertz, Nanoseconds};
use serde::{Deserialize, Serialize};

/// The IOMMU of a server. Its tables have four levels, as Intel's and AMD's usually have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IommuConfig {
    /// Entries of its TLB.
    #[schemars(range(min = 1, max = 4096))]
    pub tlb_entries: u32,
    /// Last-level tables whose addresses it remembers.
    #[schemars(range(min = 1, max = 4096))]
    pub table_entries: u32,
    /// Cycles from the queueing of an invalidation to its end.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub invalidation_cycles: Cycles,
    /// Entries of a device's own TLB (address translation services); 0 without one.
    #[schemars(range(max = 4096))]
    pub device_tlb_entries: u32,
    /// Time by which an invalidation takes longer where a device has a TLB.
    #[schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s"))]
    pub device_invalidation: Nanoseconds,
    /// Invalidate whenever pages are unmapped (`iommu.strict=1`), not in batches.
    pub strict: bool,
}

impl Default for IommuConfig {
    /// 64 entries, as measured on Intel's (Amit et al., WIOSCA 2010, section 4.2; Neugebauer et
    /// al., SIGCOMM 2018, section 6.5). An invalidation takes 2,127 cycles of Intel's (Malka et al.,
    /// ASPLOS 2015, table 1). A message to a device and back takes about 900 ns (Neugebauer et al.,
    /// section 6.1). That tables are remembered follows from Intel VT-d, section 6.2; how many is
    /// our choice, as many as the processor's walk caches have. Linux invalidates in batches
    /// unless it is told otherwise.
    fn default() -> Self {
        Self {
            tlb_entries: 64,
            table_entries: 32,
            invalidation_cycles: Cycles::new(2127),
            device_tlb_entries: 0,
            device_invalidation: Nanoseconds::new(900),
            strict: false,
        }
    }
}

impl IommuConfig {
    /// Cycles from the queueing of an invalidation to its end, a device's TLB included.
    #[must_use]
    pub fn invalidation(&self, clock: Megahertz) -> Cycles {
        if self.device_tlb_entries == 0 {
            self.invalidation_cycles
        } else {
            self.invalidation_cycles + self.device_invalidation.at(clock)
        }
    }
}
