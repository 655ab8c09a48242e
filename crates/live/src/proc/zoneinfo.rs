//! `/proc/zoneinfo`: where zones lie, how full they are, and when the kernel begins to reclaim.

use super::{Line, System, node_and_zone};
use crate::Error;

/// Free frames below which the kernel acts (its `Documentation/admin-guide/mm/concepts.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Watermarks {
    /// Below it, allocations reclaim by themselves.
    #[serde(rename = "min_frames")]
    pub min: u64,
    /// Below it, kswapd wakes.
    #[serde(rename = "low_frames")]
    pub low: u64,
    /// At it, kswapd sleeps again.
    #[serde(rename = "high_frames")]
    pub high: u64,
    /// Added to all of them for a while after fragmentation (0 before kernel 6.0 printed it).
    #[serde(rename = "boost_frames")]
    pub boost: u64,
}

/// A zone of a node. Counts are in frames of 4 KB.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Zone {
    /// The memory node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `Movable`, `Device`.
    pub name: String,
    /// The first frame.
    #[serde(rename = "start_frame")]
    pub start: u64,
    /// Frames from the first to the last, holes included.
    #[serde(rename = "spanned_frames")]
    pub spanned: u64,
    /// Frames that exist.
    #[serde(rename = "present_frames")]
    pub present: u64,
    /// Frames that the page allocator was given.
    #[serde(rename = "managed_frames")]
    pub managed: u64,
    /// Frames that belong to a contiguous memory area (CMA).
    #[serde(rename = "cma_frames")]
    pub cma: u64,
    /// Frames on the allocator's free lists.
    #[serde(rename = "free_frames")]
    pub free: u64,
    /// Frames that are free on the lists of single CPUs, which no flag of theirs tells.
    #[serde(rename = "per_cpu_free_frames")]
    pub per_cpu_free: u64,
    /// When the kernel acts.
    pub watermarks: Watermarks,
    /// Free frames of this zone that allocations meant for a higher zone leave alone, by the
    /// index of that zone in its node.
    #[serde(rename = "protection_frames")]
    pub protection: Vec<u64>,
    /// Everything else with one number: `nr_zone_active_file`, `numa_hit`. A node's own
    /// statistics (`nr_anon_pages`) are with its first zone.
    pub counters: Vec<(String, u64)>,
}

impl Zone {
    /// The frame after the last.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.spanned)
    }

    /// Returns true if the kernel places only movable memory in this zone.
    #[must_use]
    pub fn is_movable(&self) -> bool {
        self.name == "Movable"
    }

    /// A counter by its name.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        let found = self.counters.iter().find(|(key, _)| key == name);
        found.map(|&(_, value)| value)
    }
}

impl System {
    /// All zones, in the kernel's order.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Parse`] where a zone has no size, as in a file that is cut short.
    pub fn zones(&self) -> Result<Vec<Zone>, Error> {
        let text = self.text("proc/zoneinfo")?;
        let mut zones: Vec<Zone> = Vec::new();
        let mut is_whole = true;
        for line in text.lines() {
            if let Some((node, name, _)) = node_and_zone(&line) {
                if !is_whole {
                    return Err(line.expected("the rest of the last zone"));
                }
                is_whole = false;
                zones.push(Zone {
                    node,
                    name: name.to_owned(),
                    ..Zone::default()
                });
                continue;
            }
            let zone = zones
                .last_mut()
                .ok_or_else(|| line.expected("Node N, zone NAME"))?;
            is_whole |= take(zone, &line)?;
        }
        if zones.is_empty() || !is_whole {
            return Err(text.ends_without("a zone with its size"));
        }
        Ok(zones)
    }
}

