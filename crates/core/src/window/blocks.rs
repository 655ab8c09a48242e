//! Blocks of code in the form that the window executes.

use contigua_program::decode::{Instruction, OperationClass as Class, RegisterSet};
use contigua_units::VirtAddr;

use crate::WindowConfig;
use crate::config::{LatencyConfig, SlotsConfig};

/// Units that execute operations, as indices.
pub(super) mod unit {
    // Ports of execution, in the order of `PortsConfig::execution`.
    pub(crate) const INTEGER: u8 = 0;
    pub(crate) const MULTIPLY: u8 = 1;
    pub(crate) const FLOAT: u8 = 2;
    pub(crate) const VECTOR: u8 = 3;
    pub(crate) const BRANCH: u8 = 4;
    pub(crate) const SHIFT: u8 = 5;
    pub(crate) const SELECT: u8 = 6;
    pub(crate) const FLOAT_ADD: u8 = 7;
    pub(crate) const TRANSFER: u8 = 8;
    /// The first of the dividers.
    pub(crate) const DIVIDE: u8 = 9;
    pub(crate) const FLOAT_DIVIDE: u8 = 10;
    pub(crate) const DIVIDE_64: u8 = 11;
    /// Needs none.
    pub(crate) const NONE: u8 = 12;

    // Ports of memory, in the order of `PortsConfig::memory`.
    pub(crate) const LOAD: usize = 0;
    pub(crate) const STORE: usize = 1;
}

/// A register that is always ready, for places of a list that are not used.
const ALWAYS_READY: u8 = 63;
/// A register that nobody reads.
const NEVER_READ: u8 = 62;
const STACK_POINTER: RegisterSet = RegisterSet::general(4);

/// An instruction, as the window needs it, in half a cache line. Whole words only: fields that are
/// copied in another width than they are read make the host wait.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
pub(super) struct Operation {
    /// Registers beyond those that the lists have room for.
    more_sources: u64,
    more_results: u64,
    sources: Registers,
    addresses: Registers,
    results: Registers,
    /// Bits 0 to 15: the latency. Bits 16 to 19: the unit. Bit 20: loads. Bit 21: stores. Bit 22:
    /// drains the window. Bit 23: is a repeated `movs` or `stos`. Bit 24: needs a general register for its
    /// result. Bit 25: a vector register. Bits 26 and 27: the places that it takes when it dispatches, but one. Bit
    /// 28: an integer division.
    traits: u32,
}

/// Four registers, a byte each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
struct Registers(u32);

impl Registers {
    const fn new(numbers: [u8; 4]) -> Self {
        Self(u32::from_le_bytes(numbers))
    }

    #[inline]
    fn number(self, place: u32) -> usize {
        (self.0 >> (8 * place)) as usize % 64
    }

    /// When the last of them is ready.
    #[inline]
    fn ready(self, ready: &[u64; 64]) -> u64 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|place| ready[self.number(place)]);
        a.max(b).max(c.max(d))
    }
}

/// When the last register of a set is ready, if that is after `time`.
#[inline]
fn last_ready(mut set: u64, mut time: u64, ready: &[u64; 64]) -> u64 {
    while set != 0 {
        time = time.max(ready[set.trailing_zeros() as usize]);
        set &= set - 1;
    }
    time
}

impl Operation {
    const UNIT_SHIFT: u32 = 16;
    const LOADS: u32 = 1 << 20;
    const STORES: u32 = 1 << 21;
    const DRAINS: u32 = 1 << 22;
    const FAST_STRING: u32 = 1 << 23;
    const GENERAL_SHIFT: u32 = 24;
    const VECTOR_SHIFT: u32 = 25;
    const SLOTS_SHIFT: u32 = 26;
    const DIVIDES: u32 = 1 << 28;

    /// An access that belongs to no block.
    pub(super) const DETACHED: Self = Self {
        more_sources: 0,
        more_results: 0,
        sources: Registers::new([ALWAYS_READY; 4]),
        addresses: Registers::new([ALWAYS_READY; 4]),
        results: Registers::new([NEVER_READ; 4]),
        traits: (unit::NONE as u32) << Self::UNIT_SHIFT,
    };

