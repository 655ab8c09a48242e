//! Starting a program under QEMU's user mode with the plugin.

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::Error;
use crate::allocator;
use crate::descriptors::Handles;
use crate::emulator::Emulator;
use crate::executable::{self, Executable, NotExecutable};
use crate::layout::Layout;
use crate::path::find_on;
use crate::plan::Plan;
use crate::root::Root;
use crate::syscall::Architecture;

/// Environment variable by which QEMU's user chooses the processor that programs find.
pub const PROCESSOR_VARIABLE: &str = "QEMU_CPU";

/// The processor of x86-64 programs unless their user chooses another: all that QEMU has, but not
/// fast at copying bytes.
///
/// C libraries copy with `rep movsb` (and fill with `rep stosb`) where `cpuid` claims that it is
/// fast, which it is in microcode that moves whole lines. QEMU claims it and executes an
/// iteration a byte, each of which the core models charge as an instruction: copies would cost
/// more than on any processor. Without the claim, libraries copy with vectors.
const PROCESSOR_X86_64: &str = "max,erms=off,fsrm=off";

/// The processor of aarch64 programs unless their user chooses another: the newest of QEMU 7.2 without
/// SVE, which zeroes 64 bytes with `dc zva` (`target/arm/cpu64.c`).
///
/// QEMU performs vector loads and stores of SVE by itself, and tells plugins of none of them. Its own
/// choice, `max`, has SVE, and zeroes 512 bytes at once, as no processor does.
const PROCESSOR_AARCH64: &str = "neoverse-n1";

/// The processor that programs find, as QEMU's `-cpu` takes it: the user's choice, else one that
/// suits the core models.
#[must_use]
pub fn processor(architecture: Architecture) -> String {
    processor_unless(std::env::var_os(PROCESSOR_VARIABLE), architecture)
}

fn processor_unless(chosen: Option<OsString>, architecture: Architecture) -> String {
    match (chosen.filter(|name| !name.is_empty()), architecture) {
        (Some(chosen), _) => chosen.to_string_lossy().into_owned(),
        (None, Architecture::X86_64) => PROCESSOR_X86_64.to_owned(),
        (None, Architecture::Aarch64) => PROCESSOR_AARCH64.to_owned(),
    }
}

/// Environment of a program beyond that of a shell.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Libraries that the program's loader loads before all others (`LD_PRELOAD`), in this order: the
    /// program's, and not the emulator's, which would be observed by nobody.
    pub preload: Vec<PathBuf>,
    /// Root whose files the program sees.
    pub root: Root,
    /// Environment variables.
    pub variables: Vec<(OsString, OsString)>,
    /// Nanoseconds for each instruction on the clock [`PROGRAM_CLOCK`](crate::syscall::PROGRAM_CLOCK); nobody answers without.
    pub clock: Option<u32>,
    /// Plan of its simulation.
    pub plan: Plan,
    /// Choice of its addresses.
    pub layout: Layout,
    /// True if the files that it maps are reported by name.
    pub names: bool,
}

/// A program that was found and can be started.
#[derive(Clone, Debug)]
pub struct Launch {
    emulator: Emulator,
    processor: String,
    executable: Executable,
    command: Vec<OsString>,
    surroundings: Surroundings,
}

impl Launch {
    /// Finds the program of a command line on `surroundings.root`, and the emulator for it.
    ///
    /// # Errors
    /// [`Error::Root`], [`Error::NoSuchProgram`], [`Error::NotExecutable`],
    /// [`Error::ForeignArchitecture`], [`Error::NoLoader`], [`Error::Preload`], [`Error::Static`] or
    /// [`Error::NoQemu`].
    pub fn prepare(command: &[OsString], mut surroundings: Surroundings) -> Result<Self, Error> {
        surroundings.root = usable(surroundings.root)?;
        let root = &surroundings.root;
        let name = command.first().map(PathBuf::from).unwrap_or_default();
        let path = find_on(root, name.as_os_str()).ok_or(Error::NoSuchProgram(name))?;
        let found = executable::resolve(&path, &Architecture::ALL, root);
        let executable = found.map_err(|error| match error {
            NotExecutable::Foreign(found) => Error::ForeignArchitecture { path, found },
            error => Error::NotExecutable {
                path,
                reason: error.to_string(),
            },
        })?;
        let architecture = executable.architecture;
        for library in &surroundings.preload {
            let separates = |byte: &u8| matches!(byte, b',' | b':' | b' ');
            if library.as_os_str().as_bytes().iter().any(separates)
                || !executable::is_library(library, architecture)
            {
                return Err(Error::Preload(library.clone()));
            }
        }
        if !surroundings.preload.is_empty() && !executable::is_dynamic(&executable.program) {
            return Err(Error::Static(executable.program));
        }
        if let Some(loader) = executable::loader(&executable.program)
            && !root.file(&loader).is_file()
        {
            return Err(Error::NoLoader {
                path: executable.program,
                loader,
                architecture,
            });
        }
        Ok(Self {
            emulator: Emulator::find(architecture)?,
            processor: processor(architecture),
            executable,
            command: command.to_owned(),
            surroundings,
        })
    }

