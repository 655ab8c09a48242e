//! HawkEye (Panwar, Bansal and Gopinath, ASPLOS 2019): faults map 2 MB where a block is free, of memory that a thread
//! has zeroed before; ranges that faults left in small pages become huge in the order of their access coverage, over
//! all processes; and where memory is short, pages of zeros in huge ones are given back.
//!
//! Coverage is the moving average of the pages used in looks (`paging/src/looks.rs`); zeros are those that nobody
//! has written (`paging/src/recovery.rs`). This is HawkEye-G, which needs no performance counters.
//!
//! Values of the paper (sections 3.1 to 3.3) and of its source (`mm/ohp.c`, `bloat_recovery/remove.c`,
//! `hawkeye_modules/async-zero/asynczero.c`), as each parameter says; what is of the paper alone is cited from memory,
//! it was not at hand.
//!
//! Simplified: processes with ranges in the same bucket take turns by number. Threads that zero and read memory
//! run on another core: only recovered pages are charged, as long as zeroing them takes. Recovery takes from
//! one process after the other, by number, where the paper begins with the least overhead.

use contigua_paging::{
    CollapseContext, FaultContext, MappingPolicy, Orders, Promotion, SharedContext, Vma,
};
use contigua_units::ranges::OutOfRange;
use contigua_units::{Nanoseconds, PageSize};
use serde::{Deserialize, Serialize};

use super::thp::{self, Enabled, HugePages};
use super::{BackgroundPass, Look, Recovery, Scheme, Upkeep};
use crate::{Error, Hardware, Radix, Translator};

/// Looks, promotion, recovery and zeroing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "hawkeye")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Huge pages at faults; interval and pages of the pass that promotes (`khugepaged_scan_sleep_millisecs` 10000,
    /// `khugepaged_pages_to_scan` 8 * 512, each range of which is a promotion).
    pub huge: thp::Config,
    /// Time from one look to the next (section 3.3: 30 s).
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "24h"))]
    pub look_interval: Nanoseconds,
    /// Time from clearing accessed bits to counting them (`kbinmanager_do_scan`: 1 s).
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "24h"))]
    pub look_window: Nanoseconds,
    /// Weight of the newest count in the average (`update_get_kaddr_index`: 60).
    #[schemars(range(min = 1, max = 100))]
    pub newest_percent: u32,
    /// Give pages of zeros back.
    pub recovers: bool,
    /// Memory in use above which it begins (`count_pages_to_free`: 85).
    #[schemars(range(min = 1, max = 100))]
    pub above_percent: u32,
    /// Memory in use at which it ends (`count_pages_to_free`: 70).
    #[schemars(range(min = 0, max = 100))]
    pub until_percent: u32,
    /// Pages of zeros from which on a huge page is split (`remove_zero_pages`: 1; the paper leaves it open).
    #[schemars(range(min = 1, max = 512))]
    pub least_zeros: u32,
    /// Time between checks of memory (`remove.c`: `sleep`, 120 s).
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "24h"))]
    pub recovery_interval: Nanoseconds,
    /// Free 4 KB pages zeroed in a second (`asynczero.c`: `count` 10 blocks of 1,024 pages each `sleep` of 1 s); 0 for
    /// none.
    #[schemars(range(min = 0, max = 100_000_000))]
    pub zeroed_per_second: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            look_interval: Nanoseconds::new(30_000_000_000),
            look_window: Nanoseconds::new(1_000_000_000),
            newest_percent: 60,
            recovers: true,
            above_percent: 85,
            until_percent: 70,
            least_zeros: 1,
            recovery_interval: Nanoseconds::new(120_000_000_000),
            zeroed_per_second: 10_240,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        self.check()?;
        Ok(Box::new(Radix::new(hardware)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(Coverage {
            pages: HugePages::new(&self.huge),
            recovers: self.recovers,
        })
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn upkeep(&self) -> Upkeep {
        let look = Look {
            interval: self.look_interval,
            window: self.look_window,
            newest_percent: self.newest_percent,
        };
        let recovery = Recovery {
            interval: self.recovery_interval,
            above_percent: self.above_percent,
            until_percent: self.until_percent,
            least_zeros: self.least_zeros,
        };
        Upkeep {
            look: (self.huge.enabled != Enabled::Never).then_some(look),
            recovery: self.recovers.then_some(recovery),
            zeroed_per_second: self.zeroed_per_second,
            ..Upkeep::default()
        }
    }
}

impl Config {
    /// Checks parameters that bound each other.
    fn check(&self) -> Result<(), OutOfRange> {
        let wrong = |key: &str, value: String, allowed: String| {
            let key = format!("hawkeye.{key}");
            Err(OutOfRange {
                key,
                value,
                allowed,
            })
        };
        if self.look_window > self.look_interval {
            let (value, most) = (self.look_window, self.look_interval);
            return wrong(
                "look_window",
                value.to_string(),
                format!("at most look_interval, {most}"),
            );
        }
        if self.until_percent > self.above_percent {
            let (value, most) = (self.until_percent, self.above_percent);
            return wrong(
                "until_percent",
                value.to_string(),
                format!("at most above_percent, {most}"),
            );
        }
        Ok(())
    }
}

/// Transparent huge pages, promoted by coverage.
struct Coverage {
    pages: HugePages,
    recovers: bool,
}

impl MappingPolicy for Coverage {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        self.pages.on_fault(context)
    }

    fn maps_shared_huge(&self, context: &SharedContext) -> bool {
        self.pages.maps_shared_huge(context)
    }

    fn collapse(&self, context: &CollapseContext) -> bool {
        self.pages.collapse(context)
    }

    fn folio_orders(&self, vma: Vma) -> Orders {
        self.pages.folio_orders(vma)
    }

    fn uses_huge_zero_page(&self) -> bool {
        self.pages.uses_huge_zero_page()
    }

    fn promotion(&self) -> Promotion {
        Promotion::ByCoverage
    }

    fn recovers_zeros(&self) -> bool {
        self.recovers
    }
}
