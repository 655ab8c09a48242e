//! Transparent huge pages, as Linux has them: a first touch maps 2 MB where the mapping allows
//! and a block is free, and a background pass (`khugepaged`) makes 2 MB pages of small ones.
//!
//! Parameters and defaults are those of Linux's
//! `Documentation/admin-guide/mm/transhuge.rst`.

use contigua_paging::{
    CollapseContext, FaultContext, HoleVerdict, Holes, HugeAdvice, MappingPolicy, Orders,
    SharedContext, Vma,
};
use contigua_units::{Nanoseconds, PageSize};
use serde::{Deserialize, Serialize};

pub use super::mthp::Enabled;
use super::{BackgroundPass, Scheme, mthp};
use crate::{Error, Hardware, Radix, Translator};

/// Use of huge pages in shared memory (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShmemEnabled {
    /// Everywhere but where the program objects.
    Always,
    /// Where the 2 MB end within the object, and as `advise`.
    WithinSize,
    /// In memory that the program advises with `MADV_HUGEPAGE`.
    Advise,
    /// Nowhere.
    Never,
    /// Nowhere, also in mounted `tmpfs`.
    Deny,
    /// Everywhere, also in mounted `tmpfs`.
    Force,
}

/// The settings under `/sys/kernel/mm/transparent_hugepage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "thp")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `enabled`.
    pub enabled: Enabled,
    /// `shmem_enabled`: memory that `MAP_SHARED`, `shmget` or `memfd_create` made. Mounted `tmpfs`
    /// has none but with `force` (`huge=never`).
    pub shmem_enabled: ShmemEnabled,
    /// `khugepaged/scan_sleep_millisecs`.
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "24h"))]
    pub scan_interval: Nanoseconds,
    /// `khugepaged/pages_to_scan`, 4 KB pages a step.
    #[schemars(range(min = 1, max = 4_294_967_295u32))]
    pub pages_to_scan: u64,
    /// `khugepaged/max_ptes_none`: of 512 pages, how many may be untouched.
    #[schemars(range(min = 0, max = 511))]
    pub max_ptes_none: u32,
    /// Smaller sizes (mTHP).
    pub sizes: mthp::Sizes,
    /// `use_zero_page`: reads of untouched memory map the huge zero page where writes would map
    /// 2 MB.
    pub use_zero_page: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: Enabled::Always,
            shmem_enabled: ShmemEnabled::Never,
            scan_interval: Nanoseconds::new(10_000_000_000),
            pages_to_scan: 4096,
            max_ptes_none: 511,
            sizes: mthp::Sizes::default(),
            use_zero_page: true,
        }
    }
}

impl Config {
    /// No huge pages: the default of schemes that make entries of small ones.
    pub(super) fn never() -> Self {
        Self {
            enabled: Enabled::Never,
            ..Self::default()
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Radix::new(hardware)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(HugePages::new(self))
    }

    fn background(&self) -> Option<BackgroundPass> {
        (self.enabled != Enabled::Never).then_some(BackgroundPass {
            interval: self.scan_interval,
            pages: self.pages_to_scan,
        })
    }
}

pub(super) struct HugePages {
    pub(super) enabled: Enabled,
    pub(super) shmem_enabled: ShmemEnabled,
    pub(super) least_present: u32,
    /// Verdict on 2 MB with holes.
    pub(super) on_holes: fn(&Holes) -> HoleVerdict,
    pub(super) sizes: mthp::Sizes,
    /// Groups of 16 pages of folios are marked.
    pub(super) marks_groups: bool,
    /// Mappings keep the offset between their addresses and frames.
    pub(super) keeps_offsets: bool,
    pub(super) use_zero_page: bool,
}

impl HugePages {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            enabled: config.enabled,
            shmem_enabled: config.shmem_enabled,
            least_present: PageSize::Size2M
                .frames()
                .saturating_sub(config.max_ptes_none)
                .max(1),
            on_holes: |_| HoleVerdict::Split,
            sizes: config.sizes,
            marks_groups: false,
            keeps_offsets: false,
            use_zero_page: config.use_zero_page,
        }
    }

    pub(super) fn allows(&self, vma: Vma) -> bool {
        self.enabled.allows(vma)
    }
}

