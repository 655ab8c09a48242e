//! Starting a program under QEMU's user mode with the plugin.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::Error;
use crate::executable::{self, Executable, NotExecutable};
use crate::syscall::Architecture;

/// Environment variable that names the emulator to use instead of the one in `PATH`.
pub const QEMU_VARIABLE: &str = "CONTIGUA_QEMU";

/// A program that was found and can be started.
#[derive(Clone, Debug)]
pub struct Launch {
    emulator: PathBuf,
    executable: Executable,
    command: Vec<OsString>,
}

impl Launch {
    /// Finds the program and the emulator for a command line.
    ///
    /// # Errors
    /// [`Error::NoSuchProgram`], [`Error::NotExecutable`], [`Error::ForeignArchitecture`] or
    /// [`Error::NoQemu`].
    pub fn prepare(command: &[OsString], architecture: Architecture) -> Result<Self, Error> {
        let name = command.first().map(PathBuf::from).unwrap_or_default();
        let path = find_in_path(name.as_os_str()).ok_or(Error::NoSuchProgram(name))?;
        let executable = executable::resolve(&path, architecture).map_err(|error| match error {
            NotExecutable::Foreign(found) => Error::ForeignArchitecture { path, found },
            error => Error::NotExecutable {
                path,
                reason: error.to_string(),
            },
        })?;
        Ok(Self {
            emulator: find_emulator(architecture)?,
            executable,
            command: command.to_owned(),
        })
    }

    /// Starts the program; the plugin writes to the ring at `ring`.
    ///
    /// Address-space randomisation is off, so that two runs of a deterministic program access the
    /// same addresses.
    ///
    /// # Errors
    /// [`Error::File`] for the emulator when it cannot be started.
    pub fn start(&self, plugin: &Path, ring: &Path, process: u32) -> Result<Child, Error> {
        let escaped = plugin.to_string_lossy().replace(',', ",,");
        let mut command = Command::new(&self.emulator);
        command
            .arg("-plugin")
            .arg(format!(
                "{escaped},ring={},process={process}",
                ring.display()
            ))
            .arg("-0")
            .arg(if self.executable.interpreter_arguments.is_empty() {
                self.command[0].as_os_str()
            } else {
                self.executable.program.as_os_str()
            })
            .arg(&self.executable.program)
            .args(&self.executable.interpreter_arguments)
            .args(&self.command[1..]);
        // SAFETY: the closure makes one system call and touches no memory, as is required
        // between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                Ok(())
            });
        }
        command.spawn().map_err(Error::file(&self.emulator))
    }

    /// The command line, for people.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let command = self.command.iter();
        command
            .map(|part| part.to_string_lossy().into_owned())
            .collect()
    }
}

fn find_emulator(architecture: Architecture) -> Result<PathBuf, Error> {
    let name = format!("qemu-{}", architecture.name());
    let wanted = std::env::var_os(QEMU_VARIABLE).unwrap_or_else(|| OsString::from(&name));
    find_in_path(&wanted).ok_or_else(|| Error::NoQemu(wanted.to_string_lossy().into_owned()))
}

/// The file that a shell would run for `name`: as it is when it contains a slash, else the first
/// file of that name in `PATH`.
fn find_in_path(name: &OsStr) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    let path = Path::new(name);
    if path.components().count() > 1 || path.is_absolute() {
        return path.exists().then(|| path.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert!(find_in_path(OsStr::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(
            find_in_path(OsStr::new("/bin/sh")),
            Some(PathBuf::from("/bin/sh"))
        );
        assert_eq!(find_in_path(OsStr::new("no-such-program-anywhere")), None);
        assert_eq!(find_in_path(OsStr::new("")), None);
    }

    #[test]
    fn a_missing_program_is_named() {
        let missing = [OsString::from("./missing")];
        let error = Launch::prepare(&missing, Architecture::X86_64).unwrap_err();
        assert!(
            error.to_string().starts_with("./missing: no such program"),
            "{error}"
        );
    }
}
