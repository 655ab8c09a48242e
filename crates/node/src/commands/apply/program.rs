//! The program that is started: its file, and whether a library can be preloaded into it.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use object::Endianness;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::read::{Object, ReadCache};

use super::advice::Advice;

/// Interpreters of interpreters are followed this far, as in Linux (`BINPRM_MAX_RECURSION`).
const MAX_INTERPRETERS: usize = 5;
/// Bytes of a script that the kernel looks at (`BINPRM_BUF_SIZE`).
const HEAD_BYTES: u64 = 256;

/// An ELF program.
pub struct Program {
    path: PathBuf,
    build_id: String,
    is_dynamic: bool,
    /// Runs with other privileges than the user's: the loader preloads nothing.
    is_privileged: bool,
}

impl Program {
    /// The program that a command executes: of a script, its interpreter.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(name: &OsStr) -> anyhow::Result<Self> {
        let mut path =
            search(name).with_context(|| format!("program {}", Path::new(name).display()))?;
        for _ in 0..=MAX_INTERPRETERS {
            match interpreter(&path).with_context(|| path.display().to_string())? {
                Some(interpreter) => path = interpreter,
                None => return Self::read(&path).with_context(|| path.display().to_string()),
            }
        }
        bail!(
            "{}: more than {MAX_INTERPRETERS} interpreters deep",
            path.display()
        )
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let path = path.canonicalize()?;
        let file = contigua_input::open(&path)?;
        let mode = file.metadata()?.permissions().mode();
        let data = ReadCache::new(file);
        let program: ElfFile64<'_, Endianness, _> =
            ElfFile64::parse(&data).context("not an ELF program of 64 bits")?;
        let endian = program.endian();
        let headers = program.elf_header().program_headers(endian, &data)?;
        let build_id = program.build_id()?.unwrap_or_default();
        let build_id = build_id.iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}");
            digits
        });
        Ok(Self {
            is_dynamic: headers
                .iter()
                .any(|header| header.p_type(endian) == elf::PT_INTERP),
            is_privileged: mode & 0o6000 != 0,
            build_id,
            path,
        })
    }

    /// Checks that an advice is for this program and can be applied to it.
    ///
    /// # Errors
    /// When it is not.
    pub fn check(&self, advice: &Advice) -> anyhow::Result<()> {
        let of = &advice.program;
        if of.build_id != self.build_id {
            bail!(
                "the advice is for {}, build id {}; {} has build id {}: profile it again",
                of.path,
                shown(&of.build_id),
                self.path.display(),
                shown(&self.build_id)
            );
        }
        if of.build_id.is_empty() && Path::new(&of.path) != self.path {
            bail!(
                "the advice is for {}, not for {}",
                of.path,
                self.path.display()
            );
        }
        if self.is_privileged {
            bail!(
                "{} is set-user-ID or set-group-ID: the loader preloads nothing into it, and reads no settings",
                self.path.display()
            );
        }
        Ok(())
    }

    /// Checks that libraries can be preloaded into it.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check_loader(&self) -> anyhow::Result<()> {
        if !self.is_dynamic {
            bail!(
                "{} is statically linked: nothing can be preloaded into it; change it by hand, as the advice says",
                self.path.display()
            );
        }
        Ok(())
    }
}

fn shown(build_id: &str) -> &str {
    if build_id.is_empty() {
        "(none)"
    } else {
        build_id
    }
}

/// Looks a command up as a shell does.
fn search(name: &OsStr) -> anyhow::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let is_program = |path: &PathBuf| {
        let found = path.metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(is_program);
    found.context("no such program")
}

/// The interpreter of a script; `None` for anything else.
fn interpreter(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mut head = Vec::new();
    contigua_input::open(path)?
        .take(HEAD_BYTES)
        .read_to_end(&mut head)?;
    let Some(line) = head.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let name = words
        .next()
        .context("an interpreter line without an interpreter")?;
    let name = Path::new(OsStr::from_bytes(name));
    // `#!/usr/bin/env NAME` executes NAME.
    if name.file_name() == Some(OsStr::new("env"))
        && let Some(program) = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))
    {
        return search(OsStr::from_bytes(program)).map(Some);
    }
    Ok(Some(name.to_owned()))
}