impl MappingPolicy for HugePages {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        if self.allows(context.vma) {
            context.fits.min(PageSize::Size2M)
        } else {
            PageSize::Size4K
        }
    }

    /// As `shmem_huge_global_enabled` in Linux's `mm/shmem.c`.
    fn maps_shared_huge(&self, context: &SharedContext) -> bool {
        let advice = context.vma.huge;
        let in_mounted = self.shmem_enabled == ShmemEnabled::Force || !context.mounted;
        let is_allowed = match self.shmem_enabled {
            ShmemEnabled::Always | ShmemEnabled::Force => true,
            ShmemEnabled::WithinSize => context.within_size || advice == HugeAdvice::Huge,
            ShmemEnabled::Advise => advice == HugeAdvice::Huge,
            ShmemEnabled::Never | ShmemEnabled::Deny => false,
        };
        is_allowed && in_mounted && advice != HugeAdvice::NoHuge
    }

    fn collapse(&self, context: &CollapseContext) -> bool {
        self.allows(context.vma) && context.present >= self.least_present
    }

    fn on_holes(&self, holes: &Holes) -> HoleVerdict {
        (self.on_holes)(holes)
    }

    fn folio_orders(&self, vma: Vma) -> Orders {
        self.sizes.orders(self.enabled, vma)
    }

    fn marks_groups(&self) -> bool {
        self.marks_groups
    }

    fn keeps_offsets(&self) -> bool {
        self.keeps_offsets
    }

    fn uses_huge_zero_page(&self) -> bool {
        self.use_zero_page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_units::VirtAddr;

    fn verdict(enabled: Enabled, huge: HugeAdvice, fits: PageSize) -> PageSize {
        let config = Config {
            enabled,
            ..Config::default()
        };
        let vma = Vma {
            huge,
            ..Vma::ANONYMOUS
        };
        config.policy().on_fault(&FaultContext {
            address: VirtAddr::new(0),
            vma,
            fits,
        })
    }

    #[test]
    fn advice_decides_as_in_linux() {
        use HugeAdvice::{Huge, NoHuge, None};
        const FITS: PageSize = PageSize::Size2M;
        assert_eq!(verdict(Enabled::Always, None, FITS), PageSize::Size2M);
        assert_eq!(verdict(Enabled::Always, NoHuge, FITS), PageSize::Size4K);
        assert_eq!(verdict(Enabled::Madvise, None, FITS), PageSize::Size4K);
        assert_eq!(verdict(Enabled::Madvise, Huge, FITS), PageSize::Size2M);
        assert_eq!(verdict(Enabled::Never, Huge, FITS), PageSize::Size4K);
        assert_eq!(
            verdict(Enabled::Always, None, PageSize::Size4K),
            PageSize::Size4K
        );
        assert_eq!(
            verdict(Enabled::Always, None, PageSize::Size1G),
            PageSize::Size2M
        );
    }

    #[test]
    fn shared_memory_has_huge_pages_as_in_linux() {
        use HugeAdvice::{Huge, NoHuge, None};
        use ShmemEnabled::{Advise, Always, Deny, Force, Never, WithinSize};
        // Not advised, within the size and not; advised; refused; in a mounted tmpfs.
        let cases = [
            (None, true, false),
            (None, false, false),
            (Huge, false, false),
        ];
        let refused = [(NoHuge, true, false), (Huge, true, true)];
        for (shmem_enabled, expected) in [
            (Always, [true, true, true, false, false]),
            (WithinSize, [true, false, true, false, false]),
            (Advise, [false, false, true, false, false]),
            (Never, [false; 5]),
            (Deny, [false; 5]),
            (Force, [true, true, true, false, true]),
        ] {
            let config = Config {
                shmem_enabled,
                enabled: Enabled::Never,
                ..Config::default()
            };
            let policy = config.policy();
            let all = cases.iter().chain(&refused);
            let found = all.map(|&(huge, within_size, mounted)| {
                policy.maps_shared_huge(&SharedContext {
                    vma: Vma {
                        huge,
                        shared: true,
                        ..Vma::ANONYMOUS
                    },
                    mounted,
                    within_size,
                })
            });
            assert_eq!(found.collect::<Vec<_>>(), expected, "{shmem_enabled:?}");
        }
    }

    #[test]
    fn the_pass_collapses_from_the_threshold_on() {
        for (max_ptes_none, present, expected) in [
            (511, 1, true),
            (500, 11, false),
            (500, 12, true),
            (0, 511, false),
            (0, 512, true),
        ] {
            let config = Config {
                max_ptes_none,
                ..Config::default()
            };
            let context = CollapseContext {
                vma: Vma::ANONYMOUS,
                present,
                fragmentation: 0,
            };
            assert_eq!(
                config.policy().collapse(&context),
                expected,
                "{max_ptes_none} {present}"
            );
        }
    }
}
