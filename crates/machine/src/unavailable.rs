//! The distribution of times for which pages could not be used while they migrated.

use contigua_units::Cycles;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Buckets of each power of two: a bucket's bounds are less than an eighth apart.
const SHARES: u64 = 8;

/// Times, one for each migrated page: the longest delay of an access between begin and end of the
/// migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub struct Unavailable {
    /// Pages.
    pub count: u64,
    /// All times together.
    pub total_cycles: Cycles,
    /// The shortest.
    pub min_cycles: Cycles,
    /// The longest.
    pub max_cycles: Cycles,
    /// Pages by time: bucket `i` has times below `bound(i)` and not below `bound(i - 1)`.
    buckets: Vec<u64>,
}

/// Number of the bucket of a time. Times below 8 have buckets of their own.
fn bucket(time: u64) -> usize {
    if time < SHARES {
        return time as usize;
    }
    let power = u64::from(time.ilog2());
    let share = time >> (power - 3) & (SHARES - 1);
    ((power - 2) * SHARES + share) as usize
}

/// The least time above a bucket.
fn bound(bucket: usize) -> u64 {
    let next = bucket as u64 + 1;
    if next < SHARES {
        return next;
    }
    (SHARES + next % SHARES) << (next / SHARES - 1)
}

impl Unavailable {
    pub(crate) fn add(&mut self, time: Cycles) {
        self.min_cycles = if self.count == 0 {
            time
        } else {
            self.min_cycles.min(time)
        };
        self.max_cycles = self.max_cycles.max(time);
        self.total_cycles += time;
        self.count += 1;
        let bucket = bucket(time.get());
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
    }

    /// A time that this share of pages does not exceed, to an eighth of itself; 0 without pages.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut pages = 0;
        for (number, count) in self.buckets.iter().enumerate() {
            pages += count;
            if pages >= wanted {
                return (bound(number) - 1).min(self.max_cycles.get());
            }
        }
        0
    }

    /// Bounds of buckets that have pages, and their pages: times below the bound.
    fn histogram(&self) -> Vec<[u64; 2]> {
        let buckets = self.buckets.iter().enumerate();
        let full = buckets.filter(|(_, count)| **count > 0);
        full.map(|(number, count)| [bound(number), *count])
            .collect()
    }
}

impl Serialize for Unavailable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Unavailable", 8)?;
        out.serialize_field("count", &self.count)?;
        out.serialize_field("total_cycles", &self.total_cycles)?;
        out.serialize_field("min_cycles", &self.min_cycles)?;
        out.serialize_field("median_cycles", &self.quantile(0.5))?;
        out.serialize_field("p95_cycles", &self.quantile(0.95))?;
        out.serialize_field("p99_cycles", &self.quantile(0.99))?;
        out.serialize_field("max_cycles", &self.max_cycles)?;
        out.serialize_field("histogram", &self.histogram())?;
        out.end()
    }
}

impl schemars::JsonSchema for Unavailable {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Unavailable".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let number = |text: &str| schemars::json_schema!({ "description": text, "type": "integer", "minimum": 0 });
        schemars::json_schema!({
            "description": "Times, one for each migrated page: the longest delay of an access between begin and end of the migration.",
            "type": "object",
            "properties": {
                "count": number("Pages."),
                "total_cycles": number("All times together."),
                "min_cycles": number("The shortest."),
                "median_cycles": number("Half of the pages have no longer one."),
                "p95_cycles": number("95 % of the pages have no longer one."),
                "p99_cycles": number("99 % of the pages have no longer one."),
                "max_cycles": number("The longest."),
                "histogram": {
                    "description": "Pages by time: pairs of a bound, which the times are below, and the number of pages. Bounds are an eighth of a power of two apart.",
                    "type": "array",
                    "items": {
                        "type": "array",
                        "items": { "type": "integer", "minimum": 0 },
                        "minItems": 2,
                        "maxItems": 2
                    }
                }
            },
            "required": [
                "count", "total_cycles", "min_cycles", "median_cycles", "p95_cycles",
                "p99_cycles", "max_cycles", "histogram"
            ],
            "additionalProperties": false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket() {
        let times = (0..4096).chain((12..63).flat_map(|power| {
            let one = 1_u64 << power;
            [one - 1, one, one + 1, one + one / 8, one + one / 2]
        }));
        for time in times {
            let number = bucket(time);
            assert!(time < bound(number), "{time}");
            assert!(number == 0 || time >= bound(number - 1), "{time}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_times_to_an_eighth() {
        let mut times = Unavailable::default();
        (1..=1000).for_each(|time| times.add(Cycles::new(time)));
        for (share, time) in [(0.5, 500.0), (0.95, 950.0), (1.0, 1000.0)] {
            let found = times.quantile(share) as f64;
            assert!((time..=time * 1.125).contains(&found), "{share}: {found}");
        }
        assert_eq!(Unavailable::default().quantile(0.5), 0);
    }
}
