//! Parameters of the core, as `[core]` of a machine file gives them.

use std::collections::HashSet;

use contigua_units::Cycles;
use contigua_units::ranges::Validate;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Parameters of the core. The additive model uses the issue width only.
///
/// Sources of the presets' values are in the machine files; `docs/design/core.md` explains them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoreConfig {
    /// Instructions that issue in a cycle when nothing stalls. The window model: instructions that
    /// enter the window in a cycle.
    #[schemars(range(min = 1, max = 64))]
    pub issue_width: u32,
    /// Instructions that retire in a cycle.
    #[schemars(range(min = 1, max = 64))]
    pub retire_width: u32,
    /// Instructions between dispatch and retirement: entries of the reorder buffer.
    #[schemars(range(min = 1, max = 65_536))]
    pub window: u32,
    /// Instructions between dispatch and retirement whose results are in general registers: the register
    /// file without the registers that programs see. Default: as many as `window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub general_registers: Option<u32>,
    /// Instructions between dispatch and retirement whose results are in vector registers, as
    /// `general_registers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub vector_registers: Option<u32>,
    /// Loads between dispatch and retirement.
    #[schemars(range(min = 1, max = 65_536))]
    pub load_buffer: u32,
    /// Stores between dispatch and the end of their cache access, which follows retirement.
    #[schemars(range(min = 1, max = 65_536))]
    pub store_buffer: u32,
    /// Lines that the L1 data cache waits for at a time: line-fill buffers.
    #[schemars(range(min = 1, max = 65_536))]
    #[doc(alias = "MSHR")]
    pub miss_registers: u32,
    /// Cycles between two lines that reach the L1 data cache. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10_000))]
    pub fill_cycles: u32,
    /// True if copies of whole registers are made by renaming: they need no port and take no time.
    /// Default: no.
    #[serde(default)]
    pub eliminates_copies: bool,
    /// Page walks at a time.
    #[schemars(range(min = 1, max = 65_536))]
    pub page_walkers: u32,
    /// Cycles from the end of a walk to the start of one that waited for its walker. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10_000))]
    pub page_walk_replay_cycles: u32,
    /// Instructions that the front end may be ahead of dispatch: entries of the decode queue.
    #[schemars(range(min = 1, max = 65_536))]
    pub fetch_queue: u32,
    /// Cycles from the fetch of a taken branch to that of its target. Default: 1, as for small loops (Agner Fog, "The
    /// microarchitecture of Intel, AMD and VIA CPUs"; elsewhere one in two cycles on Intel's cores).
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10_000))]
    pub taken_branch_cycles: u32,
    /// Cycles of taken calls and returns. Default: as `taken_branch_cycles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub call_cycles: Option<u32>,
    /// Additional cycles of an indirect jump or call if its target's address differs in bit 37 or a
    /// higher one. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub far_branch_cycles: Option<u32>,
    /// Bytes of code that a cycle can fetch, aligned: a power of two. A taken branch ends the cycle. Default: all up to
    /// the next taken branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub fetch_bytes: Option<u32>,
    /// From the completion of a mispredicted branch to the dispatch of the instruction after it.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub mispredict_penalty_cycles: Cycles,
    /// Execution units.
    pub ports: PortsConfig,
    /// Places of a cycle's dispatch that instructions take.
    #[serde(default)]
    pub slots: SlotsConfig,
    /// Times from issue to result.
    pub latency_cycles: LatencyConfig,
    /// Times between two operations that a divider starts.
    pub divide_interval_cycles: DivideConfig,
    /// Sizes of the branch predictor.
    pub branch_predictor: PredictorConfig,
}

/// Parameters of [`Window`](crate::Window): those of the core.
pub type WindowConfig = CoreConfig;

/// Ports that execute operations of a kind. A port starts one operation a cycle, of whatever kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum Ports {
    /// Their numbers.
    Numbers(#[schemars(inner(range(max = 15)))] Vec<u8>),
    /// So many that no other kind uses: what machine files had before ports had numbers.
    Own(#[schemars(range(min = 1, max = 16))] u32),
}

/// Ports by kind of operation. There is one divider of each kind, beside them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortsConfig {
    /// Simple integer operations, and what cores execute from microcode.
    pub integer: Ports,
    /// Shifts, rotations and tests of one bit. Default: as `integer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shift: Option<Ports>,
    /// Operations that depend on flags: `setcc`, `cmovcc`, `adc`, `sbb`. Default: as `integer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<Ports>,
    /// Integer multiplications.
    pub multiply: Ports,
    /// Floating-point multiplications; all floating-point operations but divisions if there is no
    /// `float_add`.
    pub float: Ports,
    /// Floating-point operations but multiplications and divisions. Default: as `float`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float_add: Option<Ports>,
    /// Vector operations on integers.
    pub vector: Ports,
    /// From vector to general registers or flags, or back, conversions between their numbers included.
    /// Default: as `vector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Ports>,
    /// Loads.
    pub load: Ports,
    /// Stores.
    pub store: Ports,
    /// Branches.
    pub branch: Ports,
}

