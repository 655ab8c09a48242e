//! Who causes TLB misses, walks, faults and cache misses: instruction, mapping and thread of each.
//!
//! Events off the fast paths are counted for the instruction that caused them. Names of functions and
//! lines come later, from the files that the mappings of code name.

mod locality;
mod mappings;
mod phases;
mod sites;
mod stacks;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufWriter, Write};
use std::ops::{AddAssign, Range};
use std::path::Path;

use contigua_output::Output;
use contigua_program::code::BlockCode;
use contigua_program::decode::OperationClass;
use contigua_program::syscall::Call;
use contigua_program::wire::{BlockId, Event, FileId, NAME_WORDS, ProcessId, ThreadId};
use contigua_units::Cycles;
use rustc_hash::FxBuildHasher;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Error;
use locality::{Locality, LocalityRow, MARKS};
use mappings::{Mapping, Mappings, UNKNOWN};
use phases::{Phases, PhasesOf};
use sites::{Site, Sites};
use stacks::{Exit, Node, ROOT, Stacks};

/// Version of the file's form.
pub const SCHEMA: u32 = 3;

/// Costs of one instruction, in one mapping, by one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Costs {
    /// Accesses that missed the first-level TLB.
    pub tlb_misses: u64,
    /// Those that were answered by a page walk.
    pub walks: u64,
    /// Cycles from the first-level miss to the translation, faults excluded.
    pub translation_cycles: u64,
    /// Page faults.
    pub faults: u64,
    /// Cycles of the kernel for them.
    pub fault_cycles: u64,
    /// Accesses that missed the first-level data cache.
    pub data_misses: u64,
    /// Cycles until their data came.
    pub data_cycles: u64,
}

impl AddAssign for Costs {
    fn add_assign(&mut self, other: Self) {
        self.tlb_misses += other.tlb_misses;
        self.walks += other.walks;
        self.translation_cycles += other.translation_cycles;
        self.faults += other.faults;
        self.fault_cycles += other.fault_cycles;
        self.data_misses += other.data_misses;
        self.data_cycles += other.data_cycles;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    instruction: u32,
    mapping: u32,
    thread: u32,
    stack: u32,
    site: u32,
}

/// An instruction of the program.
#[derive(Clone, Copy, Serialize, JsonSchema)]
struct Place {
    /// Its address in the run.
    address: u64,
    /// The mapping of its code.
    mapping: u32,
}

/// An access, as the loop knows it.
#[derive(Clone, Copy)]
pub(crate) struct Accessed {
    pub thread: ThreadId,
    pub block: BlockId,
    /// Index of the instruction in the block.
    pub instruction: usize,
    /// The program's address.
    pub address: u64,
}

/// Code of a block; empty where it has no instructions.
#[derive(Clone, Default)]
struct Known {
    /// Its instructions' places in the list.
    instructions: Range<u32>,
    start: u64,
    end: u64,
    exit: Exit,
}

/// A profile that is being made.
pub(crate) struct Attribution {
    mappings: Mappings,
    names: BTreeMap<FileId, Vec<u8>>,
    /// By process: the file that names the code that it generates.
    generated: BTreeMap<u32, FileId>,
    /// By thread.
    processes: Vec<u32>,
    blocks: Vec<Known>,
    stacks: Stacks,
    sites: Sites,
    /// By mapping and address: calls of allocators whose stacks are not known.
    callers: HashMap<(u32, u64), u32, FxBuildHasher>,
    /// Reuse distances, where they are asked for.
    locality: Option<Locality>,
    instructions: Vec<Place>,
    rows: HashMap<Key, Costs, FxBuildHasher>,
    phases: Phases,
    /// Instructions whose misses were counted.
    executed: u64,
    /// Costs of the fault of the access under way.
    fault: (u64, u64),
}

fn process_of(processes: &[u32], thread: ThreadId) -> u32 {
    processes.get(thread.0 as usize).copied().unwrap_or(0)
}

/// Instructions that accesses of no known block belong to.
const NO_INSTRUCTION: u32 = 0;

impl Attribution {
    /// A profile without locality.
    pub fn new() -> Self {
        let nowhere = Place {
            address: 0,
            mapping: UNKNOWN,
        };
        Self {
            mappings: Mappings::new(),
            names: BTreeMap::new(),
            generated: BTreeMap::new(),
            processes: Vec::new(),
            blocks: Vec::new(),
            stacks: Stacks::new(),
            sites: Sites::new(),
            callers: HashMap::default(),
            locality: None,
            instructions: vec![nowhere],
            rows: HashMap::default(),
            phases: Phases::new(),
            executed: 0,
            fault: (0, 0),
        }
    }