    /// The value of `LD_PRELOAD` for the program: its own libraries, then what everybody gets.
    fn preload(&self) -> Option<OsString> {
        let libraries = self.surroundings.preload.iter().map(|one| one.as_os_str());
        let mut value = libraries.collect::<Vec<_>>().join(OsStr::new(":"));
        if value.is_empty() {
            return None;
        }
        if let Some(others) = std::env::var_os("LD_PRELOAD")
            && !others.as_bytes().contains(&b',')
        {
            value.push(":");
            value.push(others);
        }
        Some(value)
    }

    /// A variable's value for the program.
    fn variable(&self, name: &str) -> Option<OsString> {
        let mut given = self.surroundings.variables.iter().rev();
        let given = given.find(|(one, _)| one == name);
        given.map_or_else(|| std::env::var_os(name), |(_, value)| Some(value.clone()))
    }

    /// Starts the program as process `process` of the run.
    ///
    /// The host's address-space randomization is off, so that two runs of a deterministic program access
    /// the same addresses.
    ///
    /// # Errors
    /// [`Error::File`] for the emulator when it cannot be started.
    pub fn start(&self, handles: &Handles<RawFd>, process: u32) -> Result<Child, Error> {
        let mut option = vec![handles.option(), format!("process={process}")];
        if let Some(rate) = self.surroundings.clock {
            option.push(format!("clock={rate}"));
        }
        if self.surroundings.plan != Plan::default() {
            option.push(format!("plan={}", self.surroundings.plan));
        }
        if self.surroundings.layout != Layout::default() {
            option.push(format!("layout={}", self.surroundings.layout));
        }
        if self.surroundings.names {
            option.push("names=1".to_owned());
        }
        let mut command = Command::new(&self.emulator.path);
        command.args(self.emulator.options());
        if let Some(base) = self.emulator.base {
            option.push(format!("base={base}"));
        }
        // Also for the programs that this one starts.
        command.arg("-cpu").arg(&self.processor);
        option.push(format!("processor={}", self.processor.replace(',', ",,")));
        if let Some(folder) = self.surroundings.root.folder() {
            command.arg("-L").arg(folder);
            option.push(format!(
                "root={}",
                folder.to_string_lossy().replace(',', ",,")
            ));
        }
        for (name, value) in &self.surroundings.variables {
            command.env(name, value);
        }
        for setting in allocator::settings(|name| self.variable(name).map(OsString::into_vec)) {
            command.env(setting.name, setting.value);
            command.args(setting.option.map(OsString::from_vec));
        }
        if let Some(libraries) = self.preload() {
            let mut setting = OsString::from("LD_PRELOAD=");
            setting.push(libraries);
            command.arg("-E").arg(setting);
        }
        command
            .arg("-plugin")
            .arg(option.join(","))
            .arg("-0")
            .arg(if self.executable.interpreter_arguments.is_empty() {
                self.command[0].as_os_str()
            } else {
                self.executable.program.as_os_str()
            })
            .arg(&self.executable.program)
            .args(&self.executable.interpreter_arguments)
            .args(&self.command[1..]);
        let handles = *handles;
        let mask = blocked_signals();
        // SAFETY: the closure makes system calls and touches no memory but its own, as is required
        // between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                be_killed_first();
                restore_signals(&mask);
                handles.inherit(true)
            });
        }
        command.spawn().map_err(Error::file(&self.emulator.path))
    }

    /// Architecture that the program is built for.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        self.executable.architecture
    }

    /// The ELF file that runs.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.executable.program
    }

    /// Sets the plan of its simulation.
    pub fn set_plan(&mut self, plan: Plan) {
        self.surroundings.plan = plan;
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

/// Signals that this thread blocks: as its process was given them.
fn blocked_signals() -> libc::sigset_t {
    // SAFETY: the kernel fills the set in.
    unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask);
        mask
    }
}