/// Ports of a core, at most: those of execution and those of memory each.
pub(crate) const PORTS: usize = 16;
/// Kinds of operations that share ports, at most.
pub(crate) const KINDS: usize = 9;

impl Ports {
    /// Number of ports.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self {
            Self::Numbers(numbers) => numbers.len() as u32,
            Self::Own(count) => *count,
        }
    }

    fn validate(&self, key: &'static str) -> Result<(), Error> {
        let is_right = match self {
            Self::Own(count) => (1..=PORTS as u32).contains(count),
            Self::Numbers(numbers) => {
                let is_known = |&number: &u8| usize::from(number) < PORTS;
                let differ = numbers.iter().collect::<HashSet<_>>().len() == numbers.len();
                !numbers.is_empty() && numbers.iter().all(is_known) && differ
            }
        };
        if is_right {
            Ok(())
        } else {
            let value = match self {
                Self::Numbers(numbers) => format!("{numbers:?}"),
                Self::Own(count) => count.to_string(),
            };
            Err(Error::Ports { key, value })
        }
    }
}

impl PortsConfig {
    /// Those of execution: integer, multiply, float, vector, branch, shift, select, `float_add`, transfer.
    /// `None`: a kind that has no ports of its own.
    pub(crate) fn execution(&self) -> [Option<&Ports>; KINDS] {
        [
            Some(&self.integer),
            Some(&self.multiply),
            Some(&self.float),
            Some(&self.vector),
            Some(&self.branch),
            self.shift.as_ref(),
            self.select.as_ref(),
            self.float_add.as_ref(),
            self.transfer.as_ref(),
        ]
    }

    /// The ports of execution of each kind as bits, in the order of [`execution`](Self::execution).
    pub(crate) fn execution_masks(&self) -> Option<Vec<u16>> {
        // The kind whose ports one uses that has none of its own.
        const INSTEAD: [usize; KINDS] = [0, 1, 2, 3, 4, 0, 0, 2, 3];
        let mut masks = masks(&self.execution())?;
        for (kind, instead) in INSTEAD.into_iter().enumerate() {
            if masks[kind] == 0 {
                masks[kind] = masks[instead];
            }
        }
        Some(masks)
    }

    /// Those of memory: load, store.
    pub(crate) fn memory(&self) -> [Option<&Ports>; 2] {
        [Some(&self.load), Some(&self.store)]
    }

    fn validate(&self) -> Result<(), Error> {
        self.integer.validate("ports.integer")?;
        self.multiply.validate("ports.multiply")?;
        self.float.validate("ports.float")?;
        self.vector.validate("ports.vector")?;
        self.load.validate("ports.load")?;
        self.store.validate("ports.store")?;
        self.branch.validate("ports.branch")?;
        let more = [
            ("ports.shift", &self.shift),
            ("ports.select", &self.select),
            ("ports.float_add", &self.float_add),
            ("ports.transfer", &self.transfer),
        ];
        for (key, ports) in more {
            ports.as_ref().map_or(Ok(()), |ports| ports.validate(key))?;
        }
        masks(&self.execution()).ok_or(Error::ManyPorts)?;
        masks(&self.memory()).ok_or(Error::ManyPorts)?;
        Ok(())
    }
}

/// The ports of each kind as bits; `None` if there are more than [`PORTS`].
///
/// An operation takes the first that is free, so that ports come first which few kinds use; those
/// with small numbers come first among equals.
pub(crate) fn masks(kinds: &[Option<&Ports>]) -> Option<Vec<u16>> {
    // By number, and behind these those that one kind has to itself: the kinds that use it.
    let mut ports: Vec<Vec<usize>> = vec![Vec::new(); PORTS];
    for (kind, of_kind) in kinds.iter().enumerate() {
        match of_kind {
            Some(Ports::Numbers(numbers)) => {
                for &number in numbers {
                    ports[usize::from(number)].push(kind);
                }
            }
            Some(Ports::Own(count)) => ports.extend((0..*count).map(|_| vec![kind])),
            None => {}
        }
    }
    ports.retain(|users| !users.is_empty());
    ports.sort_by_key(Vec::len);
    if ports.len() > PORTS {
        return None;
    }
    let mut masks = vec![0; kinds.len()];
    for (place, users) in ports.iter().enumerate() {
        for &kind in users {
            masks[kind] |= 1 << place;
        }
    }
    Some(masks)
}

