//! Instructions of functions as text, around those that a profile names.

use std::collections::BTreeMap;
use std::path::Path;

use disarm64::{InsnDisplay, decoder};
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};
use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{Architecture, LittleEndian, Object, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::Error;

/// Functions with more bytes of code are not listed: they are decoded from their beginning.
const MOST_CODE: u64 = 1 << 20;
/// Bytes of an aarch64 instruction.
const WORD: usize = 4;

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its place in the file, bytes.
    pub offset: u64,
    /// Its address, as the file has it.
    pub address: u64,
    /// Its text: AT&T's syntax for x86-64, as of perf and objdump.
    pub text: String,
}

/// The part of a function near wanted instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Offset of the function's first instruction in the file, bytes.
    pub start: u64,
    /// Instructions in their order; each run is without gaps.
    pub runs: Vec<Vec<Line>>,
}

/// Code of a function in the file's own address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Code {
    address: u64,
    offset: u64,
    bytes: u64,
}

/// Lists the functions of an ELF file in which instructions lie.
///
/// # Arguments
/// `offsets` are places of instructions in the file; `context` is the number of instructions before and
/// after each that are listed, too. Offsets outside all functions that the file's symbols name, and
/// functions of more than 1 MB, are left out.
///
/// # Errors
/// [`Error::File`] when the file cannot be read, [`Error::Symbol`] when it is no ELF file of 64 bits.
pub fn functions(file: &Path, offsets: &[u64], context: usize) -> Result<Vec<Listing>, Error> {
    let opened = contigua_input::open(file).map_err(Error::file(file))?;
    let data = ReadCache::new(opened);
    let elf = ElfFile64::<LittleEndian, _>::parse(&data).map_err(|error| Error::Symbol {
        path: file.to_owned(),
        problem: format!("no ELF file of 64 bits ({error})"),
    })?;
    let mut wanted: BTreeMap<Code, Vec<u64>> = BTreeMap::new();
    let known = functions_of(&elf);
    for &offset in offsets {
        let before = known.partition_point(|code| code.offset <= offset);
        let code = known[..before].last();
        if let Some(code) = code.filter(|code| offset - code.offset < code.bytes) {
            wanted.entry(*code).or_default().push(offset);
        }
    }
    let listings = wanted.into_iter().filter_map(|(code, offsets)| {
        let bytes = bytes_of(&elf, code)?;
        let lines = match elf.architecture() {
            Architecture::X86_64 => x86_64(code, bytes),
            Architecture::Aarch64 => aarch64(code, bytes),
            _ => return None,
        };
        Some(Listing {
            start: code.offset,
            runs: near(lines, &offsets, context),
        })
    });
    Ok(listings.collect())
}

type Elf<'a, R> = ElfFile64<'a, LittleEndian, R>;

/// Functions with a size, by their offsets; one for each.
fn functions_of<'a, R: object::ReadRef<'a>>(elf: &Elf<'a, R>) -> Vec<Code> {
    let segments: Vec<_> = elf
        .segments()
        .map(|segment| (segment.address(), segment.file_range()))
        .collect();
    let named = elf.symbols().chain(elf.dynamic_symbols());
    let functions = named.filter(|one| one.is_definition() && one.kind() == SymbolKind::Text);
    let mut found: Vec<Code> = functions
        .filter(|one| (1..=MOST_CODE).contains(&one.size()))
        .filter_map(|one| {
            let offset = segments.iter().find_map(|&(address, (start, size))| {
                let inside = one.address().checked_sub(address)?;
                (inside < size).then(|| start.checked_add(inside))?
            })?;
            Some(Code {
                address: one.address(),
                offset,
                bytes: one.size(),
            })
        })
        .collect();
    found.sort_unstable_by_key(|code| (code.offset, std::cmp::Reverse(code.bytes)));
    found.dedup_by_key(|code| code.offset);
    found
}

