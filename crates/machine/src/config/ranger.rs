//! The thread that coalesces mappings (Translation Ranger).

use contigua_paging::Ranging;
use contigua_units::{Bytes, Nanoseconds, PageSize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Translation Ranger (Yan, Lustig, Nellans and Bhattacharjee, ISCA 2019): a thread that brings the pages of large
/// mappings into one run each. It goes with any scheme of translation. Values are those of the paper's kernel
/// (`mm/mem_defrag.c`) and of the scripts that ran it (`run_all.sh`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RangerConfig {
    /// Move pages; else only count runs, as the scripts do for kernels without it (`CONTIG_STATS`).
    pub moves: bool,
    /// Time from one pass to the next (`STATS_PERIOD` 5 s, `DEFRAG_FREQ_FACTOR` 1).
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "24h"))]
    pub interval: Nanoseconds,
    /// 2 MB of memory that a pass looks at in each process; 0 for all (`num_breakout_chunks` 0).
    #[schemars(range(min = 0, max = 1_048_576))]
    pub chunks: u32,
    /// Bytes of the smallest mapping (`HPAGE_PUD_SIZE`).
    #[schemars(extend("x-minimum" = "4KiB", "x-maximum" = "1TiB"))]
    pub least: Bytes,
    /// Frames are as aligned as the addresses, up to this size (`HPAGE_PUD_SIZE`).
    pub align: PageSize,
    /// 2 MB whose pages are all in place become a huge page without a copy (`promote_huge_page_address`).
    pub promotes: bool,
    /// Split huge pages where a page and what is in its place differ in size. Ours: in `mem_defrag.c` they stay.
    pub splits: bool,
}

impl Default for RangerConfig {
    fn default() -> Self {
        Self {
            moves: true,
            interval: Nanoseconds::new(5_000_000_000),
            chunks: 0,
            least: Bytes::new(PageSize::Size1G.bytes()),
            align: PageSize::Size1G,
            promotes: true,
            splits: false,
        }
    }
}

impl RangerConfig {
    /// Mappings that have anchors.
    pub(crate) fn ranging(&self) -> Ranging {
        Ranging {
            least: self.least.get(),
            align: self.align,
        }
    }

    /// 4 KB pages that a pass looks at in each process.
    pub(crate) fn budget(&self) -> u64 {
        match self.chunks {
            0 => u64::MAX,
            chunks => u64::from(chunks) * u64::from(PageSize::Size2M.frames()),
        }
    }
}
