//! The kernel's treatment of a file that is executed: run it, or its interpreter.
//!
//! QEMU's user mode loads ELF files only, and starts a program that calls `execve` on the bare
//! host. Both ends of the front end therefore ask here what a file is: the launcher for the first
//! program, the plugin for every program after it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::root::Root;
use crate::syscall::Architecture;

/// Interpreters of interpreters are followed this far, as in Linux (`BINPRM_MAX_RECURSION`).
const MAX_INTERPRETERS: usize = 4;
/// The kernel reads this much of a file to find out what it is (`BINPRM_BUF_SIZE`).
const HEAD_BYTES: usize = 256;

/// An ELF program and what comes before the user's own arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// The ELF file to load, where the host has it.
    pub program: PathBuf,
    /// Architecture that it is built for.
    pub architecture: Architecture,
    /// Arguments after argument 0 and before the user's: interpreter options and script paths.
    /// Empty for an ELF program.
    pub interpreter_arguments: Vec<OsString>,
}

/// Why a file cannot be executed under observation.
#[derive(Debug, thiserror::Error)]
pub enum NotExecutable {
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(#[from] std::io::Error),
    /// It is not a file, or nobody may execute it.
    #[error("no execute permission")]
    NotPermitted,
    /// It is neither an ELF program nor a script.
    #[error("neither an ELF program nor a script with an interpreter line")]
    UnknownFormat,
    /// It is for another processor.
    #[error("built for {0}")]
    Foreign(String),
    /// Its interpreter is a script, whose interpreter is a script, and so on.
    #[error("more than {MAX_INTERPRETERS} interpreters deep")]
    TooDeep,
}

/// Finds the ELF program that runs when a program on `root` executes `path`. It has to be for one of
/// the architectures.
///
/// # Errors
/// [`NotExecutable`], with what was found instead.
pub fn resolve(
    path: &Path,
    architectures: &[Architecture],
    root: &Root,
) -> Result<Executable, NotExecutable> {
    // As programs name it.
    let mut name = path.to_owned();
    let mut before = Vec::new();
    for _ in 0..=MAX_INTERPRETERS {
        let program = root.file(&name);
        let head = read_head(&program)?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let (interpreter, option) =
                interpreter_line(line).ok_or(NotExecutable::UnknownFormat)?;
            before.insert(0, name.into_os_string());
            if let Some(option) = option {
                before.insert(0, option);
            }
            name = interpreter;
        } else {
            let architecture = architecture_of(&head)?;
            if !architectures.contains(&architecture) {
                return Err(NotExecutable::Foreign(architecture.name().to_owned()));
            }
            return Ok(Executable {
                program,
                architecture,
                interpreter_arguments: before,
            });
        }
    }
    Err(NotExecutable::TooDeep)
}

/// Returns true if a 64-bit ELF program is loaded by a dynamic loader, which heeds `LD_PRELOAD`.
/// True where that cannot be found out.
#[must_use]
pub fn is_dynamic(program: &Path) -> bool {
    !matches!(find_loader(program), Ok(None))
}

/// The dynamic loader that a 64-bit ELF program names, if it can be read.
#[must_use]
pub fn loader(program: &Path) -> Option<PathBuf> {
    let path = find_loader(program).ok()??;
    Some(PathBuf::from(OsString::from_vec(path)))
}

/// Returns true if a file is a shared library that a program of this architecture can load: ELF of
/// type `ET_DYN`.
#[must_use]
pub fn is_library(path: &Path, architecture: Architecture) -> bool {
    const SHARED: [u8; 2] = 3_u16.to_le_bytes();
    let mut head = [0; HEAD_BYTES];
    let read = contigua_input::open(path).and_then(|file| file.read_exact_at(&mut head, 0));
    read.is_ok()
        && head[16..18] == SHARED
        && architecture_of(&head).is_ok_and(|found| found == architecture)
}

/// Largest alignment that a segment of a 64-bit ELF program asks for (`p_align`); 1 where that cannot be
/// found out, or is none.
#[must_use]
pub fn alignment(program: &Path) -> u64 {
    const SEGMENT: [u8; 4] = 1_u32.to_le_bytes();
    let headers = contigua_input::open(program).and_then(|file| program_headers(&file));
    let segments = headers.unwrap_or_default().into_iter();
    let segments = segments.filter(|header| header[..4] == SEGMENT);
    let alignments = segments.map(|header| field(&header, 48));
    let valid = alignments.filter(|alignment| alignment.is_power_of_two());
    valid.max().unwrap_or(1)
}

const PROGRAM_HEADER_BYTES: usize = 56;

