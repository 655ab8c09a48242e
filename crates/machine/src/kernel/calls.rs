//! System calls, and what else happens to threads and processes.

use contigua_paging::{AddressSpace, Backing, Disabled, HugeAdvice, Resident, Vma, VmaKind};
use contigua_program::syscall::{Call, Facility, MemoryFileKind};
use contigua_program::wire::{Event, ImageKind, ProcessId, ThreadId};
use contigua_units::{Cycles, Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use super::demand::Demand;
use super::sharing::backing_of;
use super::{Kernel, OutOfMemory};
use crate::processors::Mmus;

/// Bytes that QEMU maps for a stack at least (`TARGET_DEFAULT_STACK_SIZE`).
const LEAST_STACK: u64 = 8 << 20;

impl Kernel {
    /// Handles an event of a thread, which is `call` when it is a system call; the work that it
    /// took.
    pub(crate) fn event(
        &mut self,
        thread: ThreadId,
        event: &Event,
        call: Option<&Call>,
        mmu: &mut Mmus,
    ) -> Result<Cycles, OutOfMemory> {
        match *event {
            Event::ThreadStart { process } => {
                self.threads[thread.0 as usize] = process;
                self.run_thread(thread)?;
            }
            Event::ThreadEnd => Demand::thread_ended(&mut self.memory),
            Event::ProcessStart { process } => {
                let before = self.space_of_process(process);
                let disabled = before.map_or(Disabled::None, AddressSpace::disabled);
                let work = self.end_process(process, mmu);
                self.run_thread(thread)?;
                // Executing a program keeps the mark (`MMF_INIT_MASK`, `include/linux/mm_types.h`).
                if let Some(space) = &mut self.spaces[usize::from(self.current.0)] {
                    space.disable_huge(disabled);
                }
                return Ok(work);
            }
            Event::ProcessEnd { process } => {
                self.note_mappings(process);
                let living = self.processes.iter().flatten().count();
                // The last one's memory stays for the report to look at.
                if living > 1 {
                    let work = self.end_process(process, mmu);
                    self.current = self.space_of(ProcessId(0))?;
                    return Ok(work);
                }
            }
            Event::Fork { child } => {
                self.demand.forked(self.threads[thread.0 as usize], child);
                return self.fork(child, mmu);
            }
            Event::ForkFailed { child } => return Ok(self.end_process(child, mmu)),
            Event::Image {
                range,
                writable,
                kind,
            } => {
                let kind = match kind {
                    ImageKind::File => VmaKind::File,
                    ImageKind::Anonymous => VmaKind::Anonymous,
                };
                // It lies above all that is loaded.
                let may_be_stack =
                    kind == VmaKind::Anonymous && writable && range.bytes() >= LEAST_STACK;
                let vma = Vma {
                    kind,
                    writable,
                    ..Vma::ANONYMOUS
                };
                return self.change(mmu, |space, memory, effects, _| {
                    space.map(range, vma, memory, effects)?;
                    if may_be_stack {
                        space.set_stack(range);
                    }
                    Ok(())
                });
            }
            Event::ProgramCode { range } => {
                if let Some(code) = self.program_code.get_mut(usize::from(self.current.0)) {
                    *code = range;
                }
            }
            Event::Syscall(_) => {
                let call = call.unwrap_or(&Call::Other);
                self.count(call);
                let process = self.threads[thread.0 as usize];
                self.demand.call(call, process, &mut self.memory);
                let work = self.call_with_advice(process, *call, mmu)?;
                return Ok(work + self.settle(mmu) + self.costs.syscall_cycles);
            }
            Event::Interrupt => return Ok(self.costs.syscall_cycles),
            Event::Traced { page, frame, size } => self.map_as_traced(page, frame, size, mmu)?,
            // Nothing that a kernel sees.
            Event::Forward { .. }
            | Event::Fetch { .. }
            | Event::Piece { .. }
            | Event::Cue(_)
            | Event::FileName { .. }
            | Event::FileMapped { .. } => {}
        }
        Ok(Cycles::ZERO)
    }

    fn count(&mut self, call: &Call) {
        let counters = &mut self.syscalls;
        counters.all += 1;
        match *call {
            Call::Map { .. }
            | Call::Unmap { .. }
            | Call::Remap { .. }
            | Call::Break { .. }
            | Call::Protect { .. }
            | Call::Attach { .. }
            | Call::Detach { .. }
            | Call::Advise { .. } => counters.memory += 1,
            Call::Receive { bytes, .. } => {
                counters.receives += 1;
                counters.bytes_received += bytes;
            }
            Call::Send { bytes, .. } => {
                counters.sends += 1;
                counters.bytes_sent += bytes;
            }
            Call::Open { .. } => counters.opens += 1,
            Call::Wait | Call::WaitForWord { .. } => counters.waits += 1,
            Call::Ask(Facility::IoUring) => counters.io_uring += 1,
            Call::Ask(Facility::Aio) => counters.aio += 1,
            Call::Ask(Facility::Userfaultfd) => counters.userfaultfd += 1,
            Call::Close { .. }
            | Call::DisableHugePages { .. }
            | Call::WakeWord { .. }
            | Call::Segment { .. }
            | Call::Allocate { .. }
            | Call::Lend { .. }
            | Call::Spawn
            | Call::Exit
            | Call::Other => {}
        }
    }

    pub(super) fn call(&mut self, call: Call, mmu: &mut Mmus) -> Result<Cycles, OutOfMemory> {
        let split = self.counters.huge_page_splits;
        let work = self.change_mappings(call, mmu)?;
        let counters = &mut self.counters;
        let split = counters.huge_page_splits - split;
        match call {
            Call::Map { .. } | Call::Unmap { .. } | Call::Break { .. } | Call::Detach { .. } => {
                counters.splits_munmap += split;
            }
            Call::Protect { .. } => counters.splits_mprotect += split,
            Call::Remap { .. } => counters.splits_mremap += split,
            Call::Advise { .. } => counters.splits_madvise += split,
            _ => {}
        }
        let finds_vmas = matches!(
            call,
            Call::Map { .. }
                | Call::Unmap { .. }
                | Call::Remap { .. }
                | Call::Break { .. }
                | Call::Protect { .. }
                | Call::Attach { .. }
                | Call::Detach { .. }
                | Call::Advise { .. }
        );
        Ok(if finds_vmas {
            work + self.costs.vma_cycles
        } else {
            work
        })
    }

    fn change_mappings(&mut self, call: Call, mmu: &mut Mmus) -> Result<Cycles, OutOfMemory> {
        match call {
            Call::Map {
                range,
                writable,
                anonymous,
                shared,
                huge,
                populate,
                file,
                offset,
                may_be_huge,
                ..
            } => {
                let backing = match file {
                    Some(file) => Some(backing_of(file, range.start, offset)),
                    None if shared && anonymous => Some(Backing {
                        object: self.memory.unnamed_object(),
                        origin: range.start.get(),
                        mounted: false,
                    }),
                    None => None,
                };
                let vma = Vma {
                    kind: if anonymous || backing.is_some() {
                        VmaKind::Anonymous
                    } else {
                        VmaKind::File
                    },
                    writable,
                    shared,
                    huge: if may_be_huge {
                        HugeAdvice::None
                    } else {
                        HugeAdvice::NoHuge
                    },
                    hugetlb: anonymous && huge
                        || file.is_some_and(|file| file.kind == MemoryFileKind::HugeTlb),
                    backing,
                };
                self.change(mmu, |space, memory, effects, policy| {
                    space.map(range, vma, memory, effects)?;
                    if populate {
                        space.populate(range, writable, policy, memory, effects)?;
                    }
                    Ok(())
                })
            }
            Call::Segment { id, bytes, huge } => {
                self.segments.note(id, bytes, huge);
                Ok(Cycles::ZERO)
            }
            Call::Attach { id, at, writable } => match self.segments.mapping(id, at, writable) {
                Some((range, vma)) => self.change(mmu, |space, memory, effects, _| {
                    space.map(range, vma, memory, effects)
                }),
                None => Ok(Cycles::ZERO),
            },
            Call::Detach { at } => match self.segments.attached(self.running(), at) {
                Some(range) => self.change(mmu, |space, memory, effects, _| {
                    space.unmap(range, memory, effects)
                }),
                None => Ok(Cycles::ZERO),
            },
            // The plugin tells the call before its result is known.
            Call::Unmap { range } if self.running().cuts_hugetlb(range) => Ok(Cycles::ZERO),
            Call::Unmap { range } => self.change(mmu, |space, memory, effects, _| {
                space.unmap(range, memory, effects)
            }),
            Call::Remap { from, to, keep } => self.remap(from, to, keep, mmu),
            Call::Break { end } => self.change(mmu, |space, memory, effects, _| {
                space.set_break(end, memory, effects)
            }),
            Call::Protect { range, writable } => self.change(mmu, |space, memory, effects, _| {
                space.protect(range, writable, memory, effects)
            }),
            Call::Advise { range, advice } => self.advise(range, advice, mmu),
            Call::DisableHugePages {
                disabled,
                but_advised,
            } => {
                let disabled = match (disabled, but_advised) {
                    (false, _) => Disabled::None,
                    (true, true) => Disabled::ButAdvised,
                    (true, false) => Disabled::All,
                };
                self.change(mmu, |space, _, _, _| {
                    space.disable_huge(disabled);
                    Ok(())
                })
            }
            _ => Ok(Cycles::ZERO),
        }
    }

    fn remap(
        &mut self,
        from: VirtRange,
        to: VirtRange,
        keep: bool,
        mmu: &mut Mmus,
    ) -> Result<Cycles, OutOfMemory> {
        let [from, to] = [from, to].map(|range| self.running().whole_hugetlb(from.start, range));
        // Half done, it must not begin again: this is the one change that is not repeated.
        let mut work = self.settle(mmu);
        let (done, cycles) =
            self.change_once(mmu, &mut |space: &mut AddressSpace, memory, effects, _| {
                space.remap(from, to, keep, memory, effects)
            });
        work += cycles + self.make_areas(mmu);
        done.map(|()| work).map_err(|_| self.out_of_memory())
    }

    /// Maps a page to physical memory beside the server's own, where the traced machine had it. Takes no
    /// time.
    fn map_as_traced(
        &mut self,
        page: VirtAddr,
        frame: u64,
        size: PageSize,
        mmu: &mut Mmus,
    ) -> Result<(), OutOfMemory> {
        // What designs do in the background would place it anew.
        self.pass = None;
        let beside = self
            .memory
            .total()
            .next_multiple_of(u64::from(PageSize::Size1G.frames()));
        let number = u32::try_from(beside + frame / PAGE_BYTES);
        let frame = Frame::new(number.map_err(|_| self.out_of_memory())?);
        self.change(mmu, |space, memory, effects, _| {
            space.map_elsewhere(page, frame, size, memory, effects)
        })?;
        Ok(())
    }

    /// The space of a process, if it has run.
    fn space_of_process(&self, process: ProcessId) -> Option<&AddressSpace> {
        let id = self.processes.get(process.0 as usize).copied().flatten()?;
        self.spaces[usize::from(id.0)].as_ref()
    }

    fn fork(&mut self, child: ProcessId, mmu: &mut Mmus) -> Result<Cycles, OutOfMemory> {
        let ended = self.end_process(child, mmu);
        let id = self.unused_space();
        let shape = self.running().shape();
        let mut work = Cycles::ZERO;
        // Tables that want contiguous memory, for which pages may move.
        let mut prepared = None;
        if shape.hashing.is_some() {
            let out_of_memory = self.out_of_memory();
            let made = AddressSpace::with(id, shape, &mut self.memory);
            let mut child = made.map_err(|_| out_of_memory)?;
            let (grown, moves) = self.grow_table_of(&mut child);
            work += grown + self.follow_and_clear(moves, mmu);
            prepared = Some(child);
        }
        let mut copy = None;
        work += self.change(mmu, |space, memory, effects, _| {
            copy = Some(match prepared.take() {
                Some(child) => space.fork_to(child, memory, effects)?,
                None => space.fork(id, memory, effects)?,
            });
            Ok(())
        })?;
        if let Some(copy) = copy {
            self.account(Resident::default(), copy.resident());
            self.program_code[usize::from(id.0)] = self.program_code[usize::from(self.current.0)];
            self.spaces[usize::from(id.0)] = Some(copy);
            work += self.make_areas_in(id, mmu);
        }
        let index = child.0 as usize;
        if index >= self.processes.len() {
            self.processes.resize(index + 1, None);
        }
        self.processes[index] = Some(id);
        Ok(ended + work)
    }
}
