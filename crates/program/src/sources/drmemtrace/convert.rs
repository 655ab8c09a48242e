//! Events of records.

use std::collections::HashMap;

use contigua_units::{PAGE_BYTES, PageSize, VirtAddr};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::foreign::{Described, Stream};
use super::record::{Record, file_type, kind, marker};
use super::shard::{Shard, When};
use super::v2p::{Mapping, Placement};
use crate::decode::OperationClass;
use crate::decode::regdeps::Regdeps;
use crate::error::Failure;
use crate::syscall::Architecture;
use crate::wire::{Event, ProcessId, Syscall, ThreadId};

/// A number that is no system call's, whose arguments would mean something.
const SYSTEM_CALL: u16 = u16::MAX;
/// Numbers of `ppoll`, for calls that may have waited.
const WAITS: [(Architecture, u16); 2] = [(Architecture::X86_64, 271), (Architecture::Aarch64, 73)];
/// Physical addresses are below.
const MAX_PHYSICAL: u64 = 8 << 40;
/// Threads and processes that a trace has at most.
const MAX_THREADS: usize = 1 << 20;

/// Why reading a file stopped.
pub(super) enum Stop {
    /// A batch is whole.
    Batch,
    /// Another file comes before this place of the present one.
    Later(When),
    /// The file has ended.
    End,
}

/// Makes events of records.
#[derive(Default)]
pub(super) struct Converter {
    pub(super) stream: Stream,
    regdeps: Regdeps,
    pub(super) placement: Placement,
    /// Mappings that have not been told.
    pub(super) mappings: Vec<Mapping>,
    /// Blocks by process and address.
    blocks: HashMap<(u32, u64), u32>,
    threads: HashMap<u64, ThreadId>,
    processes: HashMap<u64, ProcessId>,
    /// By thread: it has started.
    started: Vec<bool>,
    /// Instructions that were passed over, and not told.
    pub(super) passed: u64,
    /// Thread of the batch.
    pub(super) thread: ThreadId,
    process: ProcessId,
}

impl Converter {
    /// Reads a file until a batch is whole, or another file `comes_first`.
    pub(super) fn read(
        &mut self,
        shard: &mut Shard,
        architecture: Architecture,
        comes_first: impl Fn(When) -> bool,
    ) -> Result<Stop, Failure> {
        self.turn_to(shard)?;
        while !self.stream.is_full() {
            let Some(record) = shard.records.next()? else {
                if shard.is_complete {
                    return Ok(Stop::End);
                }
                return Err(shard.records.cut_short());
            };
            match record.kind {
                kind::READ | kind::WRITE if !shard.filtered && !shard.passes => {
                    self.access(shard, &record)?;
                }
                kind::INSTRUCTION..=kind::RETURN
                | kind::NOT_FETCHED
                | kind::MAYBE_FETCHED
                | kind::SYSENTER
                | kind::TAKEN
                | kind::UNTAKEN => {
                    self.instruction(shard, architecture, record.kind, record.value, record.size)?;
                }
                kind::ENCODING => {
                    if !shard.encoding.extend(&record) {
                        return Err(shard.records.refusal("an encoding is too long"));
                    }
                }
                kind::BUNDLE => {
                    let lengths = record.value.to_le_bytes();
                    let Some(lengths) = lengths.get(..usize::from(record.size)) else {
                        return Err(shard.records.refusal("a bundle is too long"));
                    };
                    for &length in lengths {
                        let address = shard.last.1;
                        self.instruction(
                            shard,
                            architecture,
                            kind::INSTRUCTION,
                            address,
                            length.into(),
                        )?;
                    }
                }
                kind::MARKER => {
                    if let Some(when) = self.marker(shard, architecture, &record)?
                        && comes_first(when)
                    {
                        return Ok(Stop::Later(when));
                    }
                }
                kind::THREAD => {
                    self.returned(shard, architecture)?;
                    shard.thread = record.value;
                    if let Some(&process) = shard.processes.get(&record.value) {
                        shard.process = process;
                    }
                    if !self.stream.is_empty() {
                        return Ok(Stop::Batch);
                    }
                    self.turn_to(shard)?;
                }
                kind::PROCESS => {
                    shard.process = record.value;
                    shard.processes.insert(shard.thread, record.value);
                    self.turn_to(shard)?;
                }
                kind::THREAD_EXIT => {
                    self.returned(shard, architecture)?;
                    if self.started.get(self.thread.0 as usize) == Some(&true) {
                        self.stream.event(&Event::ThreadEnd);
                    }
                }
                kind::FOOTER => {
                    shard.is_complete = true;
                }
                kind::HEADER
                | kind::READ
                | kind::WRITE
                | kind::FIRST_PREFETCH..=kind::LAST_PREFETCH
                | kind::FIRST_FLUSH..=kind::LAST_FLUSH
                | kind::HARDWARE_PREFETCH
                | kind::FIRST_HINT..=kind::LAST_HINT => {}
                other => {
                    let detail = format!("its type is {other}, which is none of drmemtrace");
                    return Err(shard.records.refusal(detail));
                }
            }
        }
        Ok(Stop::Batch)
    }

