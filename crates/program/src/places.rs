//! Functions and lines of instructions, from an ELF file, from a file with its debug information, and
//! from the table by which exceptions unwind, which has functions that nothing names.

use std::borrow::Cow;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use addr2line::gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use addr2line::{Loader, demangle_auto};
use flate2::Crc;
use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSegment};

use crate::Error;

/// Where distributions install debug information.
const DEBUG: &str = "/usr/lib/debug";

type Elf<'a> = ElfFile64<'a, object::LittleEndian, &'a ReadCache<File>>;

/// Where in a program's source an instruction comes from. Inlined functions are told as the function
/// that the processor calls, and the innermost line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcePlace {
    /// The function, demangled; `None` where nothing names it.
    pub function: Option<String>,
    /// The source file and the line, where there is debug information.
    pub line: Option<(String, u32)>,
    /// Offset in the file of the first instruction of a function that nothing names, where its extent is
    /// known.
    pub start: Option<u64>,
}

/// Names the instructions at offsets of an ELF file, from its symbols and its debug information, which
/// may lie in another file (build IDs and `.gnu_debuglink`, as GDB finds them; `.gnu_debugaltlink`).
///
/// # Errors
/// [`Error::File`] when it cannot be read, [`Error::Symbol`] when it is no ELF file of 64 bits.
pub fn locate(file: &Path, offsets: &[u64]) -> Result<Vec<SourcePlace>, Error> {
    let data = ReadCache::new(contigua_input::open(file).map_err(Error::file(file))?);
    let elf = parse(file, &data)?;
    let own = Loader::new(file).map_err(|error| wrong(file, &error))?;
    // A damaged file of debug information is as good as none.
    let separate = debug_file(file, &elf).and_then(|path| {
        let alternative = alternative_of(&path);
        Loader::new_with_sup(path, alternative).ok()
    });
    let loaders: Vec<&Loader> = separate.iter().chain([&own]).collect();
    let functions = functions(&elf);
    let places = offsets.iter().map(|&offset| {
        let Some(address) = address_of(&elf, offset) else {
            return SourcePlace::default();
        };
        let mut place = place_of(&loaders, address);
        if place.function.is_none() {
            let next = functions.partition_point(|&(start, _)| start <= address);
            let found = next.checked_sub(1).map(|index| functions[index]);
            place.start = found
                .filter(|&(start, size)| address - start < size)
                .and_then(|(start, _)| offset.checked_sub(address - start));
        }
        place
    });
    Ok(places.collect())
}

/// The build ID of an ELF file; `None` where it was linked without.
///
/// # Errors
/// Those of [`locate`].
pub fn build_id(file: &Path) -> Result<Option<Vec<u8>>, Error> {
    let data = ReadCache::new(contigua_input::open(file).map_err(Error::file(file))?);
    let elf = parse(file, &data)?;
    let id = elf.build_id().map_err(|error| wrong(file, &error))?;
    Ok(id.map(<[u8]>::to_vec))
}

fn parse<'a>(file: &Path, data: &'a ReadCache<File>) -> Result<Elf<'a>, Error> {
    ElfFile64::parse(data)
        .map_err(|error| wrong(file, &format!("no ELF file of 64 bits ({error})")))
}

fn wrong(file: &Path, problem: &impl ToString) -> Error {
    Error::Symbol {
        path: file.to_owned(),
        problem: problem.to_string(),
    }
}

/// The address of an offset in the file's own address space.
fn address_of(elf: &Elf<'_>, offset: u64) -> Option<u64> {
    elf.segments().find_map(|segment| {
        let (start, size) = segment.file_range();
        let inside = offset.checked_sub(start).filter(|inside| *inside < size)?;
        segment.address().checked_add(inside)
    })
}

/// The place of an address, from the first file that knows it.
fn place_of(loaders: &[&Loader], address: u64) -> SourcePlace {
    let mut place = SourcePlace::default();
    for loader in loaders {
        let Ok(mut frames) = loader.find_frames(address) else {
            continue;
        };
        while let Ok(Some(frame)) = frames.next() {
            if place.line.is_none()
                && let Some(location) = &frame.location
                && let (Some(file), Some(line)) = (location.file, location.line)
            {
                place.line = Some((file.to_owned(), line));
            }
            let name = frame
                .function
                .as_ref()
                .and_then(|name| name.demangle().ok());
            place.function = name.map(Cow::into_owned).or(place.function);
        }
        if place.function.is_some() {
            return place;
        }
    }
    let symbol = loaders
        .iter()
        .find_map(|loader| loader.find_symbol(address));
    place.function = symbol.map(|name| demangle_auto(name.into(), None).into_owned());
    place
}

/// Addresses and bytes of functions, by address, from `.eh_frame`; those before the first damaged entry.
fn functions(elf: &Elf<'_>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let section = elf.section_by_name(".eh_frame");
    let Some((section, data)) = section.and_then(|one| Some((one.address(), one.data().ok()?)))
    else {
        return found;
    };
    let table = EhFrame::new(data, LittleEndian);
    let text = elf
        .section_by_name(".text")
        .map_or(0, |text| text.address());
    let bases = BaseAddresses::default()
        .set_eh_frame(section)
        .set_text(text);
    let mut entries = table.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        if let Ok(function) = partial.parse(EhFrame::cie_from_offset) {
            found.push((function.initial_address(), function.len()));
        }
    }
    found.sort_unstable();
    found
}

