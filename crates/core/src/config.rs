//! Parameters of the core, as `[core]` of a machine file gives them.

use contigua_units::Cycles;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Parameters of the core. The additive model uses the issue width only.
///
/// Sources of the presets' values are in the machine files; `docs/design/core.md` explains them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CoreConfig {
    /// Instructions that issue in a cycle when nothing stalls. The window model: instructions that
    /// enter the window in a cycle.
    pub issue_width: u32,
    /// Instructions that retire in a cycle.
    pub retire_width: u32,
    /// Instructions between dispatch and retirement: entries of the reorder buffer.
    pub window: u32,
    /// Loads between dispatch and retirement.
    pub load_buffer: u32,
    /// Stores between dispatch and the end of their cache access, which follows retirement.
    pub store_buffer: u32,
    /// Lines that the L1 data cache waits for at a time: line-fill buffers.
    pub miss_registers: u32,
    /// Page walks at a time.
    pub page_walkers: u32,
    /// Instructions that the front end may be ahead of dispatch: entries of the decode queue.
    pub fetch_queue: u32,
    /// From the completion of a mispredicted branch to the dispatch of the instruction after it.
    pub mispredict_penalty_cycles: Cycles,
    /// Execution units.
    pub ports: PortsConfig,
    /// Times from issue to result.
    pub latency_cycles: LatencyConfig,
    /// Times between two operations that a divider starts.
    pub divide_interval_cycles: DivideConfig,
    /// Sizes of the branch predictor.
    pub branch_predictor: PredictorConfig,
}

/// Parameters of [`Window`](crate::Window): those of the core.
pub type WindowConfig = CoreConfig;

/// How many operations of a kind start in a cycle. There is one divider of each kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PortsConfig {
    /// Simple integer operations, and what cores execute from microcode.
    pub integer: u32,
    /// Integer multiplications.
    pub multiply: u32,
    /// Floating-point operations but divisions.
    pub float: u32,
    /// Vector operations on integers.
    pub vector: u32,
    /// Loads.
    pub load: u32,
    /// Stores.
    pub store: u32,
    /// Branches.
    pub branch: u32,
}

/// Cycles from issue to result, by kind of operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LatencyConfig {
    /// Simple integer operations, and branches.
    pub integer: u32,
    /// Integer multiplication.
    pub multiply: u32,
    /// Integer division.
    pub divide: u32,
    /// Floating-point addition.
    pub float_add: u32,
    /// Floating-point multiplication.
    pub float_multiply: u32,
    /// Floating-point division and square root.
    pub float_divide: u32,
    /// Conversion, comparison and other floating-point operations.
    pub float_other: u32,
    /// Simple vector operations.
    pub vector: u32,
    /// Vector integer multiplication.
    pub vector_multiply: u32,
    /// A load that hits in the L1 data cache, to its use.
    pub load: u32,
    /// A load that takes its data from the store buffer, to its use.
    pub store_forward: u32,
    /// The operation of a locked read-modify-write, beyond its load.
    pub atomic: u32,
    /// Fences, `cpuid`.
    pub serializing: u32,
    /// What cores execute from microcode.
    pub other: u32,
}

/// Cycles between two operations that a divider starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DivideConfig {
    /// Integer division.
    pub integer: u32,
    /// Floating-point division and square root.
    pub float: u32,
}

/// Sizes of the branch predictor's tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PredictorConfig {
    /// Counters in each of the three tables that predict directions: a power of two.
    pub direction_entries: u32,
    /// Conditional branches whose directions select a counter.
    pub history_bits: u32,
    /// Targets of indirect branches: a power of two.
    pub target_entries: u32,
    /// Return addresses: a power of two.
    pub return_stack: u32,
}

impl CoreConfig {
    /// Checks what [`Window`](crate::Window) relies on.
    ///
    /// # Errors
    /// The first value that is out of range.
    pub fn validate(&self) -> Result<(), Error> {
        const WIDEST: u32 = 64;
        const LARGEST: u32 = 1 << 16;
        const LONGEST: u32 = 10_000;
        if !(1..=WIDEST).contains(&self.issue_width) {
            return Err(Error::IssueWidth(self.issue_width));
        }
        let ports = &self.ports;
        let latency = &self.latency_cycles;
        let predictor = &self.branch_predictor;
        let ranges = [
            ("retire_width", self.retire_width, WIDEST),
            ("window", self.window, LARGEST),
            ("load_buffer", self.load_buffer, LARGEST),
            ("store_buffer", self.store_buffer, LARGEST),
            ("miss_registers", self.miss_registers, LARGEST),
            ("page_walkers", self.page_walkers, LARGEST),
            ("fetch_queue", self.fetch_queue, LARGEST),
            ("ports.integer", ports.integer, WIDEST),
            ("ports.multiply", ports.multiply, WIDEST),
            ("ports.float", ports.float, WIDEST),
            ("ports.vector", ports.vector, WIDEST),
            ("ports.load", ports.load, WIDEST),
            ("ports.store", ports.store, WIDEST),
            ("ports.branch", ports.branch, WIDEST),
            ("latency_cycles.integer", latency.integer, LONGEST),
            ("latency_cycles.multiply", latency.multiply, LONGEST),
            ("latency_cycles.divide", latency.divide, LONGEST),
            ("latency_cycles.float_add", latency.float_add, LONGEST),
            (
                "latency_cycles.float_multiply",
                latency.float_multiply,
                LONGEST,
            ),
            ("latency_cycles.float_divide", latency.float_divide, LONGEST),
            ("latency_cycles.float_other", latency.float_other, LONGEST),
            ("latency_cycles.vector", latency.vector, LONGEST),
            (
                "latency_cycles.vector_multiply",
                latency.vector_multiply,
                LONGEST,
            ),
            ("latency_cycles.load", latency.load, LONGEST),
            (
                "latency_cycles.store_forward",
                latency.store_forward,
                LONGEST,
            ),
            ("latency_cycles.atomic", latency.atomic, LONGEST),
            ("latency_cycles.serializing", latency.serializing, LONGEST),
            ("latency_cycles.other", latency.other, LONGEST),
            (
                "divide_interval_cycles.integer",
                self.divide_interval_cycles.integer,
                LONGEST,
            ),
            (
                "divide_interval_cycles.float",
                self.divide_interval_cycles.float,
                LONGEST,
            ),
            ("branch_predictor.history_bits", predictor.history_bits, 32),
        ];
        for (key, value, most) in ranges {
            if !(1..=most).contains(&value) {
                return Err(Error::Range { key, value, most });
            }
        }
        let powers = [
            (
                "branch_predictor.direction_entries",
                predictor.direction_entries,
            ),
            ("branch_predictor.target_entries", predictor.target_entries),
            ("branch_predictor.return_stack", predictor.return_stack),
        ];
        for (key, value) in powers {
            if !value.is_power_of_two() || value > 1 << 20 {
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
