//! The watermarks of regions, and what wakes background reclaim.

use contigua_units::Order;

use super::Frames;
use crate::policies::PlacementPolicy;
use crate::storage::Storage;
use crate::watermarks::{Watermarks, linux_min};

impl<S: Storage> Frames<S> {
    /// Computes all marks for the regions as they are.
    pub(crate) fn set_watermarks(&mut self) {
        let all = u64::from(self.total);
        let scale = u64::from(self.config.watermark_scale);
        for region in &mut self.regions {
            let boost = region.watermarks.boost;
            let frames = region.frames();
            let min = match self.config.min_free {
                Some(all_keep) => all_keep.frames() * frames / all,
                None => linux_min(frames),
            };
            region.watermarks = Watermarks::new(frames, min, scale);
            region.watermarks.boost = boost;
        }
    }

    /// Raises a region's marks after a fallback, and wakes reclaim if that is wanted, which would not
    /// wake by itself.
    pub(crate) fn boost(&mut self, region: usize) {
        let factor = u64::from(self.config.watermark_boost);
        let frames = self.regions[region].frames();
        let is_boosted = self.regions[region].watermarks.add_boost(frames, factor);
        if is_boosted && self.config.boosts_wake {
            self.wake(region, Order::BASE);
        }
    }

    /// Wakes background reclaim for a region.
    #[cold]
    pub(crate) fn wake(&mut self, region: usize, order: Order) {
        let order = if self.placement.defragments() {
            order.max(Order::HUGE_2M)
        } else {
            order
        };
        let woken = &mut self.regions[region].woken;
        if woken.is_none() {
            self.counters.background_reclaims += 1;
        }
        *woken = Some(woken.map_or(order, |before| before.max(order)));
    }
}
