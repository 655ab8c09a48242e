//! Following a program through `execve`.
//!
//! QEMU's user mode hands `execve` to the host, which would run the next program unobserved. So
//! the plugin looks at the file first and, when QEMU can run it, replaces this process by a QEMU
//! that does, under the same process number. Otherwise the call goes its way: it fails as it
//! should, or runs a program that cannot be observed.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::fmt::Write;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use contigua_program::allocator;
use contigua_program::descriptors::above_standard;
use contigua_program::executable::{self, NotExecutable};
use contigua_program::layout::Layout;
use contigua_program::lifeline;
use contigua_program::plan::Plan;
use contigua_program::root::Root;

use crate::{PROCESS, guest, keeper, plugin, vcpu};

/// `execveat` relative to the current directory.
const AT_FDCWD: i32 = -100;
/// `execveat` of the descriptor itself.
const AT_EMPTY_PATH: u64 = 0x1000;

/// Arguments of this plugin for a QEMU that is started for the next program.
pub struct PluginArguments {
    /// Path of QEMU.
    emulator: CString,
    /// QEMU's options for the processor, for where programs are and for whose files they see, as they
    /// were given.
    options: Vec<CString>,
    /// Root whose files programs see.
    root: Root,
    /// The `-plugin` option's settings that are the same for all processes.
    settings: String,
}

impl PluginArguments {
    /// With a clock of so many nanoseconds for each instruction, by a plan, with a layout of addresses, on a
    /// processor, with address 0 at a base and the files of a root; mapped files are told by name or not.
    pub fn new(
        clock: Option<u64>,
        plan: &Plan,
        layout: Layout,
        processor: Option<&str>,
        base: Option<&str>,
        root: Option<&str>,
        tells_names: bool,
    ) -> Self {
        // Writing to a string cannot fail.
        let mut settings = String::new();
        if let Some(rate) = clock {
            let _ = write!(settings, ",clock={rate}");
        }
        if *plan != Plan::default() {
            let _ = write!(settings, ",plan={plan}");
        }
        if layout != Layout::default() {
            let _ = write!(settings, ",layout={layout}");
        }
        // A comma would end an option's value; QEMU reads a double one as one.
        for (key, value) in [("processor", processor), ("root", root)] {
            if let Some(value) = value {
                let _ = write!(settings, ",{key}={}", value.replace(',', ",,"));
            }
        }
        if let Some(base) = base {
            let _ = write!(settings, ",base={base}");
        }
        if tells_names {
            settings.push_str(",names=1");
        }
        let given = [(c"-cpu", processor), (c"-B", base), (c"-L", root)];
        let given = given.into_iter().filter_map(|(option, value)| {
            let value = CString::new(value?).ok()?;
            Some([option.to_owned(), value])
        });
        let emulator =
            std::fs::read_link(OsStr::from_bytes(EMULATOR.to_bytes())).unwrap_or_default();
        Self {
            emulator: CString::new(emulator.into_os_string().into_vec()).unwrap_or_default(),
            options: given.flatten().collect(),
            root: root.map_or(Root::HOST, |folder| Root::new(folder.into())),
            settings,
        }
    }
}

/// The emulator's file, for itself: also where its path leads elsewhere (`chroot`), or to nothing
/// that may be read (fewer privileges).
const EMULATOR: &CStr = c"/proc/self/exe";

/// `execve(path, argv, envp)`. Returns when the call should go its way.
pub fn follow(index: u32, path: u64, argv: u64, envp: u64) {
    if let Some(path) = guest::string(path) {
        follow_path(index, path, argv, envp);
    }
}

/// `execveat(directory, path, argv, envp, flags)`. Returns when the call should go its way.
pub fn follow_at(index: u32, directory: u64, path: u64, argv: u64, envp: u64, flags: u64) {
    let directory = directory as i32;
    let Some(path) = guest::string(path) else {
        return;
    };
    let bytes = path.as_bytes();
    let resolved = if bytes.is_empty() && flags & AT_EMPTY_PATH != 0 {
        format!("/proc/self/fd/{directory}").into_bytes()
    } else if bytes.first() == Some(&b'/') || directory == AT_FDCWD {
        bytes.to_vec()
    } else {
        let mut joined = format!("/proc/self/fd/{directory}/").into_bytes();
        joined.extend_from_slice(bytes);
        joined
    };
    if let Ok(resolved) = CString::new(resolved) {
        follow_path(index, resolved, argv, envp);
    }
}