    /// Reuse distances are counted, too, of accesses of this many cores.
    pub fn with_locality(self, cores: usize) -> Self {
        Self {
            locality: Some(Locality::new(cores)),
            ..self
        }
    }

    /// Counters begin anew; what is mapped stays known.
    pub fn reset(&mut self) {
        self.rows.clear();
        self.phases = Phases::new();
        self.executed = 0;
        self.fault = (0, 0);
        if let Some(locality) = &mut self.locality {
            locality.reset();
        }
    }

    fn process(&self, thread: ThreadId) -> u32 {
        process_of(&self.processes, thread)
    }

    /// A block that is met for the first time.
    pub fn learn(
        &mut self,
        id: BlockId,
        code: &BlockCode<'_>,
        ends_with: OperationClass,
        thread: Option<ThreadId>,
    ) {
        let index = id.0 as usize;
        if index >= self.blocks.len() {
            self.blocks.resize(index + index / 2 + 64, Known::default());
        }
        if !self.blocks[index].instructions.is_empty() {
            return;
        }
        let first = self.instructions.len() as u32;
        self.blocks[index] = Known {
            instructions: first..first + code.instructions(),
            start: code.address.get(),
            end: code.address.get().wrapping_add(code.size().into()),
            exit: match ends_with {
                OperationClass::Call | OperationClass::CallIndirect => Exit::Call,
                OperationClass::Return => Exit::Return,
                _ => Exit::Other,
            },
        };
        let mut address = code.address.get();
        let process = thread.map_or(0, |thread| self.process(thread));
        let mapping = self.mappings.find(process, address);
        for &length in code.lengths {
            self.instructions.push(Place { address, mapping });
            address = address.wrapping_add(length.into());
        }
    }

    /// A thread enters a block, whose misses are counted or not.
    #[inline]
    pub fn enter(&mut self, thread: ThreadId, block: BlockId, is_counted: bool) {
        if let Some(known) = self.blocks.get(block.0 as usize) {
            if is_counted {
                self.executed += known.instructions.len() as u64;
            }
            let last = known.instructions.end.wrapping_sub(1);
            self.stacks
                .enter(thread, known.start, known.exit, last, known.end);
        }
    }

    /// A thread reads or writes data, which is counted or not.
    #[inline]
    pub fn access(&mut self, core: usize, thread: ThreadId, address: u64, is_counted: bool) {
        if let Some(locality) = &mut self.locality {
            let process = process_of(&self.processes, thread);
            let find = || self.mappings.find(process, address);
            locality.access(core, process, address, is_counted, find);
        }
    }

    /// A thread went on without being told of: its stack is not known any more.
    pub fn forget_stack(&mut self, thread: ThreadId) {
        self.stacks.forget(thread);
    }

    fn instruction(&self, block: BlockId, index: usize) -> u32 {
        match self.blocks.get(block.0 as usize) {
            Some(of) if index < of.instructions.len() => of.instructions.start + index as u32,
            _ => NO_INSTRUCTION,
        }
    }