/// Cycles from issue to result, by kind of operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatencyConfig {
    /// Simple integer operations, and branches.
    #[schemars(range(min = 1, max = 10_000))]
    pub integer: u32,
    /// Integer multiplication.
    #[schemars(range(min = 1, max = 10_000))]
    pub multiply: u32,
    /// Integer division.
    #[schemars(range(min = 1, max = 10_000))]
    pub divide: u32,
    /// Integer division of 128 bits by 64. Default: as `divide`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub divide_64: Option<u32>,
    /// Floating-point addition.
    #[schemars(range(min = 1, max = 10_000))]
    pub float_add: u32,
    /// Floating-point multiplication.
    #[schemars(range(min = 1, max = 10_000))]
    pub float_multiply: u32,
    /// Floating-point division and square root.
    #[schemars(range(min = 1, max = 10_000))]
    pub float_divide: u32,
    /// Conversion of precision, comparison and other floating-point operations.
    #[schemars(range(min = 1, max = 10_000))]
    pub float_other: u32,
    /// Conversion between general registers and floating-point numbers. Default: as `float_other`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub convert: Option<u32>,
    /// Simple vector operations.
    #[schemars(range(min = 1, max = 10_000))]
    pub vector: u32,
    /// Vector integer multiplication.
    #[schemars(range(min = 1, max = 10_000))]
    pub vector_multiply: u32,
    /// From vector to general registers or flags, or back. Default: as `vector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub transfer: Option<u32>,
    /// A load that hits in the L1 data cache, to its use.
    #[schemars(range(min = 1, max = 10_000))]
    pub load: u32,
    /// A load that takes its data from the store buffer, to its use.
    #[schemars(range(min = 1, max = 10_000))]
    pub store_forward: u32,
    /// The operation of a locked read-modify-write, beyond its load.
    #[schemars(range(min = 1, max = 10_000))]
    pub atomic: u32,
    /// Fences, `cpuid`.
    #[schemars(range(min = 1, max = 10_000))]
    pub serializing: u32,
    /// Microcoded operations.
    #[schemars(range(min = 1, max = 10_000))]
    pub other: u32,
    /// The beginning of a repeated `movs` or `stos`, in which nothing else is delivered. Default: 35.
    #[serde(default = "fast_string")]
    #[schemars(range(min = 1, max = 10_000))]
    pub fast_string: u32,
}

const fn one() -> u32 {
    1
}

/// An assumption: no value for Intel's cores was found. (AMD's Athlon 64: 14 for `stos`, 15 for
/// `movs`; Software Optimization Guide 25112, revision 3.06, table 6.)
const fn fast_string() -> u32 {
    35
}

/// Slots of the `issue_width` that an instruction takes when it dispatches: micro-operations, fused
/// ones as one. All others count as one. Default: 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SlotsConfig {
    /// Conversion between general registers and floating-point numbers.
    #[schemars(range(min = 1, max = 4))]
    pub convert: u32,
    /// An operation whose operand and result are the same place in memory.
    #[schemars(range(min = 1, max = 4))]
    pub read_modify_write: u32,
    /// A call.
    #[schemars(range(min = 1, max = 4))]
    pub call: u32,
    /// A shift or rotation by `cl`.
    #[schemars(range(min = 1, max = 4))]
    pub variable_shift: u32,
    /// Integer division, which takes as many places in the window, too.
    #[schemars(range(min = 1, max = 64))]
    pub divide: u32,
    /// Integer division of 128 bits by 64. Default: as `divide`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub divide_64: Option<u32>,
}

impl Default for SlotsConfig {
    fn default() -> Self {
        Self {
            convert: 1,
            read_modify_write: 1,
            call: 1,
            variable_shift: 1,
            divide: 1,
            divide_64: None,
        }
    }
}

/// Cycles between two operations that a divider starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DivideConfig {
    /// Integer division.
    #[schemars(range(min = 1, max = 10_000))]
    pub integer: u32,
    /// Integer division of 128 bits by 64. Default: as `integer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub integer_64: Option<u32>,
    /// Floating-point division and square root.
    #[schemars(range(min = 1, max = 10_000))]
    pub float: u32,
}

/// Sizes of the branch predictor's tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictorConfig {
    /// Counters in each of the three tables that predict directions: a power of two.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub direction_entries: u32,
    /// Conditional branches whose directions select a counter.
    #[schemars(range(min = 1, max = 32))]
    pub history_bits: u32,
    /// Targets of indirect branches: a power of two.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub target_entries: u32,
    /// Return addresses: a power of two.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub return_stack: u32,
}

impl CoreConfig {
    /// Checks what [`Window`](crate::Window) relies on.
    ///
    /// # Errors
    /// The first value that is out of range, or does not fit the others.
    pub fn validate(&self) -> Result<(), Error> {
        Validate::validate(self)?;
        self.ports.validate()?;
        let predictor = &self.branch_predictor;
        let powers = [
            (
                "branch_predictor.direction_entries",
                predictor.direction_entries,
            ),
            ("branch_predictor.target_entries", predictor.target_entries),
            ("branch_predictor.return_stack", predictor.return_stack),
            ("fetch_bytes", self.fetch_bytes.unwrap_or(1)),
        ];
        for (key, value) in powers {
            if !value.is_power_of_two() {
                return Err(Error::PowerOfTwo { key, value });
            }
        }
        Ok(())
    }
}

/// `[core]` of a preset.
#[cfg(test)]
pub(crate) fn skylake() -> CoreConfig {
    #[derive(Deserialize)]
    struct Machine {
        core: CoreConfig,
    }
    let machine = include_str!("../../../python/contigua/data/machines/skylake.toml");
    let machine: Machine = toml::from_str(machine).expect("a preset is well formed");
    machine.core
}