/// 64-bit field of a header.
fn field(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| from[at + i]))
}

/// Program headers of a 64-bit ELF file (ELF-64 specification).
fn program_headers(file: &std::fs::File) -> std::io::Result<Vec<[u8; PROGRAM_HEADER_BYTES]>> {
    const HEADER_BYTES: usize = 64;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    let offset = field(&header, 32);
    let count = u64::from(u16::from_le_bytes([header[56], header[57]]));
    let read = |index: u64| {
        let mut entry = [0; PROGRAM_HEADER_BYTES];
        let at = offset.saturating_add(index * PROGRAM_HEADER_BYTES as u64);
        file.read_exact_at(&mut entry, at)?;
        Ok(entry)
    };
    (0..count).map(read).collect()
}

/// Looks for the program header that names a loader (`PT_INTERP`).
fn find_loader(program: &Path) -> std::io::Result<Option<Vec<u8>>> {
    const LOADER: [u8; 4] = 3_u32.to_le_bytes();
    /// Linux takes no longer path (`PATH_MAX`).
    const LONGEST: u64 = 4096;
    let file = contigua_input::open(program)?;
    let headers = program_headers(&file)?;
    let Some(entry) = headers.iter().find(|header| header[..4] == LOADER) else {
        return Ok(None);
    };
    let mut path = vec![0; field(entry, 32).min(LONGEST) as usize];
    file.read_exact_at(&mut path, field(entry, 8))?;
    let end = path.iter().position(|&byte| byte == 0);
    path.truncate(end.unwrap_or(path.len()));
    Ok(Some(path))
}