    fn add(&mut self, of: Accessed, costs: Costs) {
        let process = self.process(of.thread);
        let mapping = self.mappings.find(process, of.address);
        let instruction = self.instruction(of.block, of.instruction);
        let key = Key {
            instruction,
            mapping,
            thread: of.thread.0,
            stack: self.stacks.of(of.thread),
            site: self.sites.find(process, of.address),
        };
        *self.rows.entry(key).or_default() += costs;
        self.phases
            .add(self.executed, instruction, mapping, of.address, costs);
    }

    /// The access under way has made the kernel work.
    pub fn fault(&mut self, work: Cycles) {
        self.fault.0 += 1;
        self.fault.1 += work.get();
    }

    /// An access that missed the first-level TLB was translated.
    pub fn translated(&mut self, of: Accessed, latency: Cycles, walked: bool) {
        let (faults, fault_cycles) = std::mem::take(&mut self.fault);
        let costs = Costs {
            tlb_misses: 1,
            walks: walked.into(),
            translation_cycles: latency.get(),
            faults,
            fault_cycles,
            ..Costs::default()
        };
        self.add(of, costs);
    }

    /// An access that missed the first-level data cache has its data.
    pub fn loaded(&mut self, of: Accessed, latency: Cycles) {
        let costs = Costs {
            data_misses: 1,
            data_cycles: latency.get(),
            ..Costs::default()
        };
        self.add(of, costs);
    }

    /// Follows an event of a thread that executes `block`.
    pub fn event(&mut self, thread: ThreadId, event: &Event, call: Option<&Call>, block: BlockId) {
        match *event {
            Event::ThreadStart {
                process: ProcessId(process),
            } => {
                let index = thread.0 as usize;
                if index >= self.processes.len() {
                    self.processes.resize(index + 1, 0);
                }
                self.processes[index] = process;
            }
            Event::ProcessStart { .. } => self.stacks.forget(thread),
            Event::FileName { file, at, text } => self.name(file, at, &text),
            Event::FileMapped { file, range, .. } if range.is_empty() => {
                self.generated.insert(self.process(thread), file);
            }
            _ => {}
        }
        let by = self
            .last_instruction(block)
            .map(|instruction| (instruction, self.stacks.of(thread)));
        let process = self.process(thread);
        self.mappings.event(process, event, call, by);
        self.sites.event(process, event, call);
        if let Some(&Call::Allocate { range, caller }) = call {
            let by = self.caller(process, self.stacks.of(thread), caller.get());
            self.sites.put(process, range, by);
        }
        if let Some(locality) = &mut self.locality {
            locality.forget_mappings();
        }
    }

    /// The call of an allocator that returns to an address, and its stack, where that is known: `stack` is
    /// what the call has made.
    fn caller(&mut self, process: u32, stack: u32, returns_to: u64) -> (u32, u32) {
        /// Bytes of the longest call.
        const LONGEST: u64 = 7;
        let node = self.stacks.nodes()[stack as usize];
        let call = self.instructions[node.call as usize].address;
        if stack != ROOT && (1..=LONGEST).contains(&returns_to.wrapping_sub(call)) {
            return (node.call, node.parent);
        }
        // Within the call.
        let address = returns_to.wrapping_sub(1);
        let mapping = self.mappings.find(process, address);
        let next = self.instructions.len() as u32;
        let found = *self.callers.entry((mapping, address)).or_insert(next);
        if found == next {
            self.instructions.push(Place { address, mapping });
        }
        (found, ROOT)
    }

    /// The last instruction of a block, which makes system calls.
    fn last_instruction(&self, block: BlockId) -> Option<u32> {
        let of = &self.blocks.get(block.0 as usize)?.instructions;
        (!of.is_empty()).then(|| of.end - 1)
    }

    fn name(&mut self, file: FileId, at: u64, text: &[u64; NAME_WORDS]) {
        let name = self.names.entry(file).or_default();
        // Parts come in order; a process that was forked meanwhile may tell them again.
        if at == name.len() as u64 {
            let bytes = text.iter().flat_map(|word| word.to_le_bytes());
            name.extend(bytes.take_while(|&byte| byte != 0));
        }
    }