/// The file with the debug information of another one.
fn debug_file(file: &Path, elf: &Elf<'_>) -> Option<PathBuf> {
    let id = elf.build_id().ok().flatten();
    if let Some(found) = id.and_then(by_build_id) {
        return Some(found);
    }
    let (name, sum) = elf.gnu_debuglink().ok()??;
    let name = Path::new(std::ffi::OsStr::from_bytes(name));
    let folder = file.canonicalize().ok()?.parent()?.to_owned();
    let installed = Path::new(DEBUG).join(folder.strip_prefix("/").ok()?);
    [folder.clone(), folder.join(".debug"), installed]
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|found| checksum(found) == Some(sum))
}

fn by_build_id(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let mut name = format!("{DEBUG}/.build-id/{first:02x}/");
    for byte in rest {
        let _ = write!(name, "{byte:02x}");
    }
    Some(PathBuf::from(name + ".debug")).filter(|found| found.is_file())
}

/// The file with what several files of debug information have in common (`dwz`).
fn alternative_of(debug: &Path) -> Option<PathBuf> {
    let data = ReadCache::new(contigua_input::open(debug).ok()?);
    let elf = parse(debug, &data).ok()?;
    let (name, id) = elf.gnu_debugaltlink().ok()??;
    let beside = debug.canonicalize().ok()?;
    let named = beside
        .parent()?
        .join(Path::new(std::ffi::OsStr::from_bytes(name)));
    let has_id = |found: &PathBuf| build_id(found).ok().flatten().as_deref() == Some(id);
    Some(named).filter(has_id).or_else(|| by_build_id(id))
}

/// The checksum of `.gnu_debuglink`: CRC-32 of the whole file.
fn checksum(file: &Path) -> Option<u32> {
    let mut opened = contigua_input::open(file).ok()?;
    let (mut sum, mut part) = (Crc::new(), vec![0; 1 << 16]);
    loop {
        match opened.read(&mut part).ok()? {
            0 => return Some(sum.sum()),
            read => sum.update(&part[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;
    use crate::symbols::find;

    /// A test's own program has names, of this crate's functions, too.
    fn own() -> PathBuf {
        std::env::current_exe().unwrap()
    }

    #[test]
    fn an_offset_of_a_function_has_its_name_and_line() {
        let found = find(&own(), "main").unwrap();
        let places = locate(&own(), &[found.offset, u64::MAX]).unwrap();
        assert_eq!(places[0].function.as_deref(), Some("main"));
        assert_eq!(places[1], SourcePlace::default());
        assert!(locate(Path::new("/dev/null"), &[0]).is_err());
    }

    fn run(program: &str, arguments: &[&Path]) {
        let done = Command::new(program).args(arguments).status().unwrap();
        assert!(done.success(), "{program} {arguments:?}");
    }

    #[test]
    fn a_stripped_program_has_the_names_of_the_file_beside_it_or_else_extents() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let source = "static __attribute__((noinline)) int hidden(int n) { return n * n + 1; }
            int main(int n, char **v) { (void)v; return hidden(n); }";
        std::fs::write(at("own.c"), source).unwrap();
        let built = [
            "-g".as_ref(),
            "-O1".as_ref(),
            "-Wl,--build-id=none".as_ref(),
            "-o".as_ref(),
            at("own").as_path(),
        ]
        .map(Path::to_owned);
        let mut arguments: Vec<_> = built.iter().map(PathBuf::as_path).collect();
        let file = at("own.c");
        arguments.push(&file);
        run("gcc", &arguments);
        let hidden = find(&at("own"), "hidden").unwrap().offset;
        let option = Path::new("--only-keep-debug");
        run("objcopy", &[option, &at("own"), &at("own.debug")]);
        run("strip", &[&at("own")]);
        // The second instruction is one of the function that begins at the first.
        let unnamed = SourcePlace {
            start: Some(hidden),
            ..SourcePlace::default()
        };
        assert_eq!(
            locate(&at("own"), &[hidden, hidden + 1]).unwrap(),
            [unnamed.clone(), unnamed.clone()]
        );
        let linked = format!("--add-gnu-debuglink={}", at("own.debug").display());
        run("objcopy", &[Path::new(&linked), &at("own")]);
        let places = locate(&at("own"), &[hidden]).unwrap();
        assert_eq!(places[0].function.as_deref(), Some("hidden"));
        assert!(places[0].line.as_ref().unwrap().0.ends_with("own.c"));
        // A file that was built from something else names nothing.
        let mut other = std::fs::read(at("own.debug")).unwrap();
        other.push(0);
        std::fs::write(at("own.debug"), other).unwrap();
        assert_eq!(locate(&at("own"), &[hidden]).unwrap(), [unnamed]);
    }

    proptest! {
        #[test]
        fn damaged_files_are_refused_or_read(
            at in 0..1_usize << 16, bytes in proptest::collection::vec(any::<u8>(), 1..64)
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("damaged");
            let mut code = std::fs::read("/bin/true").unwrap();
            let at = at % code.len();
            let end = (at + bytes.len()).min(code.len());
            code[at..end].copy_from_slice(&bytes[..end - at]);
            std::fs::write(&path, &code).unwrap();
            let _ = find(&path, "main");
            let _ = locate(&path, &[0, 4096, 0x3000, u64::MAX]);
        }
    }
}