    #[inline]
    pub(super) fn loads(&self) -> bool {
        self.traits & Self::LOADS != 0
    }

    #[inline]
    pub(super) fn stores(&self) -> bool {
        self.traits & Self::STORES != 0
    }

    #[inline]
    pub(super) fn drains(&self) -> bool {
        self.traits & Self::DRAINS != 0
    }

    /// Returns true if it drains the window, or is an integer division: both rare, so that one test
    /// passes over both.
    #[inline]
    pub(super) fn is_rare(&self) -> bool {
        self.traits & (Self::DRAINS | Self::DIVIDES) != 0
    }

    #[inline]
    pub(super) fn is_fast_string(&self) -> bool {
        self.traits & Self::FAST_STRING != 0
    }

    /// Number of general and vector registers for its results, of each 0 or 1.
    #[inline]
    pub(super) fn registers(&self) -> (u64, u64) {
        let bit = |shift: u32| u64::from(self.traits >> shift & 1);
        (bit(Self::GENERAL_SHIFT), bit(Self::VECTOR_SHIFT))
    }

    /// The places of a cycle's dispatch that it takes, 1 to 4.
    #[inline]
    pub(super) fn slots(&self) -> u32 {
        (self.traits >> Self::SLOTS_SHIFT & 3) + 1
    }

    /// Executing unit, of [`unit`].
    #[inline]
    pub(super) fn unit(&self) -> usize {
        (self.traits >> Self::UNIT_SHIFT & 15) as usize
    }

    fn execute_on(&mut self, unit: u8) {
        self.traits &= !(15 << Self::UNIT_SHIFT);
        self.traits |= u32::from(unit) << Self::UNIT_SHIFT;
    }

    #[inline]
    pub(super) fn latency(&self) -> u64 {
        u64::from(self.traits & 0xffff)
    }

    /// When all its operands are ready.
    #[inline]
    pub(super) fn sources(&self, ready: &[u64; 64]) -> u64 {
        last_ready(self.more_sources, self.sources.ready(ready), ready)
    }

    /// When the addresses of its memory operands are known.
    #[inline]
    pub(super) fn addresses(&self, ready: &[u64; 64]) -> u64 {
        self.addresses.ready(ready)
    }

    /// Its results are ready at `time`.
    #[inline]
    pub(super) fn write(&self, ready: &mut [u64; 64], time: u64) {
        for place in 0..3 {
            ready[self.results.number(place)] = time;
        }
        let mut more = self.more_results;
        while more != 0 {
            ready[more.trailing_zeros() as usize] = time;
            more &= more - 1;
        }
    }

    fn new(instruction: &Instruction, costs: &Costs) -> Self {
        let (unit, latency) = if *instruction == Instruction::UNKNOWN {
            (unit::NONE, 1)
        } else if instruction.copies && costs.eliminates_copies {
            (unit::NONE, 0)
        } else {
            executed_by(instruction.class, &costs.latencies)
        };
        let slots = costs.slots(instruction);
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let drains = matches!(
            instruction.class,
            Class::Atomic | Class::Syscall | Class::Serializing
        );
        let (sources, more_sources) = list(instruction.reads.0, 4, ALWAYS_READY);
        // Wider than any instruction of x86-64: base, index and segment.
        let (addresses, _) = list(instruction.addresses.0, 4, ALWAYS_READY);
        let results = results(instruction);
        let needs = |has: bool| has && !instruction.copies;
        let general = needs(results.has_general());
        let vector = needs(results.has_vectors());
        let (results, more_results) = list(results.0, 3, NEVER_READ);
        Self {
            more_sources,
            more_results,
            sources,
            addresses,
            results,
            traits: latency
                | u32::from(unit) << Self::UNIT_SHIFT
                | flag(instruction.loads > 0, Self::LOADS)
                | flag(instruction.stores > 0, Self::STORES)
                | flag(drains, Self::DRAINS)
                | flag(instruction.class == Class::FastString, Self::FAST_STRING)
                | u32::from(general) << Self::GENERAL_SHIFT
                | u32::from(vector) << Self::VECTOR_SHIFT
                | (slots - 1) << Self::SLOTS_SHIFT
                | flag(
                    matches!(unit, unit::DIVIDE | unit::DIVIDE_64),
                    Self::DIVIDES,
                ),
        }
    }
}