    /// The profile as a file has it: files by their place in a list, and instructions, of which only those
    /// are listed that something names.
    fn write(&self, out: impl Write, about: &About<'_>) -> serde_json::Result<()> {
        let files: BTreeMap<_, _> = self.names.keys().zip(0..).collect();
        let calls = self.stacks.nodes().iter().map(|node| node.call);
        let makers = self.mappings.all().iter().filter_map(|of| Some(of.by?.0));
        let causes = self.rows.keys().map(|key| key.instruction);
        let askers = self.sites.all().iter().map(|site| site.by.0);
        let named: BTreeSet<u32> = calls.chain(makers).chain(causes).chain(askers).collect();
        let places: HashMap<_, _, FxBuildHasher> = named.iter().zip(0..).collect();
        let rows = self.rows.iter().map(|(key, costs)| Row {
            instruction: places[&key.instruction],
            mapping: key.mapping,
            thread: key.thread,
            process: self.process(ThreadId(key.thread)),
            stack: key.stack,
            site: key.site,
            costs: *costs,
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable_by_key(|row| {
            (
                row.instruction,
                row.mapping,
                row.thread,
                row.stack,
                row.site,
            )
        });
        let mappings = self.mappings.all().iter().map(|mapping| MappingRow {
            mapping: Mapping {
                by: mapping.by.map(|(by, stack)| (places[&by], stack)),
                ..mapping.clone()
            },
            file: mapping.file.and_then(|file| files.get(&file).copied()),
        });
        let stacks = self.stacks.nodes().iter().map(|node| Node {
            call: places[&node.call],
            ..*node
        });
        let sites = self.sites.all().iter().map(|site| Site {
            by: (places[&site.by.0], site.by.1),
            ..*site
        });
        let generated = self.generated.iter();
        let whole = File {
            schema: SCHEMA,
            about,
            counted_instructions: self.executed,
            files: self
                .names
                .values()
                .map(|name| String::from_utf8_lossy(name))
                .collect(),
            generated: generated
                .filter_map(|(process, file)| Some((*process, *files.get(file)?)))
                .collect(),
            mappings: mappings.collect(),
            stacks: stacks.collect(),
            sites: sites.collect(),
            phases: self.phases.written(|instruction| places[&instruction]),
            locality: self.locality.as_ref().map(|locality| LocalityOf {
                entries: &MARKS,
                mappings: locality.rows(),
            }),
            instructions: named
                .iter()
                .map(|&at| self.instructions[at as usize])
                .collect(),
            rows,
        };
        serde_json::to_writer(out, &whole)
    }

    /// Writes the file, whole or not at all.
    pub fn save(&self, path: &Path, about: &About<'_>) -> Result<(), Error> {
        let fail = |source| Error::ProfileFile {
            path: path.to_owned(),
            source,
        };
        let output = Output::create(path).map_err(fail)?;
        let file = output.file().map_err(fail)?;
        let mut out = BufWriter::new(file);
        self.write(&mut out, about)
            .map_err(|error| fail(error.into()))?;
        out.flush().map_err(fail)?;
        drop(out);
        output.keep().map_err(fail)
    }
}

/// The run that a profile is of.
#[derive(Serialize, JsonSchema)]
pub(crate) struct About<'a> {
    /// Contigua's version.
    pub version: &'static str,
    /// Name of the design.
    pub design: &'a str,
    /// Name of the machine.
    pub machine: &'a str,
    /// The program and its arguments.
    pub command: &'a [String],
    /// Instructions of the region of interest.
    pub total_instructions: u64,
    /// Cycles of the run, where time is simulated: estimated where it is sampled.
    pub cycles: Option<u64>,
    /// Share of them that translation costs.
    pub translation_overhead: Option<f64>,
    /// Rows count sampled units only: they are shares, not sums.
    pub sampled: bool,
    /// Entries of the largest TLB that holds pages of 4 KB.
    pub tlb_entries: u32,
}

/// A profile as its file has it. What other lists name has its place in a list.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Attribution")]
pub(crate) struct File<'a> {
    /// Version of the file's form.
    schema: u32,
    #[serde(flatten)]
    about: &'a About<'a>,
    /// Instructions whose misses were counted.
    counted_instructions: u64,
    /// Paths of the files that were mapped.
    files: Vec<Cow<'a, str>>,
    /// By process: the file that names the code that it generates, as `/tmp/perf-PID.map`.
    generated: BTreeMap<u32, u32>,
    /// Memory; the first one stands for addresses of no known mapping.
    mappings: Vec<MappingRow>,
    /// Instructions that others name; the first one stands for none.
    instructions: Vec<Place>,
    /// Call stacks, each a call in another one; the first one has no calls.
    stacks: Vec<Node>,
    /// The first one stands for memory of no site.
    sites: Vec<Site>,
    /// Costs over time.
    phases: PhasesOf,
    /// Reuse distances, with `--locality`.
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<LocalityOf>,
    /// All costs.
    rows: Vec<Row>,
}

/// Reuse distances by mapping, below each number of entries and beyond the last.
#[derive(Serialize, JsonSchema)]
struct LocalityOf {
    /// The numbers of entries.
    entries: &'static [u64],
    /// Mappings that were accessed.
    mappings: Vec<LocalityRow>,
}

/// A mapping, and its file.
#[derive(Serialize, JsonSchema)]
struct MappingRow {
    #[serde(flatten)]
    mapping: Mapping,
    /// The file, where it is known.
    file: Option<u32>,
}

/// Costs of an instruction in some memory, by one thread in one call stack.
#[derive(Serialize, JsonSchema)]
struct Row {
    /// The instruction that accessed memory.
    instruction: u32,
    /// The mapping of the memory.
    mapping: u32,
    /// Number of the thread, in the order in which they began.
    thread: u32,
    /// Number of its process.
    process: u32,
    /// The stack of the calls that led to the instruction.
    stack: u32,
    /// The site that asked for the memory.
    site: u32,
    #[serde(flatten)]
    costs: Costs,
}

#[cfg(test)]
mod tests {
    use contigua_units::{VirtAddr, VirtRange};

