//! Ingens (Kwon, Yu, Peter, Rossbach and Witchel, OSDI 2016): faults map 4 KB; the kernel makes a 2 MB page in the
//! background of a range of which enough pages are used, so that memory does not grow beyond what the program touches,
//! and no fault waits for a 2 MB page. While free memory is not fragmented, it makes one of any range that is used.
//!
//! Between processes, the next huge page goes to the one with the largest promotion metric: huge pages that it
//! lacks over those that it has, where idle ones count for more (`paging/src/looks.rs`).
//!
//! Threshold, index and looks are those of the paper (sections 4.3 and 5) and of its kernel's defaults
//! (`osa/hugepage_scan.c`: `util_threshold`, `scan_sleep_millisecs`); the index of 0.5 and the tax are cited from memory,
//! the paper was not at hand.
//!
//! Simplified: faults do not wake `Promote-kth`, which passes over memory at an interval of ours instead. Looks take all
//! pages, where the paper samples hot ones. Huge pages are not demoted for swapping, because nothing is swapped. Pages are
//! not shared by contents. `madvise` gives back parts of a huge page as in Linux, which splits it.

use contigua_paging::{CollapseContext, FaultContext, MappingPolicy, Promotion};
use contigua_units::{Nanoseconds, PageSize};
use serde::{Deserialize, Serialize};

use super::thp::{self, Enabled, HugePages};
use super::{BackgroundPass, Look, Scheme, Upkeep};
use crate::{Error, Hardware, Radix, Translator};

/// Thresholds and intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "ingens")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages, as that of transparent ones.
    pub enabled: Enabled,
    /// Percentage of a range's pages that must be used: `util_threshold`, 90.
    #[schemars(range(min = 1, max = 100))]
    pub utilization_percent: u32,
    /// Any range that is used becomes huge while less of the free memory, in percent, is in no block of 2 MB: an FMFI
    /// of 0.5 in the paper; 0 for never.
    #[schemars(range(min = 0, max = 101))]
    pub aggressive_below_percent: u64,
    /// Time from one pass to the next: ours, for faults that wake the thread.
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "24h"))]
    pub interval: Nanoseconds,
    /// 4 KB pages looked at in a pass: ours, 256 MB.
    #[schemars(range(min = 1, max = 4_294_967_295u32))]
    pub pages_to_scan: u64,
    /// The process with the largest promotion metric comes first (`fairness`).
    pub fair: bool,
    /// Weight of an idle huge page in the metric: 4, the idle memory tax of 75 % that the paper builds on (Waldspurger, OSDI 2002).
    #[schemars(range(min = 1, max = 100))]
    pub idle_tax: u32,
    /// Time between looks at accessed bits: `scan_sleep_millisecs`, 4000.
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "24h"))]
    pub look_interval: Nanoseconds,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: Enabled::Always,
            utilization_percent: 90,
            aggressive_below_percent: 50,
            interval: Nanoseconds::new(10_000_000),
            pages_to_scan: 65_536,
            fair: true,
            idle_tax: 4,
            look_interval: Nanoseconds::new(4_000_000_000),
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Radix::new(hardware)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        let pages = HugePages::new(&thp::Config {
            enabled: self.enabled,
            ..thp::Config::default()
        });
        let percent = self.utilization_percent;
        Box::new(Utilization {
            pages,
            least_present: (PageSize::Size2M.frames() * percent).div_ceil(100).max(1),
            aggressive_below: self.aggressive_below_percent,
            promotion: if self.fair {
                Promotion::Fair {
                    idle_tax: f64::from(self.idle_tax),
                }
            } else {
                Promotion::ByAddress
            },
        })
    }

    fn background(&self) -> Option<BackgroundPass> {
        (self.enabled != Enabled::Never).then_some(BackgroundPass {
            interval: self.interval,
            pages: self.pages_to_scan,
        })
    }

    fn upkeep(&self) -> Upkeep {
        let look = Look {
            interval: self.look_interval,
            window: self.look_interval,
            newest_percent: 100,
        };
        Upkeep {
            look: (self.fair && self.enabled != Enabled::Never).then_some(look),
            ..Upkeep::default()
        }
    }
}

/// Huge pages by utilization.
struct Utilization {
    pages: HugePages,
    least_present: u32,
    aggressive_below: u64,
    promotion: Promotion,
}

impl MappingPolicy for Utilization {
    fn on_fault(&self, _: &FaultContext) -> PageSize {
        PageSize::Size4K
    }

    fn collapse(&self, context: &CollapseContext) -> bool {
        let is_aggressive = context.fragmentation < self.aggressive_below;
        self.pages.allows(context.vma) && (is_aggressive || context.present >= self.least_present)
    }

    fn promotion(&self) -> Promotion {
        self.promotion
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_paging::{HugeAdvice, Vma};

    #[test]
    fn a_range_is_promoted_when_it_is_used_enough_or_memory_is_not_fragmented() {
        let policy = Config::default().policy();
        for (present, fragmentation, huge, expected) in [
            (460, 50, HugeAdvice::None, false),
            (461, 100, HugeAdvice::None, true),
            (1, 49, HugeAdvice::None, true),
            (512, 0, HugeAdvice::NoHuge, false),
        ] {
            let context = CollapseContext {
                vma: Vma {
                    huge,
                    ..Vma::ANONYMOUS
                },
                present,
                fragmentation,
            };
            assert_eq!(policy.collapse(&context), expected, "{context:?}");
        }
    }
}