/// Gives a program the signals as a shell gives them. Python ignores two from its start, which a
/// program would inherit: `SIGPIPE`, which the standard library resets, and `SIGXFSZ`. That library
/// also unblocks all signals.
fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: plain system calls between fork and exec.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
    }
}

/// Lets the kernel end the program and its descendants before all others when memory runs out: QEMU
/// may take far more than the program would. Without `/proc`, the kernel decides by itself.
fn be_killed_first() {
    const HIGHEST: &[u8] = b"1000"; // OOM_SCORE_ADJ_MAX, include/uapi/linux/oom.h
    let path = c"/proc/self/oom_score_adj".as_ptr();
    // SAFETY: the path ends in NUL, the buffer has the length given, and the descriptor is closed
    // by the only one who knows it.
    unsafe {
        let file = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, HIGHEST.as_ptr().cast(), HIGHEST.len());
            libc::close(file);
        }
    }
}

/// A folder by a path that means the same in every process.
fn usable(root: Root) -> Result<Root, Error> {
    let Some(folder) = root.folder() else {
        return Ok(root);
    };
    let problem = |problem: String| Error::Root {
        path: folder.to_owned(),
        problem,
    };
    let whole = folder.canonicalize();
    let whole = whole.map_err(|error| problem(error.to_string()))?;
    if !whole.is_dir() {
        return Err(problem("not a folder".to_owned()));
    }
    if whole.to_str().is_none() {
        return Err(problem("its path is not UTF-8".to_owned()));
    }
    Ok(Root::new(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_the_users_choice_else_one_that_copies_with_vectors() {
        let processor = |chosen: Option<&str>, architecture| {
            processor_unless(chosen.map(OsString::from), architecture)
        };
        for architecture in Architecture::ALL {
            let chosen = processor(Some("max"), architecture);
            assert_eq!(chosen, "max");
        }
        for none in [None, Some("")] {
            let own = processor(none, Architecture::X86_64);
            assert_eq!(own, "max,erms=off,fsrm=off");
            assert_eq!(processor(none, Architecture::Aarch64), "neoverse-n1");
        }
    }

    fn prepare(command: &[OsString], preload: Option<&str>) -> Result<Launch, Error> {
        let surroundings = Surroundings {
            preload: preload.into_iter().map(PathBuf::from).collect(),
            ..Surroundings::default()
        };
        Launch::prepare(command, surroundings)
    }

    #[test]
    fn a_library_that_cannot_be_loaded_is_named() {
        let command = [OsString::from("sh")];
        for library in ["/no/such/library.so", "/with,comma.so", "/bin"] {
            let error = prepare(&command, Some(library)).unwrap_err().to_string();
            assert!(error.starts_with(library), "{error}");
        }
    }

    #[test]
    fn a_root_that_cannot_be_used_is_named() {
        let command = [OsString::from("sh")];
        for (folder, problem) in [
            ("/no/such/folder", "No such file"),
            ("/bin/sh", "not a folder"),
        ] {
            let surroundings = Surroundings {
                root: Root::new(PathBuf::from(folder)),
                ..Surroundings::default()
            };
            let error = Launch::prepare(&command, surroundings).unwrap_err();
            let error = error.to_string();
            assert!(
                error.starts_with(folder) && error.contains(problem),
                "{error}"
            );
        }
    }

    #[test]
    fn a_program_without_its_loader_is_refused() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let loader = b"/lib/ld-of-another-system.so.1\0";
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(64 + 56, 0);
        (head[18], head[32], head[56], head[64]) = (183, 64, 1, 3);
        (head[72], head[96]) = (120, loader.len() as u8);
        head.extend_from_slice(loader);
        std::fs::write(&path, head).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = prepare(&[path.into_os_string()], None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("ld-of-another-system.so.1 is not here; give --root DIR")
                && error.contains("for aarch64"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let missing = [OsString::from("./missing")];
        let error = prepare(&missing, None).unwrap_err();
        assert!(
            error.to_string().starts_with("./missing: no such program"),
            "{error}"
        );
    }
}