    /// The batch is of the thread that a file is at.
    fn turn_to(&mut self, shard: &Shard) -> Result<(), Failure> {
        if self.threads.len() >= MAX_THREADS || self.processes.len() >= MAX_THREADS {
            return Err(shard.records.refusal("it has too many threads"));
        }
        let next = ProcessId(self.processes.len() as u32);
        self.process = *self.processes.entry(shard.process).or_insert(next);
        let next = ThreadId(self.threads.len() as u32);
        self.thread = *self.threads.entry(shard.thread).or_insert(next);
        self.started.resize(self.threads.len(), false);
        Ok(())
    }

    /// Events that precede a thread's next instruction.
    #[inline]
    fn before(&mut self, shard: &mut Shard, architecture: Architecture) -> Result<(), Failure> {
        if shard.call.is_some()
            || shard.interrupted
            || !self.started[self.thread.0 as usize]
            || !self.mappings.is_empty()
        {
            self.returned(shard, architecture)?;
        }
        Ok(())
    }

    #[cold]
    fn returned(&mut self, shard: &mut Shard, architecture: Architecture) -> Result<(), Failure> {
        let started = &mut self.started[self.thread.0 as usize];
        if !std::mem::replace(started, true) {
            self.stream.event(&Event::ThreadStart {
                process: self.process,
            });
        }
        let passed = std::mem::take(&mut self.passed);
        if passed > 0 {
            self.stream.event(&Event::Forward {
                instructions: passed,
            });
        }
        for mapping in std::mem::take(&mut self.mappings) {
            self.map(&mapping)
                .map_err(|detail| shard.records.refusal(detail))?;
        }
        if let Some(waits) = shard.call.take() {
            let wait = WAITS.iter().find(|(of, _)| waits && *of == architecture);
            self.stream.event(&Event::Syscall(Syscall {
                number: wait.map_or(SYSTEM_CALL, |&(_, number)| number),
                arguments: [0; 6],
                result: 0,
            }));
        }
        if std::mem::take(&mut shard.interrupted) {
            self.stream.event(&Event::Interrupt);
        }
        Ok(())
    }

    fn map(&mut self, mapping: &Mapping) -> Result<(), String> {
        let page = self.stream.place(mapping.page)?;
        if mapping.frame >= MAX_PHYSICAL {
            return Err(format!(
                "the physical address {:#x} lies beyond 8 TB",
                mapping.frame
            ));
        }
        self.stream.event(&Event::Traced {
            page: VirtAddr::new(page),
            frame: mapping.frame,
            size: mapping.size,
        });
        Ok(())
    }

    #[inline]
    fn access(&mut self, shard: &mut Shard, record: &Record) -> Result<(), Failure> {
        if !self.started[self.thread.0 as usize] {
            self.returned(shard, Architecture::X86_64)?;
        }
        self.stream
            .access(record.value, record.size.into(), record.kind == kind::WRITE)
            .map_err(|detail| shard.records.refusal(detail))
    }

    #[inline]
    fn instruction(
        &mut self,
        shard: &mut Shard,
        architecture: Architecture,
        kind: u16,
        address: u64,
        size: u16,
    ) -> Result<(), Failure> {
        if size == 0 || shard.filtered {
            // Says only where the next access comes from.
            shard.encoding.clear();
            shard.last.0 = address;
            return Ok(());
        }
        let is_iteration =
            kind == kind::NOT_FETCHED || kind == kind::MAYBE_FETCHED && shard.last.0 == address;
        shard.passes = shard.instructions < shard.passes_until || shard.passes && is_iteration;
        shard.instructions += u64::from(!is_iteration);
        shard.last = (address, address.wrapping_add(size.into()));
        if shard.passes {
            (shard.call, shard.interrupted) = (None, false);
            if !shard.encoding.bytes().is_empty() {
                self.look_up(shard, kind, address, size)?;
            }
            return Ok(());
        }
        self.before(shard, architecture)?;
        if shard.encoding.bytes().is_empty() && self.stream.follow(address, self.process.0) {
            return Ok(());
        }
        self.look_up(shard, kind, address, size)
    }