/// Takes one line; whether it was the last that a reader needs: an empty zone ends with its
/// `protection`, any other with `start_pfn`, and an empty one prints `managed` before it.
fn take(zone: &mut Zone, line: &Line<'_>) -> Result<bool, Error> {
    let mut words = line.text.split_whitespace();
    let (Some(key), value) = (words.next(), words.next()) else {
        return Ok(false);
    };
    let field = match key.trim_end_matches(':') {
        "pages" if value == Some("free") => {
            zone.free = line.number(words.next())?;
            return Ok(false);
        }
        "protection" => {
            let inner = line.text.split_once('(');
            let inner = inner.and_then(|(_, rest)| rest.trim_end().strip_suffix(')'));
            let inner = inner.ok_or_else(|| line.expected("numbers in parentheses"))?;
            let numbers = inner.split(',').map(|word| line.number(Some(word.trim())));
            zone.protection = numbers.collect::<Result<_, _>>()?;
            // A zone without memory has no more to say.
            return Ok(zone.present == 0);
        }
        "start_pfn" => {
            zone.start = line.number(value)?;
            return Ok(true);
        }
        "count" => {
            zone.per_cpu_free += line.number(value)?;
            return Ok(false);
        }
        "min" => &mut zone.watermarks.min,
        "low" => &mut zone.watermarks.low,
        // The lists of CPUs have a mark of this name, too, with a colon.
        "high" if !key.ends_with(':') => &mut zone.watermarks.high,
        "boost" => &mut zone.watermarks.boost,
        "spanned" => &mut zone.spanned,
        "present" => &mut zone.present,
        "managed" => &mut zone.managed,
        "cma" => &mut zone.cma,
        name => {
            if !key.ends_with(':')
                && let (Some(Ok(value)), None) = (value.map(str::parse), words.next())
            {
                zone.counters.push((name.to_owned(), value));
            }
            return Ok(false);
        }
    };
    *field = line.number(value)?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;
    use super::*;

    const TEXT: &str = "\
Node 0, zone   Normal
  per-node stats
      nr_inactive_anon 90
  pages free     3661441
        boost    0
        min      14769
        low      20163
        high     25557
        spanned  5505024
        present  5505024
        managed  5394266
        cma      0
        protection: (0, 0, 0, 21, 0)
      nr_free_pages 3661441
  pagesets
    cpu: 0
              count:    19794
              high:     10081
              batch:    63
  vm stats threshold: 36
    cpu: 1
              count: 6
              high:     10081
  node_unreclaimable:  0
  start_pfn:           1048576
Node 0, zone  Movable
  pages free     0
        min      32
        low      32
        high     32
        spanned  0
        present  0
        managed  0
        protection: (0, 0, 0, 0, 0)
";

    #[test]
    fn a_zone_has_its_place_its_fill_and_its_marks() {
        let (_folder, system) = machine(&[("proc/zoneinfo", TEXT)]);
        let zones = system.zones().unwrap();
        assert_eq!(zones.len(), 2);
        let normal = &zones[0];
        assert_eq!((normal.node, normal.name.as_str()), (0, "Normal"));
        assert_eq!((normal.start, normal.end()), (1_048_576, 6_553_600));
        assert_eq!((normal.present, normal.managed), (5_505_024, 5_394_266));
        assert_eq!((normal.free, normal.per_cpu_free), (3_661_441, 19_800));
        let Watermarks { min, low, high, .. } = normal.watermarks;
        assert_eq!((min, low, high), (14_769, 20_163, 25_557));
        assert_eq!(normal.protection, [0, 0, 0, 21, 0]);
        assert_eq!(normal.counter("nr_inactive_anon"), Some(90));
        assert_eq!(normal.counter("cpu"), None);
        assert!(zones[1].is_movable() && zones[1].spanned == 0);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_an_error_or_says_what_it_said() {
        let whole = {
            let (_folder, system) = machine(&[("proc/zoneinfo", TEXT)]);
            system.zones().unwrap()
        };
        for end in 0..TEXT.len() {
            let (_folder, system) = machine(&[("proc/zoneinfo", &TEXT[..end])]);
            if let Ok(zones) = system.zones() {
                // What a cut leaves is a number with fewer digits at worst, in the last line.
                assert!(zones.len() <= whole.len(), "cut at {end}");
                assert_eq!(zones[0].present, whole[0].present, "cut at {end}");
            }
        }
        let (_folder, system) = machine(&[("proc/zoneinfo", "garbage\n")]);
        let error = system.zones().unwrap_err().to_string();
        assert!(error.contains("zoneinfo:1: expected Node"), "{error}");
    }
}
