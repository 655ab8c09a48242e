//! Pressure stall information (Linux, `kernel/sched/psi.c`): the share of time in which some task
//! waited for memory, averaged over 10, 60 and 300 s, and, as Contiguitas needs it (the Contiguitas
//! article, "Resizing Policies"), for movable and unmovable requests apart.

use contigua_units::Nanoseconds;

/// Averages are brought up to date this often.
pub const PERIOD: Nanoseconds = Nanoseconds::new(2_000_000_000);

/// Resource that stalled tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// Movable memory.
    Movable,
    /// Unmovable memory.
    Unmovable,
}

/// Averages of the share of time with a stall, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Averages {
    /// Over 10 s.
    pub avg10: f64,
    /// Over 60 s.
    pub avg60: f64,
    /// Over 300 s.
    pub avg300: f64,
    /// All stall time.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "total_nanoseconds", serialize_with = "number")
    )]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub total: Nanoseconds,
}

#[cfg(feature = "serde")]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn number<S: serde::Serializer>(time: &Nanoseconds, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(time.get())
}

/// `exp(-2 s / window)` for windows of 10, 60 and 300 s: what is left of an average after a period.
const DECAY: [f64; 3] = [
    0.818_730_753_077_981_8,
    0.967_216_100_482_005_8,
    0.993_355_506_255_034_4,
];

impl Averages {
    /// The higher of each.
    #[must_use]
    pub fn higher(&self, other: &Self) -> Self {
        Self {
            avg10: self.avg10.max(other.avg10),
            avg60: self.avg60.max(other.avg60),
            avg300: self.avg300.max(other.avg300),
            total: self.total.max(other.total),
        }
    }

    fn advance(&mut self, share: f64) {
        let averages = [&mut self.avg10, &mut self.avg60, &mut self.avg300];
        for (average, decay) in averages.into_iter().zip(DECAY) {
            *average = *average * decay + share * 100.0 * (1.0 - decay);
        }
    }
}

/// Pressure on one resource.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
struct Track {
    averages: Averages,
    /// Stall time of this period.
    pending: u64,
}

/// Pressure on movable memory, on unmovable memory, and on both together.
///
/// Stalls of concurrent tasks are added up, and a period holds at most its own length of them:
/// this is PSI's *some* when stalls do not overlap, and more than it when they do. The share of
/// time in which all tasks stall (*full*) needs to know the tasks, which this model does not.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Pressure {
    movable: Track,
    unmovable: Track,
    all: Track,
    /// End of the last period.
    at: Nanoseconds,
}

impl Pressure {
    /// A task stalled for this long.
    pub fn stall(&mut self, what: Stall, time: Nanoseconds) {
        let track = match what {
            Stall::Movable => &mut self.movable,
            Stall::Unmovable => &mut self.unmovable,
        };
        for track in [track, &mut self.all] {
            track.pending += time.get();
            track.averages.total = Nanoseconds::new(track.averages.total.get() + time.get());
        }
    }

    /// Brings the averages up to date.
    pub fn advance(&mut self, now: Nanoseconds) {
        while now.get() - self.at.get() >= PERIOD.get() {
            self.at = Nanoseconds::new(self.at.get() + PERIOD.get());
            for track in [&mut self.movable, &mut self.unmovable, &mut self.all] {
                let stalled = track.pending.min(PERIOD.get());
                track.pending = 0;
                track.averages.advance(stalled as f64 / PERIOD.get() as f64);
            }
        }
    }

    /// Pressure on movable requests.
    #[must_use]
    pub fn movable(&self) -> Averages {
        self.movable.averages
    }

    /// Pressure on unmovable requests.
    #[must_use]
    pub fn unmovable(&self) -> Averages {
        self.unmovable.averages
    }

    /// Pressure on all requests.
    #[must_use]
    pub fn all(&self) -> Averages {
        self.all.averages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Nanoseconds {
        Nanoseconds::new(seconds * 1_000_000_000)
    }

    /// A stall of half of every period for `time` seconds from second 0 on.
    fn half_stalled(time: u64) -> Pressure {
        let mut pressure = Pressure::default();
        for period in 0..time / 2 {
            pressure.stall(Stall::Movable, seconds(1));
            pressure.advance(seconds(2 * period + 2));
        }
        pressure
    }

    #[test]
    fn averages_approach_the_share_of_stalled_time() {
        let after = half_stalled(10).movable();
        // 50 % * (1 - 1/e) after one window.
        assert!((after.avg10 - 31.606).abs() < 0.001, "{after:?}");
        let after = half_stalled(3000).movable();
        assert!((after.avg10 - 50.0).abs() < 1e-6 && (after.avg300 - 50.0).abs() < 0.01);
        assert_eq!(after.total, seconds(1500));
    }

    #[test]
    fn pressure_of_classes_is_kept_apart_and_added_up() {
        let mut pressure = Pressure::default();
        pressure.stall(Stall::Unmovable, seconds(1));
        pressure.advance(seconds(2));
        assert!(pressure.unmovable().avg10 > 9.0);
        assert_eq!(pressure.movable(), Averages::default());
        assert_eq!(pressure.all(), pressure.unmovable());
    }

    #[test]
    fn averages_change_at_the_end_of_a_period_and_not_before() {
        let mut pressure = Pressure::default();
        pressure.stall(Stall::Movable, seconds(1));
        pressure.advance(Nanoseconds::new(PERIOD.get() - 1));
        assert!(pressure.movable().avg10 == 0.0);
        pressure.advance(PERIOD);
        assert!(pressure.movable().avg10 > 0.0);
    }

    #[test]
    fn a_period_holds_no_more_stall_than_itself() {
        let mut pressure = Pressure::default();
        for period in 1..=100 {
            pressure.stall(Stall::Movable, seconds(20));
            pressure.advance(seconds(2 * period));
        }
        assert!(pressure.movable().avg10 <= 100.0);
        pressure.advance(seconds(1200));
        assert!(pressure.movable().avg10 < 1e-6, "nothing stalls any more");
    }
}
