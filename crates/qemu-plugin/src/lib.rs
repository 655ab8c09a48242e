//! The QEMU plugin: observes a guest program and streams what it does into a ring.
//!
//! Two callbacks are hot, one per executed block and one per access. Each appends one word to the
//! chunk that its vCPU is filling; everything else (describing blocks, system calls, threads,
//! processes) happens rarely and may take its time. QEMU guarantees that all callbacks of one
//! vCPU run on that vCPU's own host thread, so a vCPU's state needs no synchronization.
//!
//! Arguments: `plugin=N,ring=N,lifeline=N`: descriptors of [`Handles`](contigua_program::descriptors::Handles);
//! `process=N`: which process of the run this is; `clock=N`, nanoseconds for each instruction on the clock that the program may ask;
//! `plan=PLAN`, a [`Plan`] in which everything is told where it is missing; `layout=LAYOUT`, a [`Layout`]; `processor=NAME`, `base=N` and `root=DIR`, QEMU's `-cpu`, `-B` and `-L` for programs that are started later; `executed`: the program was
//! executed by another one; `close=N`: the descriptor of its file, which is not the program's.

mod access;
mod api;
mod backing;
mod blocks;
mod clock;
mod exec;
mod got;
mod guest;
mod image;
mod keeper;
mod locking;
mod memory_files;
mod names;
mod near;
mod placement;
mod regions;
mod strings;
mod syscalls;
mod touched;
mod vcpu;
mod vectors;
mod zeroing;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use contigua_program::descriptors::Handles;
use contigua_program::layout::Layout;
use contigua_program::plan::Plan;
use contigua_program::ring::{Producer, Ring};
use contigua_program::syscall::Architecture;
use contigua_program::wire::{Event, ProcessId};

use api::{Info, PluginId};

/// State shared by all callbacks of this process.
struct Plugin {
    producer: Producer,
    architecture: Architecture,
    plan: Plan,
    layout: Layout,
    /// True if the files that are mapped are reported by name.
    tells_names: bool,
    /// Arguments for programs started later.
    arguments: exec::PluginArguments,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
/// Number of this process within the run; changes in a forked child.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The descriptor by which QEMU finds a program that has no path; -1 where there is none.
static PROGRAM_FILE: AtomicI32 = AtomicI32::new(-1);

fn plugin() -> &'static Plugin {
    PLUGIN
        .get()
        .expect("callbacks are registered after installation")
}

/// Says on standard error why observation cannot go on, and ends the program: a report of half a
/// program must not look like a whole one.
fn fail(reason: &str) -> ! {
    if let Some(plugin) = PLUGIN.get() {
        plugin.producer.ring().fail(reason);
    }
    eprintln!("contigua plugin: {reason}");
    std::process::exit(EXIT_PLUGIN_FAILED)
}

/// The exit status after [`fail`].
const EXIT_PLUGIN_FAILED: i32 = 125;

/// QEMU's entry point.
///
/// # Safety
/// Called by QEMU with its own description and `argc` NUL-terminated arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes `argc` valid strings that live during this call.
    let arguments =
        (0..usize::try_from(argc).unwrap_or(0)).map(|i| unsafe { CStr::from_ptr(*argv.add(i)) });
    let arguments: Vec<String> = arguments
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    // SAFETY: QEMU passes a valid description with a valid target name.
    let (info, target) = unsafe { (&*info, CStr::from_ptr((*info).target_name)) };
    let installed =
        api::check_version(info).and_then(|()| install(id, &target.to_string_lossy(), &arguments));
    match installed {
        Ok(()) => 0,
        Err(reason) => {
            if let Some(plugin) = PLUGIN.get() {
                plugin.producer.ring().fail(&reason);
            }
            eprintln!("contigua plugin: {reason}");
            1
        }
    }
}

/// Reads an argument that may be missing.
fn parsed<T>(key: &str, value: Result<&str, String>) -> Result<Option<T>, String>
where
    T: FromStr<Err: Display>,
{
    let parsed = value.ok().map(str::parse).transpose();
    parsed.map_err(|error| format!("argument {key}=: {error}"))
}