    #[cold]
    #[inline(never)]
    fn look_up(
        &mut self,
        shard: &mut Shard,
        kind: u16,
        address: u64,
        size: u16,
    ) -> Result<(), Failure> {
        let bytes = shard.encoding.bytes();
        let known = self.blocks.get(&(self.process.0, address)).copied();
        if let (Some(block), true) = (known, bytes.is_empty()) {
            self.stream.execute(block);
            return Ok(());
        }
        let refuse = |detail: String| shard.records.refusal(detail);
        let length =
            u8::try_from(size).map_err(|_| refuse(format!("an instruction of {size} bytes")))?;
        let is_regdeps = shard.header.has(file_type::REGDEPS);
        if !bytes.is_empty() && !is_regdeps && bytes.len() != usize::from(size) {
            return Err(refuse(format!(
                "an instruction of {size} bytes has an encoding of {}",
                bytes.len()
            )));
        }
        let branch = branch(kind);
        let class = branch.map_or(0, |class| class as u64 + 1);
        let seed = u64::from(self.process.0) << 32 | class << 8 | u64::from(length);
        let signature = xxh3_64_with_seed(bytes, seed);
        let place = self.stream.place(address).map_err(refuse)?;
        let block = if let Some(block) = self.stream.find(place, signature) {
            block
        } else {
            let instruction = if is_regdeps && !bytes.is_empty() {
                let decoded = self.regdeps.decode(bytes, branch);
                Some(decoded.ok_or_else(|| {
                    shard
                        .records
                        .refusal("its encoding is no REGDEPS instruction")
                })?)
            } else {
                None
            };
            let described = Described {
                length,
                bytes: if is_regdeps { &[] } else { bytes },
                instruction,
            };
            self.stream
                .describe(place, signature, self.process.0, &described)
                .map_err(|detail| shard.records.refusal(detail))?
        };
        if let Some(before) = known
            && before != block
        {
            self.stream.supersede(before, block);
        }
        self.blocks.insert((self.process.0, address), block);
        shard.encoding.clear();
        if !shard.passes {
            self.stream.execute(block);
        }
        Ok(())
    }

    /// Takes a marker; where the file is from now on, if it says so.
    fn marker(
        &mut self,
        shard: &mut Shard,
        architecture: Architecture,
        record: &Record,
    ) -> Result<Option<When>, Failure> {
        let value = record.value | shard.upper.take().unwrap_or(0) << 32;
        match record.size {
            marker::TIMESTAMP => return Ok(Some(shard.records.when(record, shard.thread))),
            marker::SPLIT_VALUE => shard.upper = Some(value),
            marker::KERNEL_EVENT => shard.interrupted = !shard.passes,
            // A call that returns from a handler has been told.
            marker::KERNEL_RETURN => shard.interrupted = shard.call.is_none() && !shard.passes,
            marker::SYSTEM_CALL if !shard.passes => {
                self.before(shard, architecture)?;
                shard.call = Some(false);
            }
            marker::MAYBE_BLOCKING => shard.call = shard.call.map(|_| true),
            marker::SYSTEM_CALL_TRACE => shard.call = None,
            marker::FILTER_END => shard.filtered = false,
            marker::PHYSICAL_ADDRESS => shard.physical = Some(value),
            marker::VIRTUAL_ADDRESS => {
                if let (Some(physical), Placement::Traced) = (shard.physical.take(), self.placement)
                {
                    self.before(shard, architecture)?;
                    let size = shard.header.page_size.clamp(PAGE_BYTES, 1 << 16);
                    for part in (0..size).step_by(PAGE_BYTES as usize) {
                        let mapping = Mapping {
                            page: (value & !(size - 1)).wrapping_add(part),
                            frame: (physical & !(size - 1)).wrapping_add(part),
                            size: PageSize::Size4K,
                        };
                        self.map(&mapping)
                            .map_err(|detail| shard.records.refusal(detail))?;
                    }
                }
            }
            _ => {}
        }
        Ok(None)
    }
}

/// The class of a branch, by the type of its record.
fn branch(kind: u16) -> Option<OperationClass> {
    Some(match kind {
        kind::JUMP => OperationClass::Jump,
        kind::JUMP_INDIRECT => OperationClass::JumpIndirect,
        kind::CONDITIONAL | kind::TAKEN | kind::UNTAKEN => OperationClass::BranchConditional,
        kind::CALL => OperationClass::Call,
        kind::CALL_INDIRECT => OperationClass::CallIndirect,
        kind::RETURN => OperationClass::Return,
        kind::SYSENTER => OperationClass::Syscall,
        _ => return None,
    })
}