fn follow_path(index: u32, mut path: CString, argv: u64, envp: u64) {
    let own = format!("/proc/{}/exe", std::process::id());
    if path.as_bytes() == b"/proc/self/exe" || path.as_bytes() == own.as_bytes() {
        // To the host that is QEMU; the guest means itself.
        path = own_program().unwrap_or(path);
    }
    let (path, program_file) = lasting(path);
    let file = Path::new(OsStr::from_bytes(path.as_bytes()));
    let PluginArguments {
        emulator,
        options,
        root,
        settings,
    } = &plugin().arguments;
    let found = match executable::resolve(file, &[plugin().architecture], root) {
        Ok(found) => found,
        Err(NotExecutable::Foreign(_) | NotExecutable::UnknownFormat) => return go_natively(),
        Err(_) => return,
    };
    let (Some(arguments), Some(mut environment)) = (guest::strings(argv), guest::strings(envp))
    else {
        return;
    };
    let preload = take_preload(&mut environment);
    let allocator = set_allocator(&mut environment);
    let Ok(program) = CString::new(found.program.into_os_string().into_vec()) else {
        return;
    };
    let process = PROCESS.load(Ordering::Relaxed);
    let handles = keeper::take().unwrap_or_else(|error| {
        crate::fail(&format!(
            "{}: cannot be observed, /proc/self/task: {error}",
            file.display()
        ))
    });
    let numbers = keeper::numbers(&handles);
    let mut option = format!(
        "{},process={process},executed=1{settings}",
        numbers.option()
    );
    if let Some(file) = &program_file {
        // Writing to a string cannot fail.
        let _ = write!(option, ",close={}", file.as_raw_fd());
    }
    let Ok(option) = CString::new(option) else {
        return;
    };
    if numbers.inherit(true).is_err() {
        return;
    }
    let interpreted = !found.interpreter_arguments.is_empty();
    let name = match arguments.first() {
        Some(first) if !interpreted => first.clone(),
        _ => program.clone(),
    };
    let fixed = [
        c"-plugin".to_owned(),
        option,
        c"-0".to_owned(),
        name,
        program,
    ];
    let before = found.interpreter_arguments.into_iter();
    let before = before.filter_map(|argument| CString::new(argument.into_vec()).ok());
    let command: Vec<CString> = std::iter::once(emulator.clone())
        .chain(options.iter().cloned())
        .chain(preload.into_iter().flat_map(|set| [c"-E".to_owned(), set]))
        .chain(allocator)
        .chain(fixed)
        .chain(before)
        .chain(arguments.into_iter().skip(1))
        .collect();
    vcpu::leave_functions(index);
    let (ring, own) = (plugin().producer.ring(), std::process::id());
    ring.begin_execution(own, true);
    // SAFETY: both arrays are null-terminated and point to strings that live until the process is
    // replaced or the call fails.
    unsafe {
        libc::execve(
            EMULATOR.as_ptr(),
            pointers(&command).as_ptr(),
            pointers(&environment).as_ptr(),
        );
    }
    ring.end_execution(own, true);
}

/// A path that the next program has, too, where a file is named by a descriptor of this one, which may
/// be closed on `execve`; and the descriptor made for that where the file has no path.
fn lasting(path: CString) -> (CString, Option<OwnedFd>) {
    let bytes = path.as_bytes();
    if ![&b"/proc/self/fd/"[..], b"/dev/fd/"]
        .iter()
        .any(|folder| bytes.starts_with(folder))
    {
        return (path, None);
    }
    let named = Path::new(OsStr::from_bytes(bytes));
    let Ok(file) = fs::metadata(named) else {
        return (path, None);
    };
    let is_it = |other: &fs::Metadata| (other.dev(), other.ino()) == (file.dev(), file.ino());
    if let Ok(found) = fs::canonicalize(named)
        && fs::metadata(&found).is_ok_and(|other| is_it(&other))
        && let Ok(found) = CString::new(found.into_os_string().into_vec())
    {
        return (found, None);
    }
    // Standard numbers may be free, and the guest's: not for a file of ours.
    let copy = fs::File::open(named).ok().and_then(|opened| {
        let opened = above_standard(opened.into()).ok()?;
        // SAFETY: plain system call on an open descriptor.
        let kept = unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_SETFD, 0) } == 0;
        kept.then_some(opened)
    });
    match copy {
        Some(copy) => {
            let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
            (CString::new(path).unwrap_or_default(), Some(copy))
        }
        None => (path, None),
    }
}