fn install(id: PluginId, target: &str, arguments: &[String]) -> Result<(), String> {
    let value = |key: &str| {
        let found = arguments
            .iter()
            .find_map(|a| a.strip_prefix(key)?.strip_prefix('='));
        found.ok_or_else(|| {
            format!("argument {key}= is missing; start programs with `contigua run`")
        })
    };
    let number = |key: &str| -> Result<u32, String> {
        let parsed = value(key)?.parse();
        parsed.map_err(|_| format!("argument {key}= takes a number"))
    };
    let names = Handles {
        plugin: "plugin",
        ring: "ring",
        lifeline: "lifeline",
    };
    let handles = names.try_map(|key| number(key).map(u32::cast_signed))?;
    let process = number("process")?;
    let architecture = Architecture::ALL
        .into_iter()
        .find(|architecture| architecture.name() == target)
        .ok_or_else(|| format!("guest architecture {target} is not supported"))?;
    if handles.ring < 0 {
        return Err("argument ring= takes a descriptor".to_owned());
    }
    let _near = near::Room::keep();
    // SAFETY: who started this process passes the descriptor; a wrong number is an error.
    let ring = unsafe { BorrowedFd::borrow_raw(handles.ring) };
    let producer = Producer::new(Ring::open(ring).map_err(|e| e.to_string())?);
    let clock: Option<u64> = parsed("clock", value("clock"))?;
    clock::set_rate(clock);
    let plan: Plan = parsed("plan", value("plan"))?.unwrap_or_default();
    let layout: Layout = parsed("layout", value("layout"))?.unwrap_or_default();
    let base: u64 = parsed("base", value("base"))?.unwrap_or_default();
    if plan.goes_forward() {
        touched::reserve()?;
    }
    let tells_names = value("names").is_ok();
    PROCESS.store(process, Ordering::Relaxed);
    zeroing::choose_block(value("processor").ok());
    let plugin = Plugin {
        producer,
        architecture,
        arguments: exec::PluginArguments::new(
            clock,
            &plan,
            layout,
            value("processor").ok(),
            value("base").ok(),
            value("root").ok(),
            tells_names,
        ),
        plan,
        layout,
        tells_names,
    };
    PLUGIN
        .set(plugin)
        .map_err(|_| "installed twice".to_owned())?;
    keeper::start(Some(handles))?;
    if value("executed").is_ok() {
        let ring = self::plugin().producer.ring();
        ring.end_execution(std::process::id(), true);
    }
    if let Ok(program) = number("close") {
        PROGRAM_FILE.store(program.cast_signed(), Ordering::Relaxed);
    }
    image::remember_emulator_mappings();
    placement::install(architecture, layout, process, base)?;
    access::learn_memory_information();
    // SAFETY: the callbacks have the signatures that the interface asks for and stay loaded as
    // long as QEMU does; the handlers for fork run in QEMU's own process.
    unsafe {
        api::qemu_plugin_register_vcpu_init_cb(id, on_thread_start);
        api::qemu_plugin_register_vcpu_exit_cb(id, on_thread_end);
        api::qemu_plugin_register_vcpu_tb_trans_cb(id, blocks::on_translate);
        api::qemu_plugin_register_vcpu_syscall_cb(id, syscalls::on_enter);
        api::qemu_plugin_register_vcpu_syscall_ret_cb(id, syscalls::on_return);
        api::qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
        libc::pthread_atfork(
            Some(syscalls::before_fork),
            Some(syscalls::after_fork_in_parent),
            Some(syscalls::after_fork_in_child),
        );
    }
    Ok(())
}

extern "C" fn on_thread_start(_: PluginId, vcpu: c_uint) {
    // QEMU has opened it by its path before it made the first vCPU.
    let program = PROGRAM_FILE.swap(-1, Ordering::Relaxed);
    if program >= 0 {
        // SAFETY: the descriptor was made for QEMU, before the guest began.
        unsafe { libc::close(program) };
    }
    let process = ProcessId(PROCESS.load(Ordering::Relaxed));
    vcpu::start(vcpu);
    vcpu::append_event(vcpu, &Event::ThreadStart { process });
    vcpu::enter_guest(vcpu);
}

extern "C" fn on_thread_end(_: PluginId, vcpu: c_uint) {
    if !vcpu::leave_guest(vcpu) {
        return;
    }
    vcpu::append_event(vcpu, &Event::ThreadEnd);
    vcpu::end(vcpu);
}

/// QEMU has taken all vCPUs out of instrumented code before it calls this, but not out of system
/// calls.
extern "C" fn on_exit(_: PluginId, _: *mut c_void) {
    vcpu::publish_all();
}