/// The registers that have to be waited for after `instruction`.
///
/// `push`, `pop`, calls and returns move the stack pointer by a constant, which the front end adds
/// up (Intel's optimization manual, "Stack Pointer Tracker"): nobody waits for that.
fn results(instruction: &Instruction) -> RegisterSet {
    let on_stack = matches!(
        instruction.class,
        Class::Load | Class::Store | Class::Call | Class::CallIndirect | Class::Return
    );
    if on_stack && instruction.addresses.intersects(STACK_POINTER) {
        RegisterSet(instruction.writes.0 & !STACK_POINTER.0)
    } else {
        instruction.writes
    }
}

/// The first registers of a set as a list of `length` that is filled up, and the others.
fn list(mut set: u64, length: usize, filler: u8) -> (Registers, u64) {
    let mut registers = [filler; 4];
    for place in &mut registers[..length] {
        if set != 0 {
            *place = set.trailing_zeros() as u8;
            set &= set - 1;
        }
    }
    (Registers::new(registers), set)
}

/// Unit and latency. Loads and stores have none beyond those of their accesses.
fn executed_by(class: Class, latencies: &LatencyConfig) -> (u8, u32) {
    match class {
        Class::Nop | Class::Syscall => (unit::NONE, 1),
        Class::Load | Class::Store => (unit::NONE, 0),
        Class::IntegerSimple => (unit::INTEGER, latencies.integer),
        Class::IntegerShift | Class::IntegerShiftVariable => (unit::SHIFT, latencies.integer),
        Class::IntegerSelect => (unit::SELECT, latencies.integer),
        Class::IntegerMultiply => (unit::MULTIPLY, latencies.multiply),
        Class::IntegerDivide => (unit::DIVIDE, latencies.divide),
        Class::IntegerDivide64 => (
            unit::DIVIDE_64,
            latencies.divide_64.unwrap_or(latencies.divide),
        ),
        Class::FloatAdd => (unit::FLOAT_ADD, latencies.float_add),
        Class::FloatMultiply => (unit::FLOAT, latencies.float_multiply),
        Class::FloatDivide => (unit::FLOAT_DIVIDE, latencies.float_divide),
        Class::FloatOther => (unit::FLOAT_ADD, latencies.float_other),
        Class::FloatConvert => (
            unit::TRANSFER,
            latencies.convert.unwrap_or(latencies.float_other),
        ),
        Class::VectorSimple => (unit::VECTOR, latencies.vector),
        Class::VectorMultiply => (unit::VECTOR, latencies.vector_multiply),
        Class::VectorTransfer => (
            unit::TRANSFER,
            latencies.transfer.unwrap_or(latencies.vector),
        ),
        Class::Atomic => (unit::NONE, latencies.atomic),
        Class::BranchConditional
        | Class::Jump
        | Class::JumpIndirect
        | Class::Call
        | Class::CallIndirect
        | Class::Return => (unit::BRANCH, latencies.integer),
        Class::Serializing => (unit::NONE, latencies.serializing),
        Class::FastString | Class::Other => (unit::INTEGER, latencies.other),
    }
}

/// Costs of instructions that do not depend on those in flight.
#[derive(Clone, Debug)]
struct Costs {
    latencies: LatencyConfig,
    slots: SlotsConfig,
    eliminates_copies: bool,
    issue_width: u32,
}

impl Costs {
    /// The places of a cycle's dispatch that an instruction takes.
    fn slots(&self, instruction: &Instruction) -> u32 {
        let wanted = match instruction.class {
            Class::FloatConvert => self.slots.convert,
            Class::Call | Class::CallIndirect => self.slots.call,
            Class::IntegerShiftVariable => self.slots.variable_shift,
            Class::IntegerSimple | Class::IntegerShift | Class::IntegerSelect
                if instruction.loads > 0 && instruction.stores > 0 =>
            {
                self.slots.read_modify_write
            }
            _ => 1,
        };
        wanted.min(self.issue_width)
    }
}