    use super::*;

    const ABOUT: About<'static> = About {
        version: "",
        design: "",
        machine: "",
        command: &[],
        total_instructions: 0,
        cycles: None,
        translation_overhead: None,
        sampled: false,
        tlb_entries: 64,
    };

    /// Streams of traces may say anything.
    #[test]
    fn events_without_sense_are_no_panic() {
        let mut attribution = Attribution::new();
        let range = |start, end| VirtRange {
            start: VirtAddr::new(start),
            end: VirtAddr::new(end),
        };
        let kind = contigua_program::wire::ImageKind::File;
        let file = FileId(7);
        for event in [
            Event::FileMapped {
                file,
                range: range(0, 0),
                offset: 0,
            },
            Event::FileMapped {
                file,
                range: range(4096, 8192),
                offset: u64::MAX,
            },
            Event::Image {
                range: range(8192, 4096),
                writable: false,
                kind,
            },
            Event::Image {
                range: range(0, 4096),
                writable: false,
                kind,
            },
            Event::FileMapped {
                file,
                range: range(0, 4096),
                offset: u64::MAX,
            },
            Event::FileName {
                file: FileId(8),
                at: 9,
                text: [u64::MAX; NAME_WORDS],
            },
            Event::ProcessEnd {
                process: ProcessId(5),
            },
        ] {
            attribution.event(ThreadId(3), &event, None, BlockId(9));
        }
        let mut text = Vec::new();
        attribution.write(&mut text, &ABOUT).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert!(value["generated"].as_object().unwrap().is_empty());
        assert_eq!(value["mappings"].as_array().unwrap().len(), 3);
    }
}
