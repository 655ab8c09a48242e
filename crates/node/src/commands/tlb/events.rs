//! Counters of page walks, by processor.
//!
//! | processors | cycles of data walks | of instruction walks | source |
//! |---|---|---|---|
//! | Intel, Haswell and Broadwell | `0x08/0x10`, `0x49/0x10` `WALK_DURATION` | `0x85/0x10` | Intel's event lists (perfmon, HSW, BDW) |
//! | Intel, Skylake to Ice Lake | the same with counter mask 1: `DTLB_LOAD_MISSES.WALK_ACTIVE`, `DTLB_STORE_MISSES.WALK_ACTIVE` | `ITLB_MISSES.WALK_ACTIVE` | perfmon, SKX, CLX, ICX |
//! | Intel, Golden Cove on (Alder Lake's large cores, Sapphire Rapids) | `0x12/0x10`, `0x13/0x10`, mask 1 | `0x11/0x10`, mask 1 | perfmon, ADL, SPR, EMR, GNR |
//! | AMD, Zen to Zen 5 | none; `0x45/0xF0` `LS_L1_D_TLB_MISS.ALL_L2_MISS` counts walks | `0x85/0x07` `BP_L1_TLB_MISS_L2_TLB_MISS` counts walks | AMD's Processor Programming References |
//! | ARM, with PMU version 3 from 8.1 | `0x8128` `DTLB_WALK_PERCYC` where there is one, else `0x34` `DTLB_WALK` counts walks | `0x8129`, `0x35` | Arm Architecture Reference Manual, DDI 0487, chapter on PMU events |
//!
//! A mask of 1 counts cycles in which at least one walk is under way; ARM's counters add up the
//! walks under way in each cycle, so that two at a time count twice. Kernel and programs are both
//! counted, as in Contiguitas' Figure 3.

use contigua_live::proc::System;

/// Unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Cycles with a walk.
    Cycles,
    /// Walks.
    Walks,
}

/// A raw counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// True if caused by instruction fetches, false if by data accesses.
    pub is_instruction: bool,
    /// Unit of the counter.
    pub measure: Measure,
    /// The number that the kernel takes (`perf stat -e rNNN`).
    pub raw: u64,
}

/// The machine's description of its processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// `GenuineIntel`, `AuthenticAMD`, or nothing.
    pub vendor: String,
    /// The family.
    pub family: u32,
    /// The model.
    pub model: u32,
    /// Its name.
    pub name: String,
}

impl Processor {
    /// The processor of a machine.
    pub fn of(system: &System) -> Self {
        let text = system.text("proc/cpuinfo");
        let text = text.as_ref().map_or("", |text| text.as_str());
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.find_map(|(key, value)| (key.trim() == name).then(|| value.trim().to_owned()))
        };
        let number = |name: &str| field(name).and_then(|word| word.parse().ok()).unwrap_or(0);
        let arm = field("CPU implementer").map(|_| "ARM".to_owned());
        Self {
            vendor: field("vendor_id").or(arm).unwrap_or_default(),
            family: number("cpu family"),
            model: number("model"),
            name: field("model name").unwrap_or_else(|| "an unnamed processor".to_owned()),
        }
    }

    /// The counters of page walks, best first where there are several kinds: the first kind that
    /// the kernel accepts is used. None for processors that are not known.
    pub fn events(&self) -> Vec<Vec<Event>> {
        let intel = |data: [u64; 2], instruction: u64, mask: u64| {
            let event = |is_instruction, code: u64| Event {
                is_instruction,
                measure: Measure::Cycles,
                raw: (mask << 24) | (0x10 << 8) | code,
            };
            let data = data.map(|code| event(false, code));
            vec![[data[0], data[1], event(true, instruction)].to_vec()]
        };
        let pair = |measure, data, instruction| {
            let event = |is_instruction, raw| Event {
                is_instruction,
                measure,
                raw,
            };
            vec![event(false, data), event(true, instruction)]
        };
        match (self.vendor.as_str(), self.family) {
            ("GenuineIntel", 6) => match self.model {
                // Haswell, Broadwell.
                0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56 => {
                    intel([0x08, 0x49], 0x85, 0)
                }
                // Skylake, Cascade Lake, Kaby Lake, Comet Lake, Cannon Lake, Ice Lake, Tiger Lake,
                // Rocket Lake.
                0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6 | 0x66 | 0x6a | 0x6c | 0x7d
                | 0x7e | 0x8c | 0x8d | 0xa7 => intel([0x08, 0x49], 0x85, 1),
                // Sapphire Rapids, Emerald Rapids, Granite Rapids, Alder Lake, Raptor Lake.
                0x8f | 0xcf | 0xad | 0xae | 0x97 | 0x9a | 0xb7 | 0xba | 0xbf => {
                    intel([0x12, 0x13], 0x11, 1)
                }
                _ => Vec::new(),
            },
            ("AuthenticAMD" | "HygonGenuine", 0x17..=0x1a) => {
                vec![pair(Measure::Walks, 0xf045, 0x0785)]
            }
            ("ARM", _) => vec![
                pair(Measure::Cycles, 0x8128, 0x8129),
                pair(Measure::Walks, 0x34, 0x35),
            ],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processor(cpuinfo: &str) -> Processor {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        std::fs::write(folder.path().join("proc/cpuinfo"), cpuinfo).unwrap();
        Processor::of(&System::at(folder.path()))
    }

    #[test]
    fn processors_have_their_counters() {
        let intel = |model: u32| {
            processor(&format!(
                "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\n\
                 model name\t: Xeon\n"
            ))
        };
        let raw = |processor: &Processor| -> Vec<u64> {
            let kinds = processor.events();
            kinds
                .first()
                .into_iter()
                .flatten()
                .map(|event| event.raw)
                .collect()
        };
        // As perf's own lists encode them.
        assert_eq!(raw(&intel(0x4f)), [0x1008, 0x1049, 0x1085]);
        assert_eq!(raw(&intel(0x55)), [0x0100_1008, 0x0100_1049, 0x0100_1085]);
        assert_eq!(raw(&intel(0x8f)), [0x0100_1012, 0x0100_1013, 0x0100_1011]);
        assert!(raw(&intel(0x01)).is_empty());
        let amd = processor("vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 1\n");
        assert_eq!(raw(&amd), [0xf045, 0x0785]);
        let arm = processor("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd4f\n");
        assert_eq!(arm.events().len(), 2);
        assert!(processor("").events().is_empty());
    }
}
