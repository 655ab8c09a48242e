//! 1 GB pages allocated at run time, on a server that has aged.
//!
//! `echo N > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages` allocates one page after the
//! other (Linux, `set_max_huge_pages` in `mm/hugetlb.c`): an aligned range without unmovable memory is
//! isolated, and what is in it is moved out or reclaimed (`alloc_contig_pages`). Nodes take turns
//! (`next_node_allowed`). The first page for which there is no such range on any ends it.

use contigua_frames::{Counters, FrameClass};
use contigua_units::{Nanoseconds, PageSize};
use serde::Serialize;

use super::Server;

/// 1 GB pages that were allocated at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct GiganticPages {
    /// Pages that were asked for.
    pub requested: u64,
    /// Pages that were allocated, in this order.
    pub allocated: Vec<GiganticPage>,
}

/// Cost of a 1 GB page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct GiganticPage {
    /// Frames that were moved out of the range, and out of others that could not be emptied whole.
    pub frames_moved: u64,
    /// Frames that reclaim freed to make room for them.
    pub frames_reclaimed: u64,
    /// Ranges that could not be emptied before.
    pub ranges_given_up: u64,
    /// Time of moving and reclaiming (`memory.costs`).
    #[serde(rename = "nanoseconds", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub time: Nanoseconds,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn number<S: serde::Serializer>(time: &Nanoseconds, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(time.get())
}

impl Server {
    /// Allocates up to `most` 1 GB pages, until one fails.
    pub fn allocate_gigantic(&mut self, most: u64) -> GiganticPages {
        let mut allocated = Vec::new();
        while (allocated.len() as u64) < most {
            let before = self.counters();
            let order = PageSize::Size1G.order();
            self.nodes.run_on(allocated.len());
            if !self.nodes.allocate_contiguous(order, FrameClass::Anonymous) {
                break;
            }
            allocated.push(self.cost_since(&before));
        }
        GiganticPages {
            requested: most,
            allocated,
        }
    }

    fn cost_since(&self, before: &Counters) -> GiganticPage {
        let events = self.counters().since(before);
        let costs = &self.config.design.memory.costs;
        let time = costs.migrate.get() * events.frames_moved_from_isolated
            + costs.reclaim.get() * events.frames_reclaimed_background
            + costs.scan.get() * events.frames_scanned;
        GiganticPage {
            frames_moved: events.frames_moved_from_isolated,
            frames_reclaimed: events.frames_reclaimed_background,
            ranges_given_up: events.contiguous_failures,
            time: Nanoseconds::new(time),
        }
    }
}
