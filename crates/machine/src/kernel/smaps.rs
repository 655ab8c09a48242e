//! Mappings of the program's processes at their end, in the format of `/proc/PID/smaps`.

use std::fmt::Write;

use contigua_paging::{AddressSpace, HugeAdvice, MappingMemory, Memory, VmaKind};
use contigua_program::wire::ProcessId;

use super::Kernel;

/// Text for the processes that have ended.
#[derive(Debug, Default)]
pub(super) struct Smaps {
    text: String,
    ended: Vec<ProcessId>,
}

impl Smaps {
    fn note(&mut self, process: ProcessId, space: &AddressSpace, memory: &Memory) {
        write(&mut self.text, process, space, memory);
        self.ended.push(process);
    }
}

impl Kernel {
    /// Keeps the mappings of a process that ends, if that was asked for.
    pub(super) fn note_mappings(&mut self, process: ProcessId) {
        let id = self.processes.get(process.0 as usize).copied().flatten();
        let space = id.and_then(|id| self.spaces[usize::from(id.0)].as_ref());
        if let (Some(smaps), Some(space)) = (&mut self.smaps, space) {
            smaps.note(process, space, &self.memory);
        }
    }

    /// Mappings of all processes at their end, or now, if that was asked for.
    pub(crate) fn smaps(&self) -> Option<String> {
        let smaps = self.smaps.as_ref()?;
        let mut text = smaps.text.clone();
        for (number, id) in (0..).zip(&self.processes) {
            let process = ProcessId(number);
            if let Some(id) = id
                && !smaps.ended.contains(&process)
                && let Some(space) = &self.spaces[usize::from(id.0)]
            {
                write(&mut text, process, space, &self.memory);
            }
        }
        Some(text)
    }
}

/// Adds a process. `Shared_Hugetlb` is of shared mappings, `Private_Hugetlb` of private ones; rights
/// to read and execute are not simulated.
fn write(text: &mut String, process: ProcessId, space: &AddressSpace, memory: &Memory) {
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Text in memory takes all that is written.
        let _ = text.write_fmt(words);
        text.push('\n');
    };
    line(format_args!("process {}", process.0));
    for mapping in space.memory_by_mapping(memory) {
        let MappingMemory { range, vma, .. } = mapping;
        let name = match (vma.kind, mapping.is_stack) {
            (_, true) => " [stack]",
            (VmaKind::File, _) => " [file]",
            _ if vma.shared => " [shmem]",
            (VmaKind::Anonymous, _) => "",
        };
        line(format_args!(
            "{:x}-{:x} r{}-{} 00000000 00:00 0{name}",
            range.start.get(),
            range.end.get(),
            if vma.writable { 'w' } else { '-' },
            if vma.shared { 's' } else { 'p' },
        ));
        let huge = |holds: bool| if holds { mapping.huge } else { 0 };
        let small = |bytes: u64| if vma.hugetlb { 0 } else { bytes };
        let is_private = vma.kind == VmaKind::Anonymous && !vma.shared;
        for (name, bytes) in [
            ("Size", range.bytes()),
            ("Rss", small(mapping.resident)),
            ("Anonymous", small(mapping.anonymous)),
            ("AnonHugePages", huge(is_private && !vma.hugetlb)),
            ("ShmemPmdMapped", huge(vma.shared && !vma.hugetlb)),
            (
                "FilePmdMapped",
                huge(vma.kind == VmaKind::File && !vma.shared),
            ),
            ("Shared_Hugetlb", huge(vma.shared && vma.hugetlb)),
            ("Private_Hugetlb", huge(is_private && vma.hugetlb)),
        ] {
            let name = format!("{name}:");
            line(format_args!("{name:<16}{:>8} kB", bytes >> 10));
        }
        let advice = match vma.huge {
            HugeAdvice::None => "",
            HugeAdvice::Huge => " hg",
            HugeAdvice::NoHuge => " nh",
        };
        let hugetlb = if vma.hugetlb { " ht" } else { "" };
        line(format_args!("VmFlags: rd{hugetlb}{advice}"));
    }
}
