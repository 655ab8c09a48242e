//! Averages of the pages that looks found used, by 2 MB range, and buckets by them.

use std::collections::{BTreeMap, VecDeque};

use contigua_state::Plain;
use contigua_units::{PageSize, VirtAddr};

const HUGE: u64 = PageSize::Size2M.bytes();
/// Buckets of ranges.
const BUCKETS: usize = 10;
/// Used pages by which one bucket differs from the next (HawkEye, section 3.3: 0 to 49, 50 to 99 and so on).
const STEP: u32 = 50;
/// Ranges of at most so many used pages are in no bucket (`ohp_adjust_mm_bins`).
const COLD: u32 = 2;
/// Fraction bits of the average.
const FRACTION: u32 = 8;

/// Use of a space's memory, as looks found it.
#[derive(Clone, Debug, Default, Plain)]
pub(crate) struct Coverage {
    /// Average of used pages, by number of the 2 MB, with [`FRACTION`] bits.
    averages: BTreeMap<u64, u32>,
    /// Numbers of ranges by bucket, in the order of their promotion.
    buckets: Vec<VecDeque<u64>>,
    /// Huge pages at the last look.
    pub(crate) huge: u64,
    /// Of these, pages that were used.
    pub(crate) huge_used: u64,
}

/// Bucket of a range by its average.
fn bucket_of(average: u32) -> Option<usize> {
    let used = average >> FRACTION;
    (used > COLD).then(|| (used / STEP).min(BUCKETS as u32 - 1) as usize)
}

impl Coverage {
    /// Takes the numbers of pages that a look found used, by range, at a weight in percent.
    pub(crate) fn take(&mut self, used: &BTreeMap<u64, u32>, newest_percent: u32) {
        let before = core::mem::take(&mut self.averages);
        let mut buckets = core::mem::take(&mut self.buckets);
        buckets.resize(BUCKETS, VecDeque::new());
        let mut moved = Vec::new();
        for (&number, &count) in used {
            let old = before.get(&number).copied();
            let newest = u64::from(count << FRACTION) * u64::from(newest_percent);
            let kept = u64::from(old.unwrap_or(0)) * u64::from(100 - newest_percent.min(100));
            let average = ((newest + kept) / 100) as u32;
            self.averages.insert(number, average);
            let (from, to) = (old.and_then(bucket_of), bucket_of(average));
            if from != to {
                moved.push((number, from < to, to));
            }
        }
        let leaves = |number: &u64, at: usize| {
            self.averages.get(number).copied().and_then(bucket_of) != Some(at)
        };
        for (at, bucket) in buckets.iter_mut().enumerate() {
            bucket.retain(|number| !leaves(number, at));
        }
        for (number, rises, to) in moved {
            match to {
                Some(to) if rises => buckets[to].push_front(number),
                Some(to) => buckets[to].push_back(number),
                None => {}
            }
        }
        self.buckets = buckets;
    }

    /// The highest bucket that has a range, and its first one.
    pub(crate) fn hottest(&self) -> Option<(usize, VirtAddr)> {
        let mut found = self.buckets.iter().enumerate().rev();
        found.find_map(|(at, bucket)| Some((at, VirtAddr::new(bucket.front()? * HUGE))))
    }

    /// Takes that range out.
    pub(crate) fn take_hottest(&mut self) -> Option<VirtAddr> {
        let (bucket, address) = self.hottest()?;
        self.buckets[bucket].pop_front();
        self.averages.remove(&(address.get() / HUGE));
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(coverage: &Coverage) -> Vec<(usize, Vec<u64>)> {
        let buckets = coverage.buckets.iter().enumerate().rev();
        buckets
            .filter(|(_, bucket)| !bucket.is_empty())
            .map(|(at, bucket)| (at, bucket.iter().copied().collect()))
            .collect()
    }

    #[test]
    fn ranges_that_rise_come_first_and_others_last() {
        let mut coverage = Coverage::default();
        let look = |coverage: &mut Coverage, used: &[(u64, u32)]| {
            coverage.take(&used.iter().copied().collect(), 100);
        };
        look(
            &mut coverage,
            &[(1, 120), (2, 130), (3, 512), (4, 2), (5, 60)],
        );
        assert_eq!(
            order(&coverage),
            [(9, vec![3]), (2, vec![2, 1]), (1, vec![5])]
        );
        // 3 falls behind those that stay, 5 rises before them; 4 stays cold, and 2 is gone.
        look(&mut coverage, &[(1, 149), (3, 100), (4, 1), (5, 100)]);
        assert_eq!(order(&coverage), [(2, vec![5, 1, 3])]);
        assert_eq!(coverage.hottest(), Some((2, VirtAddr::new(5 * HUGE))));
    }

    #[test]
    fn averages_forget_slowly() {
        let mut coverage = Coverage::default();
        coverage.take(&[(7, 500)].into(), 60);
        assert_eq!(order(&coverage), [(6, vec![7])]);
        coverage.take(&[(7, 0)].into(), 60);
        assert_eq!(order(&coverage), [(2, vec![7])], "300 becomes 120");
        coverage.take(&[(7, 512)].into(), 60);
        assert_eq!(order(&coverage), [(7, vec![7])], "355");
    }
}