/// The lifeline that is left to a program of the host's; -1 when there is none.
static LEFT: AtomicI32 = AtomicI32::new(-1);

/// The host may be able to run what QEMU cannot (a 32-bit program), unobserved, which makes the run
/// incomplete. It ends with the run nevertheless: it inherits a lifeline that the kernel answers for.
fn go_natively() {
    let ring = plugin().producer.ring();
    ring.begin_execution(std::process::id(), false);
    NATIVE.store(true, Ordering::Relaxed);
    let Ok(handles) = keeper::take() else {
        return;
    };
    if lifeline::bind(handles.lifeline.as_fd()).is_ok() {
        let lifeline = handles.lifeline.into_raw_fd();
        // SAFETY: plain system call on an open descriptor.
        unsafe { libc::fcntl(lifeline, libc::F_SETFD, 0) };
        LEFT.store(lifeline, Ordering::Relaxed);
    }
}

/// True while the host executes a program for a thread of this process. They exclude each other:
/// the first one that succeeds ends the others.
static NATIVE: AtomicBool = AtomicBool::new(false);

/// The host could not execute a program either.
pub fn failed() {
    if NATIVE.swap(false, Ordering::Relaxed) {
        let ring = plugin().producer.ring();
        ring.end_execution(std::process::id(), false);
    }
    let lifeline = LEFT.swap(-1, Ordering::Relaxed);
    if lifeline >= 0 {
        // SAFETY: the descriptor is this module's own.
        unsafe { libc::close(lifeline) };
    }
}

/// The program that QEMU runs, which its command line names behind `-0 NAME`. QEMU 10.0 does not
/// export the function that says it (`qemu_plugin_path_to_binary`).
pub fn own_program() -> Option<CString> {
    let line = std::fs::read("/proc/self/cmdline").ok()?;
    let mut arguments = line.split(|&byte| byte == 0);
    arguments.find(|argument| *argument == b"-plugin")?;
    arguments.find(|argument| *argument == b"-0")?;
    CString::new(arguments.nth(1)?).ok()
}

/// Takes `LD_PRELOAD` out of an environment: it is meant for the program, and not for the emulator.
/// A value with a comma stays, because QEMU's option would cut it in two.
fn take_preload(environment: &mut Vec<CString>) -> Option<CString> {
    let is_meant = |entry: &CString| {
        entry.to_bytes().starts_with(b"LD_PRELOAD=") && !entry.to_bytes().contains(&b',')
    };
    let at = environment.iter().position(is_meant)?;
    Some(environment.remove(at))
}

/// Sets QEMU's own allocator up, and returns QEMU's options that leave the program what it has.
fn set_allocator(environment: &mut Vec<CString>) -> Vec<CString> {
    let settings = allocator::settings(|name| {
        let value = |entry: &CString| {
            let rest = entry.to_bytes().strip_prefix(name.as_bytes())?;
            rest.strip_prefix(b"=").map(<[u8]>::to_vec)
        };
        // Of several, programs find the first.
        let own = environment.iter().find_map(value);
        environment.retain(|entry| value(entry).is_none());
        own
    });
    let mut options = Vec::new();
    for setting in settings {
        environment.extend(CString::new(format!("{}={}", setting.name, setting.value)));
        options.extend(
            setting
                .option
                .into_iter()
                .filter_map(|part| CString::new(part).ok()),
        );
    }
    options
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let pointers = strings.iter().map(|string| string.as_ptr());
    pointers.chain(std::iter::once(std::ptr::null())).collect()
}