fn bytes_of<'a, R: object::ReadRef<'a>>(elf: &Elf<'a, R>, code: Code) -> Option<&'a [u8]> {
    elf.segments().find_map(|segment| {
        segment
            .data_range(code.address, code.bytes)
            .unwrap_or_default()
    })
}

fn x86_64(code: Code, bytes: &[u8]) -> Vec<Line> {
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_branch_leading_zeros(false);
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    let decoder = Decoder::with_ip(64, bytes, code.address, DecoderOptions::NONE);
    let line = |instruction: iced_x86::Instruction| {
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        Line {
            offset: code.offset + (instruction.ip() - code.address),
            address: instruction.ip(),
            text,
        }
    };
    decoder.into_iter().map(line).collect()
}

fn aarch64(code: Code, bytes: &[u8]) -> Vec<Line> {
    let words = bytes.chunks_exact(WORD).zip((0..).step_by(WORD));
    let line = |(word, inside): (&[u8], u64)| {
        let address = code.address + inside;
        let word = word
            .first_chunk()
            .map_or(0, |word| u32::from_le_bytes(*word));
        let text = match decoder::decode(word) {
            Some(found) => found.display_at(address).to_string(),
            None => format!(".inst {word:#010x}"),
        };
        Line {
            offset: code.offset + inside,
            address,
            text,
        }
    };
    words.map(line).collect()
}

/// Keeps the lines at most `context` lines from one of `offsets`, in runs without gaps.
fn near(lines: Vec<Line>, offsets: &[u64], context: usize) -> Vec<Vec<Line>> {
    let mut kept = vec![false; lines.len()];
    for &offset in offsets {
        let at = lines.partition_point(|line| line.offset <= offset);
        let Some(at) = at.checked_sub(1) else {
            continue;
        };
        let end = at.saturating_add(context + 1).min(lines.len());
        kept[at.saturating_sub(context)..end].fill(true);
    }
    let mut runs: Vec<Vec<Line>> = Vec::new();
    let mut goes_on = false;
    for (line, kept) in lines.into_iter().zip(kept) {
        match runs.last_mut().filter(|_| goes_on) {
            Some(run) if kept => run.push(line),
            _ if kept => runs.push(vec![line]),
            _ => {}
        }
        goes_on = kept;
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn code(bytes: &[u8]) -> Code {
        Code {
            address: 0x1000,
            offset: 0x200,
            bytes: bytes.len() as u64,
        }
    }

    fn texts(lines: &[Line]) -> Vec<(u64, u64, &str)> {
        lines
            .iter()
            .map(|line| (line.offset, line.address, line.text.as_str()))
            .collect()
    }

    #[test]
    fn instructions_are_written_as_by_objdump() {
        // mov (%rdi,%rax,8), %rax; jne back to it; ret.
        let bytes = [0x48, 0x8b, 0x04, 0xc7, 0x75, 0xfa, 0xc3];
        assert_eq!(
            texts(&x86_64(code(&bytes), &bytes)),
            [
                (0x200, 0x1000, "mov (%rdi,%rax,8), %rax"),
                (0x204, 0x1004, "jne 0x1000"),
                (0x206, 0x1006, "ret"),
            ]
        );
        // ldr x0, [x1, #8]; a word that is no instruction.
        let bytes = [0x20, 0x04, 0x40, 0xf9, 0x00, 0x00, 0x00, 0x00];
        let lines = aarch64(code(&bytes), &bytes);
        assert_eq!(
            lines[0].text.split_whitespace().collect::<Vec<_>>(),
            ["ldr", "x0,", "[x1,", "#0x8]"]
        );
        assert_eq!((lines[1].offset, lines[1].address), (0x204, 0x1004));
    }

    #[test]
    fn a_function_is_listed_near_what_is_wanted() {
        let own = std::env::current_exe().unwrap();
        let found = crate::symbols::find(&own, "main").unwrap();
        let listings = functions(&own, &[found.offset, u64::MAX], 2).unwrap();
        let [Listing { start, runs }] = &listings[..] else {
            panic!("{listings:?}")
        };
        assert_eq!(*start, found.offset);
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].len(), 3);
        assert_eq!(runs[0][0].offset, found.offset);
        assert!(functions(Path::new("/dev/null"), &[0], 2).is_err());
    }

    proptest! {
        #[test]
        fn runs_are_what_is_near(
            count in 1..40_u64,
            offsets in proptest::collection::vec(0..50_u64, 0..6),
            context in 0..5_usize,
        ) {
            let line = |offset| Line { offset, address: offset, text: String::new() };
            let runs = near((0..count).map(line).collect(), &offsets, context);
            let kept: Vec<u64> = runs.iter().flatten().map(|line| line.offset).collect();
            let is_near = |at: &u64| {
                offsets.iter().any(|&offset| offset.min(count - 1).abs_diff(*at) <= context as u64)
            };
            prop_assert_eq!(kept, (0..count).filter(is_near).collect::<Vec<_>>());
            for pair in runs.windows(2) {
                prop_assert!(pair[0].last().unwrap().offset + 1 < pair[1][0].offset);
            }
            for run in &runs {
                prop_assert!(run.windows(2).all(|pair| pair[0].offset + 1 == pair[1].offset));
            }
        }

        #[test]
        fn damaged_files_are_refused_or_listed(
            at in 0..4096_usize, bytes in proptest::collection::vec(any::<u8>(), 1..64)
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("damaged");
            let mut contents = std::fs::read("/bin/true").unwrap();
            let at = at % contents.len();
            let end = (at + bytes.len()).min(contents.len());
            contents[at..end].copy_from_slice(&bytes[..end - at]);
            std::fs::write(&path, &contents).unwrap();
            let _ = functions(&path, &[0, 4096, u64::MAX], 3);
        }
    }
}
