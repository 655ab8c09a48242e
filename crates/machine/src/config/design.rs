//! Designs, which are compared: translation, placement, memory management, migration, host.

use contigua_cache::migration::{Mode, SwitchOrder};
use contigua_paging::{HugeAdvice, SharedContext, Vma};
use contigua_program::layout::AlignedShmem;
use contigua_translation::SchemeConfig;
use contigua_units::Nanoseconds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ranger::RangerConfig;

/// A design, which is compared with others: a file in `designs/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DesignConfig {
    /// Description of the design, for people.
    pub description: String,
    /// The translation scheme, both halves.
    pub translation: SchemeConfig,
    /// Where physical memory is taken from.
    #[serde(default)]
    pub placement: contigua_frames::Placement,
    /// Settings of the kernel's memory management.
    #[serde(default)]
    pub memory: contigua_frames::Config,
    /// How pages of a running program move.
    #[serde(default)]
    pub migration: MigrationConfig,
    /// The thread that coalesces mappings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranger: Option<RangerConfig>,
    /// The host, when the kernel runs in a virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostConfig>,
}

impl DesignConfig {
    /// Shared memory that its kernel would align for huge pages.
    #[must_use]
    pub fn aligned_shmem(&self) -> AlignedShmem {
        let policy = self.translation.policy();
        let maps_huge = |mounted| {
            let vma = Vma {
                shared: true,
                huge: HugeAdvice::Huge,
                ..Vma::ANONYMOUS
            };
            policy.maps_shared_huge(&SharedContext {
                vma,
                mounted,
                within_size: true,
            })
        };
        match (maps_huge(false), maps_huge(true)) {
            (_, true) => AlignedShmem::All,
            (true, false) => AlignedShmem::Unmounted,
            (false, false) => AlignedShmem::None,
        }
    }
}

/// How pages move while programs run that use them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationConfig {
    /// As every kernel does today: the page is away from its first step to its last.
    Software(SoftwareMigration),
    /// Contiguitas' hardware in the last-level cache.
    Llc(LlcMigration),
}

impl Default for MigrationConfig {
    fn default() -> Self {
        Self::Software(SoftwareMigration::default())
    }
}

/// Migration as every kernel does today (Contiguitas, Figure 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SoftwareMigration {
    /// How other cores forget the old translation.
    pub shootdown: Shootdown,
    /// Pages that share a shootdown.
    #[schemars(range(min = 1, max = 512))]
    pub batch: u32,
    /// Copying a page that no cache holds (mechanisms B7: 2 microseconds).
    #[schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s"))]
    pub copy: Nanoseconds,
}

impl Default for SoftwareMigration {
    fn default() -> Self {
        Self {
            shootdown: Shootdown::Interrupt,
            batch: 1,
            copy: Nanoseconds::new(2_000),
        }
    }
}

/// How cores are made to forget a translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Shootdown {
    /// They are interrupted, and waited for.
    #[default]
    Interrupt,
    /// They do it at their next timer tick, and the page waits for that (LATR: Kumar et al.,
    /// ASPLOS 2018).
    Lazy,
}

/// Contiguitas' migration in the last-level cache (the Contiguitas article; Contiguitas, section
/// 3.3).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlcMigration {
    /// Mode of migration: may private caches keep lines of a page that migrates?
    pub mode: Mode,
    /// Order of the copy and the new page-table entry.
    pub order: SwitchOrder,
}

/// The host of a virtual machine that has the server's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// How the host maps the virtual machine's memory. The hardware is that of the guest's scheme.
    pub translation: SchemeConfig,
    /// Where the host's memory is taken from.
    #[serde(default)]
    pub placement: contigua_frames::Placement,
    /// The guest's first touches of memory cost the host nothing, as those of a virtual machine that has used
    /// all of it before.
    #[serde(default)]
    pub populated: bool,
}