/// Exit of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub enum Exit {
    /// Not by a branch, or by a jump to a fixed place: there is nothing to predict.
    #[default]
    Known,
    /// By a conditional branch.
    Conditional,
    /// By a call of a fixed place.
    Call,
    /// By a jump to a place in a register or in memory.
    Indirect,
    /// By such a call.
    IndirectCall,
    /// By a return.
    Return,
}

impl Exit {
    #[inline]
    pub(super) fn is_call_or_return(self) -> bool {
        matches!(self, Self::Call | Self::IndirectCall | Self::Return)
    }

    #[inline]
    pub(super) fn is_indirect(self) -> bool {
        matches!(self, Self::Indirect | Self::IndirectCall)
    }

    /// That of a block whose last operation is of a class.
    #[must_use]
    pub fn of(class: Class) -> Self {
        match class {
            Class::BranchConditional => Self::Conditional,
            Class::Call => Self::Call,
            Class::JumpIndirect => Self::Indirect,
            Class::CallIndirect => Self::IndirectCall,
            Class::Return => Self::Return,
            _ => Self::Known,
        }
    }
}

/// Addresses of a block, and its operations.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
pub(super) struct Block {
    pub(super) start: u64,
    /// Address of what follows the block in memory.
    pub(super) end: u64,
    pub(super) first: u32,
    /// Number of executed operations: without a branch that is fused with the one before it.
    pub(super) count: u32,
    pub(super) exit: Exit,
}

/// Decoded code, shared by all cores of a server. Dense by block number.
#[derive(Clone, Debug, contigua_state::State)]
pub struct Blocks {
    #[state(skip)]
    costs: Costs,
    places: Vec<Option<Block>>,
    /// Of all blocks, back to back.
    pub(super) operations: Vec<Operation>,
}

impl Blocks {
    /// No blocks yet. Latencies and places are those of `config`.
    #[must_use]
    pub fn new(config: &WindowConfig) -> Self {
        Self {
            costs: Costs {
                latencies: config.latency_cycles.clone(),
                slots: config.slots.clone(),
                eliminates_copies: config.eliminates_copies,
                issue_width: config.issue_width,
            },
            places: Vec::new(),
            operations: Vec::new(),
        }
    }

    /// Learns what a block does, or what it does from now on.
    ///
    /// `lengths` are those of its instructions in bytes, `code` what they do. Instructions that
    /// `code` does not have count as [`Instruction::UNKNOWN`], which takes a cycle, needs no unit
    /// and depends on nothing.
    ///
    /// # Panics
    /// When all blocks together have more than 2³² instructions.
    pub fn learn(&mut self, block: usize, address: VirtAddr, lengths: &[u8], code: &[Instruction]) {
        let first = u32::try_from(self.operations.len()).expect("code of 2^32 instructions");
        let unknown = std::iter::repeat(&Instruction::UNKNOWN);
        let instructions = code.iter().chain(unknown).take(lengths.len());
        self.operations
            .extend(instructions.map(|instruction| Operation::new(instruction, &self.costs)));
        // The branch is executed with the comparison: nothing is left of it but its prediction.
        let is_fused = match code.get(lengths.len().wrapping_sub(2)..lengths.len()) {
            Some([before, last]) => before.fuses && last.class == Class::BranchConditional,
            _ => false,
        };
        if is_fused && let Some([before, _]) = self.operations.last_chunk_mut() {
            before.execute_on(unit::BRANCH);
        }
        let size: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        let last = lengths.len().checked_sub(1).and_then(|last| code.get(last));
        if self.places.len() <= block {
            self.places.resize(block + 1, None);
        }
        self.places[block] = Some(Block {
            start: address.get(),
            end: address.get().wrapping_add(size),
            first,
            count: lengths.len() as u32 - u32::from(is_fused),
            exit: last.map_or(Exit::Known, |last| Exit::of(last.class)),
        });
    }

    /// Exit of a block.
    ///
    /// # Panics
    /// When the block was not learned.
    #[must_use]
    pub fn exit(&self, block: usize) -> Exit {
        self.get(block).exit
    }

    /// Returns true if the block was learned.
    #[must_use]
    pub fn knows(&self, block: usize) -> bool {
        self.places.get(block).is_some_and(Option::is_some)
    }

    #[inline]
    pub(super) fn get(&self, block: usize) -> Block {
        self.places[block].expect("a block is learned before it is entered")
    }
}