fn read_head(path: &Path) -> Result<Vec<u8>, NotExecutable> {
    let file = contigua_input::open(path)?;
    if file.metadata()?.permissions().mode() & 0o111 == 0 {
        return Err(NotExecutable::NotPermitted);
    }
    let mut head = Vec::with_capacity(HEAD_BYTES);
    file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Splits what follows `#!` into the interpreter and its one optional argument, as Linux does
/// (`fs/binfmt_script.c`): everything after the first blank, trimmed, is one argument.
fn interpreter_line(line: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let line = line.split(|&b| b == b'\n').next()?.trim_ascii();
    let end = line
        .iter()
        .position(|b| b" \t".contains(b))
        .unwrap_or(line.len());
    let (interpreter, option) = (&line[..end], line[end..].trim_ascii());
    if interpreter.is_empty() {
        return None;
    }
    let option = (!option.is_empty()).then(|| OsString::from_vec(option.to_vec()));
    Some((OsStr::from_bytes(interpreter).into(), option))
}

fn architecture_of(head: &[u8]) -> Result<Architecture, NotExecutable> {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    if head.len() < 20 || &head[..4] != b"\x7fELF" {
        return Err(NotExecutable::UnknownFormat);
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    let known = Architecture::ALL
        .into_iter()
        .find(|a| a.elf_machine() == machine);
    let name = match (known, head[4], machine) {
        (Some(known), CLASS_64, _) if head[5] == LITTLE_ENDIAN => return Ok(known),
        (Some(known), CLASS_64, _) => format!("{} (big-endian)", known.name()),
        (_, 1, 3) => "i386 (32-bit)".to_owned(),
        (_, 1, 40) => "arm (32-bit)".to_owned(),
        (_, _, 243) => "riscv".to_owned(),
        (_, _, machine) => format!("ELF machine {machine}"),
    };
    Err(NotExecutable::Foreign(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_program_is_dynamic_when_it_names_a_loader() {
        assert!(is_dynamic(&std::env::current_exe().unwrap()));
        let mut head = vec![0; 64 + 56];
        head[32] = 64;
        head[56] = 1;
        head[64] = 1;
        assert!(!is_dynamic(&file_with(&head, 0o755)));
        head[64] = 3;
        assert!(is_dynamic(&file_with(&head, 0o755)));
        head[56] = 200;
        head[64] = 1;
        // Cut off: nobody knows.
        assert!(is_dynamic(&file_with(&head, 0o755)));
        assert!(is_dynamic(&file_with(b"", 0o755)));
    }

    #[test]
    fn a_pipe_as_a_program_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let error = resolve_x86(&pipe).unwrap_err();
        assert_eq!(error.to_string(), "a pipe; a regular file is needed");
        assert!(!is_library(&pipe, Architecture::X86_64));
        assert!(is_dynamic(&pipe));
    }

    #[test]
    fn a_text_is_no_library() {
        let text = file_with(&[b'a'; 300], 0o755);
        assert!(!is_library(&text, Architecture::X86_64));
        let mut head = elf(62);
        head.resize(300, 0);
        head[16] = 3;
        assert!(is_library(&file_with(&head, 0o644), Architecture::X86_64));
        assert!(!is_library(&file_with(&head, 0o644), Architecture::Aarch64));
    }

    fn file_with(content: &[u8], mode: u32) -> tempfile::TempPath {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        let path = file.into_temp_path();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn resolve_x86(path: &Path) -> Result<Executable, NotExecutable> {
        resolve(path, &[Architecture::X86_64], &Root::HOST)
    }

    fn elf(machine: u16) -> Vec<u8> {
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(18, 0);
        head.extend_from_slice(&machine.to_le_bytes());
        head
    }

    #[test]
    fn an_elf_program_is_run_as_it_is() {
        let path = file_with(&elf(62), 0o755);
        let found = resolve_x86(&path).unwrap();
        assert_eq!(found.program, path.to_path_buf());
        assert!(found.interpreter_arguments.is_empty());
    }

    #[test]
    fn a_script_runs_its_interpreter_with_one_option() {
        let interpreter = file_with(&elf(62), 0o755);
        let line = format!("#! {} -a  -b \nrest", interpreter.display());
        let script = file_with(line.as_bytes(), 0o755);
        let found = resolve_x86(&script).unwrap();
        assert_eq!(found.program, interpreter.to_path_buf());
        assert_eq!(
            found.interpreter_arguments,
            ["-a  -b".as_ref(), script.as_os_str()]
        );
    }

    #[test]
    fn a_file_that_cannot_run_is_refused_with_the_reason() {
        let text = file_with(b"hello", 0o755);
        assert!(matches!(
            resolve_x86(&text),
            Err(NotExecutable::UnknownFormat)
        ));
        let closed = file_with(&elf(62), 0o644);
        assert!(matches!(
            resolve_x86(&closed),
            Err(NotExecutable::NotPermitted)
        ));
        let arm = file_with(&elf(183), 0o755);
        let Err(NotExecutable::Foreign(name)) = resolve_x86(&arm) else {
            panic!("a foreign program was accepted");
        };
        assert_eq!(name, "aarch64");
        assert!(matches!(
            resolve_x86(Path::new("/nonexistent")),
            Err(NotExecutable::Unreadable(_))
        ));
    }

    #[test]
    fn a_program_says_what_it_is_built_for() {
        for architecture in Architecture::ALL {
            let path = file_with(&elf(architecture.elf_machine()), 0o755);
            let found = resolve(&path, &Architecture::ALL, &Root::HOST).unwrap();
            assert_eq!(found.architecture, architecture);
        }
        let mut big_endian = elf(183);
        big_endian[5] = 2;
        let path = file_with(&big_endian, 0o755);
        let Err(NotExecutable::Foreign(name)) = resolve(&path, &Architecture::ALL, &Root::HOST)
        else {
            panic!("a big-endian program was accepted");
        };
        assert_eq!(name, "aarch64 (big-endian)");
    }

    #[test]
    fn a_program_names_its_loader() {
        let path = b"/lib/ld-linux-aarch64.so.1\0";
        let mut head = vec![0; 64 + 56];
        (head[32], head[56], head[64]) = (64, 1, 3);
        (head[72], head[96]) = (120, path.len() as u8);
        head.extend_from_slice(path);
        let file = file_with(&head, 0o755);
        assert_eq!(
            loader(&file),
            Some(PathBuf::from("/lib/ld-linux-aarch64.so.1"))
        );
        head[64] = 1;
        assert_eq!(loader(&file_with(&head, 0o755)), None);
    }

    #[test]
    fn programs_of_another_system_are_named_as_they_name_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path().to_owned());
        std::fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        let install = |name: &str, content: &[u8]| {
            let path = folder.path().join("usr/bin").join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let interpreter = install("awk", &elf(183));
        install("no-such-script", b"#!/usr/bin/awk -f\n");
        let script = Path::new("/usr/bin/no-such-script");
        let found = resolve(script, &Architecture::ALL, &root).unwrap();
        assert_eq!(found.program, interpreter);
        assert_eq!(
            found.interpreter_arguments,
            ["-f".as_ref(), script.as_os_str()]
        );
        assert!(resolve(script, &Architecture::ALL, &Root::HOST).is_err());
    }

    #[test]
    fn a_script_that_interprets_itself_is_refused() {
        let script = file_with(b"", 0o755);
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert!(matches!(resolve_x86(&script), Err(NotExecutable::TooDeep)));
    }
}
