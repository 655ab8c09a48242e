//! Watermarks (Linux, `mm/page_alloc.c`): how much free memory a region keeps, and when reclaim
//! starts and ends. Linux's rule for a zone, applied to each region.

use contigua_units::PAGE_BYTES;

use crate::block::BLOCK_FRAMES;

/// Marks of one region, in free frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub(crate) struct Watermarks {
    min: u64,
    low: u64,
    high: u64,
    pub(crate) boost: u64,
}

impl Watermarks {
    /// For a region of `frames` that keeps `min` of them.
    pub(crate) fn new(frames: u64, min: u64, scale: u64) -> Self {
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

    /// High watermark with the boost that a fallback has added.
    pub(crate) fn boosted_high(self) -> u64 {
        self.high + self.boost
    }

    /// Below this, requests fail. Those that cannot wait may use half of the reserve.
    #[inline]
    pub(crate) fn least(self, atomic: bool) -> u64 {
        if atomic { self.min / 2 } else { self.min }
    }

    /// Lets reclaim free a pageblock more in a region of so many frames, because types are getting
    /// mixed (`boost_watermark`). Says whether it does.
    pub(crate) fn add_boost(&mut self, frames: u64, factor: u64) -> bool {
        let block = u64::from(BLOCK_FRAMES);
        let most = self.high * factor / 10_000;
        if most == 0 || frames < 4 * block {
            return false;
        }
        self.boost = (self.boost + block).min(most.max(block));
        true
    }

    /// Ends what fallbacks have added, and says whether there was any.
    pub(crate) fn end_boost(&mut self) -> bool {
        core::mem::take(&mut self.boost) > 0
    }
}

/// Minimum that Linux keeps free of so many frames (`calculate_min_free_kbytes`): the square root
/// of 16 times the memory in KB, from 128 KB to 256 MB.
pub(crate) fn linux_min(frames: u64) -> u64 {
    let kilobytes = frames * PAGE_BYTES / 1024;
    (kilobytes * 16).isqrt().clamp(128, 262_144) * 1024 / PAGE_BYTES
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
        let frames = 1 << 24;
        let mut marks = Watermarks::new(frames, 8192, 10);
        assert!(marks.add_boost(frames, 15_000));
        assert_eq!(marks.wake(), marks.low + 512);
        for _ in 0..1000 {
            marks.add_boost(frames, 15_000);
        }
        assert_eq!(marks.boosted_high(), marks.high + marks.high * 3 / 2);
        assert!(marks.end_boost());
        assert_eq!(marks.wake(), marks.low);
        assert!(!marks.end_boost());
    }

    #[test]
    fn a_boost_is_a_pageblock_at_least_but_not_in_the_smallest_regions() {
        let mut marks = Watermarks::new(1 << 14, 128, 10);
        assert!(marks.high * 3 / 2 < 512);
        assert!(!marks.add_boost(2047, 15_000));
        assert!(marks.add_boost(2048, 15_000));
        assert_eq!(marks.boosted_high(), marks.high + 512);
        assert!(!marks.add_boost(2048, 0));
    }
}
