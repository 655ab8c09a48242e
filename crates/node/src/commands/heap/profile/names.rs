//! Names of functions and build ids, from the files that a process had mapped.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs::File;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::ReadCache;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSegment, ObjectSymbol, SymbolKind};

use super::Mapping;

/// Segments and symbols of an ELF file.
#[derive(Default)]
struct Known {
    build_id: Option<String>,
    /// Loaded segments: offset, bytes, address.
    segments: Vec<(u64, u64, u64)>,
    /// Functions by address.
    functions: Vec<(u64, String)>,
}

impl Known {
    /// Reads a file; empty if it is gone or not an ELF file.
    fn read(path: &str) -> Self {
        // What the kernel calls mappings without a file has no slash.
        if !path.starts_with('/') {
            return Self::default();
        }
        let Ok(file) = contigua_input::open(Path::new(path)) else {
            return Self::default();
        };
        Self::of(file).unwrap_or_default()
    }

    fn of(file: File) -> Option<Self> {
        let data = ReadCache::new(file);
        let elf = ElfFile::<FileHeader64<Endianness>, _>::parse(&data).ok()?;
        let id = elf.build_id().ok().flatten();
        let build_id = id.map(|id| {
            id.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        });
        let segments = elf.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            (offset, bytes, segment.address())
        });
        let mut functions: Vec<_> = elf
            .symbols()
            .chain(elf.dynamic_symbols())
            .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
            .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?.to_owned())))
            .collect();
        functions.sort_unstable();
        Some(Self {
            build_id,
            segments: segments.collect(),
            functions,
        })
    }

    /// An address of a mapping as its file's symbols have it.
    fn address(&self, mapping: &Mapping, address: u64) -> Option<u64> {
        let offset = address - mapping.begin + mapping.offset;
        self.segments.iter().find_map(|&(from, bytes, begin)| {
            let inside = offset.checked_sub(from).filter(|&inside| inside < bytes)?;
            Some(begin + inside)
        })
    }
}

/// The files of a profile, each read once.
#[derive(Default)]
pub struct Names {
    files: HashMap<String, Known>,
}

impl Names {
    fn file(&mut self, path: &str) -> &Known {
        self.files
            .entry(path.to_owned())
            .or_insert_with(|| Known::read(path))
    }

    /// The build id of a mapping's file.
    pub fn build_id(&mut self, mapping: &Mapping) -> Option<&str> {
        self.file(&mapping.name).build_id.as_deref()
    }

    /// The function at an address in a mapping; or its file and the address in that.
    pub fn function(&mut self, mapping: &Mapping, address: u64) -> String {
        let file = self.file(&mapping.name);
        let Some(inside) = file.address(mapping, address) else {
            return format!("{}+{:#x}", mapping.name, address - mapping.begin);
        };
        let before = file
            .functions
            .partition_point(|(begin, _)| *begin <= inside);
        match before.checked_sub(1).map(|index| &file.functions[index]) {
            Some((_, name)) => name.clone(),
            None => format!("{}+{inside:#x}", mapping.name),
        }
    }
}
