//! Position in its set at which a line from memory enters the last level.

use serde::{Deserialize, Serialize};

use super::prefetch::GOLDEN_RATIO;

/// Position in its set at which a line from memory enters the last level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Insertion {
    /// As the most recently used one.
    #[default]
    Recent,
    /// As `recent` or, but for one in 16, near the end, whichever misses less in sample sets: set
    /// dueling (Qureshi et al., "Adaptive Insertion Policies for High Performance Caching", ISCA
    /// 2007). Lines that are used again then stay when more lines pass than there is room for.
    Adaptive,
}

impl Insertion {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn is_recent(&self) -> bool {
        *self == Self::Recent
    }
}

/// Of so many sets, one shows what entering in front does, and one what entering near the end does. As
/// many as in the paper, section 4.3; which ones, a hash says: sets of a page's first lines, which no
/// prefetch of a next line enters, would be a biased choice.
const LEADERS: u64 = 32;
/// The hash of those that enter lines near the end; that of the others is 0.
const LATE: u64 = LEADERS / 2;
/// Counters of 10 bits, as in the paper.
const MOST: u32 = 1023;
/// Of the lines that enter near the end, one in so many enters in front. 16 on Haswell and Broadwell
/// (uops.info, "Caches": `MR161`).
const IN_FRONT: u32 = 16;

/// Choice between the two policies.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Duel {
    #[state(skip)]
    insertion: Insertion,
    /// Misses of leaders that enter lines in front, less those of the others.
    score: u32,
    /// Lines for which the end was chosen.
    late: u32,
}

impl Duel {
    /// Places that an entry near the end has behind it. None would do for the policy; a transaction may
    /// enter two more lines of migrating pages, and the first must not go.
    pub(super) const BEHIND: usize = 2;

    pub(super) fn new(insertion: Insertion) -> Self {
        Self {
            insertion,
            score: MOST / 2,
            late: 0,
        }
    }

    /// A line of this set comes from memory. Whether it enters near the end.
    #[inline]
    pub(super) fn enters_late(&mut self, set: u64) -> bool {
        if self.insertion == Insertion::Recent {
            return false;
        }
        let late = match leader(set) {
            0 => {
                self.score = (self.score + 1).min(MOST);
                false
            }
            LATE => {
                self.score = self.score.saturating_sub(1);
                true
            }
            _ => self.score > MOST / 2,
        };
        self.late = self.late.wrapping_add(late.into());
        late && !self.late.is_multiple_of(IN_FRONT)
    }
}

/// Policy that a set leads: 0 and [`LATE`] do.
#[inline]
fn leader(set: u64) -> u64 {
    set.wrapping_mul(GOLDEN_RATIO) >> (u64::BITS - LEADERS.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sets;

    /// Misses of `rounds` passes over so many lines, in 64 sets of 8 ways.
    fn misses(insertion: Insertion, lines: u64, rounds: u64) -> u64 {
        let mut sets = Sets::new("test", 512, 8).unwrap();
        let mut duel = Duel::new(insertion);
        let mut misses = 0;
        for _ in 0..rounds {
            for line in 0..lines {
                if sets.lookup(line, line).is_some() {
                    continue;
                }
                misses += 1;
                if duel.enters_late(sets.set_of(line)) {
                    sets.insert_behind(line, line, (), Duel::BEHIND);
                } else {
                    sets.insert(line, line, ());
                }
            }
        }
        misses
    }

    #[test]
    fn adaptive_insertion_keeps_a_part_of_what_does_not_fit() {
        let (lines, rounds) = (1024, 100);
        let recent = misses(Insertion::Recent, lines, rounds);
        assert_eq!(recent, lines * rounds);
        let adaptive = misses(Insertion::Adaptive, lines, rounds);
        assert!(adaptive < recent * 8 / 10, "{adaptive} of {recent}");
    }

    #[test]
    fn adaptive_insertion_misses_once_on_a_working_set_that_fits() {
        for insertion in [Insertion::Recent, Insertion::Adaptive] {
            assert_eq!(misses(insertion, 512, 10), 512);
        }
    }

    #[test]
    fn sets_follow_the_policy_whose_leaders_miss_less() {
        let mut duel = Duel::new(Insertion::Adaptive);
        let set = |hash| (0..1000).find(|&set| leader(set) == hash).unwrap();
        let followers = |duel: &mut Duel| (0..32).filter(|_| duel.enters_late(set(5))).count();
        assert_eq!(followers(&mut duel), 0);
        for _ in 0..3 {
            duel.enters_late(set(0));
        }
        assert_eq!(followers(&mut duel), 30);
        for _ in 0..3 {
            duel.enters_late(set(LATE));
        }
        assert_eq!(followers(&mut duel), 0);
    }
}
