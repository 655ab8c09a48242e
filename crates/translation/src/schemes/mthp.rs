//! Multi-size THP: folios of 16 KB to 1 MB at faults, as Linux has them since 6.8
//! (`Documentation/admin-guide/mm/transhuge.rst`; the mechanism is `paging/src/folios.rs`). TLBs that know groups of
//! pages (`arm-contiguous`, `amd-coalescing`) translate them with few entries.
//!
//! The sizes stand beside the settings of 2 MB pages, so every scheme that has those has these.

use contigua_paging::{HugeAdvice, Orders, Vma};
use serde::{Deserialize, Serialize};

/// Use of huge pages (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Enabled {
    /// Everywhere but where the program objects.
    Always,
    /// In memory that the program advises with `MADV_HUGEPAGE`.
    Madvise,
    /// Nowhere.
    Never,
}

impl Enabled {
    pub(super) fn allows(self, vma: Vma) -> bool {
        match (self, vma.huge) {
            (Self::Never, _) | (_, HugeAdvice::NoHuge) => false,
            (Self::Madvise, advice) => advice == HugeAdvice::Huge,
            (Self::Always, _) => true,
        }
    }
}

/// Use of folios of a size (`/sys/kernel/mm/transparent_hugepage/hugepages-<size>kB/enabled`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// Everywhere but where the program objects.
    Always,
    /// As `enabled` of 2 MB pages.
    Inherit,
    /// In memory that the program advises with `MADV_HUGEPAGE`.
    Madvise,
    /// Nowhere: Linux's default.
    #[default]
    Never,
}

impl Use {
    fn allows(self, all: Enabled, vma: Vma) -> bool {
        let enabled = match self {
            Self::Always => Enabled::Always,
            Self::Inherit => all,
            Self::Madvise => Enabled::Madvise,
            Self::Never => Enabled::Never,
        };
        enabled.allows(vma)
    }
}

/// Sizes of folios. Those of 2 MB are `enabled`, which is also what others inherit.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[schemars(rename = "mthp")]
#[serde(deny_unknown_fields, default)]
pub struct Sizes {
    /// `hugepages-16kB`.
    #[serde(rename = "16kB")]
    pub of_16k: Use,
    /// `hugepages-32kB`.
    #[serde(rename = "32kB")]
    pub of_32k: Use,
    /// `hugepages-64kB`.
    #[serde(rename = "64kB")]
    pub of_64k: Use,
    /// `hugepages-128kB`.
    #[serde(rename = "128kB")]
    pub of_128k: Use,
    /// `hugepages-256kB`.
    #[serde(rename = "256kB")]
    pub of_256k: Use,
    /// `hugepages-512kB`.
    #[serde(rename = "512kB")]
    pub of_512k: Use,
    /// `hugepages-1024kB`.
    #[serde(rename = "1024kB")]
    pub of_1024k: Use,
}

impl Sizes {
    /// Orders that a fault in a mapping may have.
    pub(super) fn orders(self, all: Enabled, vma: Vma) -> Orders {
        let uses = [
            self.of_16k,
            self.of_32k,
            self.of_64k,
            self.of_128k,
            self.of_256k,
            self.of_512k,
            self.of_1024k,
        ];
        let allowed = Orders::all().zip(uses);
        let allowed = allowed.filter(|(_, by)| by.allows(all, vma));
        allowed.map(|(order, _)| order).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_paging::HugeAdvice::{Huge, NoHuge, None};
    use contigua_units::Order;

    #[test]
    fn each_size_is_used_as_linux_says() {
        let sizes = Sizes {
            of_16k: Use::Always,
            of_64k: Use::Inherit,
            of_256k: Use::Madvise,
            ..Sizes::default()
        };
        for (all, advice, expected) in [
            (Enabled::Never, None, &[2][..]),
            (Enabled::Never, Huge, &[6, 2]),
            (Enabled::Madvise, None, &[2]),
            (Enabled::Madvise, Huge, &[6, 4, 2]),
            (Enabled::Always, None, &[4, 2]),
            (Enabled::Always, NoHuge, &[]),
        ] {
            let vma = Vma {
                huge: advice,
                ..Vma::ANONYMOUS
            };
            let orders = sizes.orders(all, vma).largest_first();
            let orders: Vec<u8> = orders.map(Order::get).collect();
            assert_eq!(orders, expected, "{all:?} {advice:?}");
        }
    }
}
