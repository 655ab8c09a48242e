//! Watermarks (Linux, `mm/page_alloc.c`): how much free memory a region keeps, and when reclaim
//! starts and ends. Linux's rule for a zone, applied to each region.

use contigua_units::{Order, PAGE_BYTES};

use crate::allocator::Frames;
use crate::block::BLOCK_FRAMES;
use crate::storage::Storage;

/// Marks of one region, in free frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watermarks {
    min: u64,
    low: u64,
    high: u64,
    boost: u64,
}

impl Watermarks {
    /// For a region of `frames` that keeps `min` of them.
    fn new(frames: u64, min: u64, scale: u64) -> Self {
        let step = (min / 4).max(frames * scale / 10_000);
        let step = if min == 0 { 0 } else { step };
        Self {
            min,
            low: min + step,
            high: min + 2 * step,
            boost: 0,
        }
    }

    /// Below this, background reclaim is woken.
    #[inline]
    pub(crate) fn wake(self) -> u64 {
        self.low + self.boost
    }

    pub(crate) fn low(self) -> u64 {
        self.low
    }

    /// Up to this, background reclaim goes on.
    pub(crate) fn high(self) -> u64 {
        self.high
    }

    /// The same, with what a fallback has added.
    pub(crate) fn boosted_high(self) -> u64 {
        self.high + self.boost
    }

    /// Below this, requests fail. Those that cannot wait may use half of the reserve.
    #[inline]
    pub(crate) fn least(self, atomic: bool) -> u64 {
        if atomic { self.min / 2 } else { self.min }
    }

    /// Lets reclaim free some pageblocks more, because types are getting mixed.
    fn add_boost(&mut self, factor: u64) {
        let most = self.high * factor / 10_000;
        // Linux does not boost where the reserve is smaller than a pageblock.
        if most >= u64::from(BLOCK_FRAMES) {
            self.boost = (self.boost + u64::from(BLOCK_FRAMES)).min(most);
        }
    }

    pub(crate) fn end_boost(&mut self) {
        self.boost = 0;
    }
}

/// What Linux keeps free of so many frames (`calculate_min_free_kbytes`): the square root of 16
/// times the memory in KB, from 128 KB to 256 MB.
fn linux_min(frames: u64) -> u64 {
    let kilobytes = frames * PAGE_BYTES / 1024;
    (kilobytes * 16).isqrt().clamp(128, 262_144) * 1024 / PAGE_BYTES
}

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

    pub(crate) fn boost(&mut self, region: usize) {
        let factor = u64::from(self.config.watermark_boost);
        self.regions[region].watermarks.add_boost(factor);
    }

    /// Wakes background reclaim for a region.
    #[cold]
    pub(crate) fn wake(&mut self, region: usize, order: Order) {
        let woken = &mut self.regions[region].woken;
        if woken.is_none() {
            self.counters.background_reclaims += 1;
        }
        *woken = Some(woken.map_or(order, |before| before.max(order)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_follow_linuxs_rule() {
        // 64 GiB that keep 32 MiB: 0.1 % of memory is more than a quarter of the reserve.
        let frames = 1 << 24;
        assert_eq!(linux_min(frames), 8192);
        let marks = Watermarks::new(frames, 8192, 10);
        assert_eq!((marks.min, marks.low, marks.high), (8192, 24_969, 41_746));
        // 1 GiB that keeps 4 MiB: here the quarter is less, too.
        let marks = Watermarks::new(1 << 18, 1024, 1);
        assert_eq!((marks.low - marks.min, marks.high - marks.low), (256, 256));
    }

    #[test]
    fn boosts_add_up_to_their_limit() {
        let mut marks = Watermarks::new(1 << 24, 8192, 10);
        marks.add_boost(15_000);
        assert_eq!(marks.wake(), marks.low + 512);
        for _ in 0..1000 {
            marks.add_boost(15_000);
        }
        assert_eq!(marks.boosted_high(), marks.high + marks.high * 3 / 2);
        marks.end_boost();
        assert_eq!(marks.wake(), marks.low);
    }
}
