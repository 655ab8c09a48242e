//! Functions of programs and libraries, by their names in ELF files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::Error;
use crate::plan::Function;

/// Similar names that are told, at most, and how similar they are at least (Jaro and Winkler).
const MOST_SIMILAR: usize = 3;
const SIMILAR: f64 = 0.8;
/// Longer names are no user's.
const LONGEST_NAME: usize = 4096;

/// Finds a function in the symbol tables of an ELF file.
///
/// # Errors
/// [`Error::File`] when it cannot be read, [`Error::Symbol`] when it is no such file, has no names, or
/// has not this one, or more than once.
pub fn find(file: &Path, name: &str) -> Result<Function, Error> {
    let path = file.canonicalize().map_err(Error::file(file))?;
    let opened = contigua_input::open(&path).map_err(Error::file(file))?;
    let wrong = |problem: String| Error::Symbol {
        path: file.to_owned(),
        problem,
    };
    let data = ReadCache::new(opened);
    let elf = ElfFile64::<LittleEndian, _>::parse(&data)
        .map_err(|error| wrong(format!("no ELF file of 64 bits ({error})")))?;
    let is_function = |symbol: &object::read::elf::ElfSymbol64<'_, '_, LittleEndian, _>| {
        symbol.is_definition() && symbol.kind() == SymbolKind::Text
    };
    let both = elf.symbols().chain(elf.dynamic_symbols());
    let named = both
        .filter(is_function)
        .filter_map(|symbol| Some((symbol.name_bytes().ok()?, symbol.address())));
    let mut found = BTreeSet::new();
    let mut others: Vec<(f64, String)> = Vec::new();
    let mut any = false;
    for (known, address) in named {
        any = true;
        if known == name.as_bytes() {
            found.insert(address);
        } else if let Ok(known) = std::str::from_utf8(known)
            && known.len() <= LONGEST_NAME
        {
            let likeness = strsim::jaro_winkler(known, name);
            if likeness >= SIMILAR {
                others.push((likeness, known.to_owned()));
            }
        }
    }
    if !any {
        let stripped =
            "no names of functions: it was stripped; build it without -s, or name windows";
        return Err(wrong(stripped.to_owned()));
    }
    let mut addresses = found.into_iter();
    let Some(address) = addresses.next() else {
        return Err(wrong(format!("no function {name}{}", similar(others))));
    };
    let more = addresses.count();
    if more > 0 {
        return Err(wrong(format!(
            "{} functions have the name {name}: make one of them global, or give it another name",
            more + 1
        )));
    }
    let offset = elf.segments().find_map(|segment| {
        let inside = address.checked_sub(segment.address())?;
        let (offset, size) = segment.file_range();
        (inside < size).then(|| offset.checked_add(inside))?
    });
    let offset = offset.ok_or_else(|| wrong(format!("the code of {name} is not in the file")))?;
    Ok(Function { file: path, offset })
}

/// Hint at names that are much like the one that is not there.
fn similar(mut others: Vec<(f64, String)>) -> String {
    others.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    others.dedup_by(|one, other| one.1 == other.1);
    others.truncate(MOST_SIMILAR);
    if others.is_empty() {
        return String::new();
    }
    let names: Vec<String> = others.into_iter().map(|(_, name)| name).collect();
    format!("; near it are {}", names.join(", "))
}

/// Splits `NAME@FILE`; the file is the program's own where it is missing.
#[must_use]
pub fn split(text: &str) -> (&str, Option<PathBuf>) {
    match text.split_once('@') {
        Some((name, file)) => (name, Some(file.into())),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test's own program has names, of this crate's functions, too.
    fn own() -> PathBuf {
        std::env::current_exe().unwrap()
    }

    #[test]
    fn a_function_is_found_by_its_name() {
        let found = find(&own(), "main").unwrap();
        assert_eq!(found.file, own().canonicalize().unwrap());
        let code = std::fs::read(own()).unwrap();
        assert!((1..code.len() as u64).contains(&found.offset));
    }

    #[test]
    fn a_missing_symbol_is_an_error() {
        let error = find(&own(), "mainn").unwrap_err().to_string();
        assert!(
            error.contains("no function mainn; near it are main"),
            "{error}"
        );
        let error = find(&own(), "µµµµ").unwrap_err().to_string();
        assert!(error.ends_with("no function µµµµ"), "{error}");
        let error = find(Path::new("/nonexistent"), "main").unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error}");
        let error = find(Path::new("/dev/null"), "main").unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error}");
    }
}
