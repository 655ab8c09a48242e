//! System calls, threads and processes.

use std::cell::Cell;
use std::ffi::c_uint;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use contigua_program::descriptors::Handles;
use contigua_program::exclusion::Turns;
use contigua_program::syscall::{
    Call, Known, MAP_STACK, STACK_MAY_BE_HUGE, Waited, may_kill, wakes,
};
use contigua_program::wire::{Event, ProcessId, Syscall};

use crate::api::PluginId;
use crate::{
    PROCESS, clock, exec, guest, keeper, locking, memory_files, names, placement, plugin, touched,
    vcpu, vectors, zeroing,
};

/// Flags of `clone` (`include/uapi/linux/sched.h`).
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;

/// `munmap` fails where the address is no multiple of this.
const PAGE: u64 = 4096;

/// The call that this host thread is in. A vCPU has a host thread of its own.
#[derive(Clone, Copy, Default)]
struct Current {
    vcpu: c_uint,
    arguments: [u64; 6],
    /// The number given to the process that this call is making.
    child: Option<u32>,
    /// Turn among the calls that change mappings: true if it is alone; `None` if it needs none.
    turn: Option<bool>,
}

thread_local! {
    static CURRENT: Cell<Current> = const {
        Cell::new(Current { vcpu: 0, arguments: [0; 6], child: None, turn: None })
    };
}

fn known(number: i64) -> Option<Known> {
    Known::of(plugin().architecture, u16::try_from(number).ok()?)
}

/// QEMU is about to perform a system call.
pub extern "C" fn on_enter(
    _: PluginId,
    index: c_uint,
    number: i64,
    a0: u64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    _: u64,
    _: u64,
) {
    placement::enter(known(number), &[a0, a1, a2, a3, a4, a5]);
    if !vcpu::leave_guest(index) {
        return;
    }
    zeroing::check_place(index, number, &[a0, a1, a2, a3, a4, a5]);
    locking::keep_from(plugin().architecture, number);
    if may_kill(plugin().architecture, number, [a0, a1, a2, a3]) {
        plugin().producer.ring().note_kill();
    }
    let mut current = Current {
        vcpu: index,
        arguments: [a0, a1, a2, a3, a4, a5],
        child: None,
        turn: None,
    };
    match known(number) {
        Some(Known::Exit | Known::ExitGroup) => {
            if matches!(known(number), Some(Known::ExitGroup)) {
                vcpu::leave_functions(index);
            }
            append_syscall(index, number, current.arguments, 0);
            if matches!(known(number), Some(Known::ExitGroup)) {
                let process = ProcessId(PROCESS.load(Ordering::Relaxed));
                vcpu::append_event(index, &Event::ProcessEnd { process });
            }
        }
        // Once the kernel has unmapped a range, another thread can be given it: the event must come
        // before that thread's.
        Some(Known::Munmap) if a0.is_multiple_of(PAGE) && a1 > 0 => {
            append_syscall(index, number, current.arguments, 0);
        }
        Some(Known::Shmdt) => append_syscall(index, number, current.arguments, 0),
        // Who is woken goes on at once: what woke it has to be there by then.
        Some(Known::Futex) if wakes(a1) => append_syscall(index, number, current.arguments, 0),
        Some(call) if makes_process(call, a0) => {
            let child = plugin().producer.ring().new_process();
            current.child = Some(child);
            vcpu::append_event(
                index,
                &Event::Fork {
                    child: ProcessId(child),
                },
            );
        }
        _ => {}
    }
    current.turn = turn_of(known(number));
    CURRENT.set(current);
    // Whatever the call waits for or tells others comes after what was executed before it.
    vcpu::publish(index);
    match known(number) {
        Some(Known::Execve) => exec::follow(index, a0, a1, a2),
        Some(Known::Execveat) => exec::follow_at(index, a0, a1, a2, a3, a4),
        _ => {}
    }
    if let Some(alone) = current.turn {
        TURNS.take(alone);
    }
}

/// Calls that are given addresses, and those that take some away and are told afterwards.
static TURNS: Turns = Turns::new();

/// Returns true if a call has to be alone; `None` when it needs no turn.
const fn turn_of(call: Option<Known>) -> Option<bool> {
    match call {
        Some(Known::Mremap | Known::Brk) => Some(true),
        Some(Known::Mmap | Known::Shmat) => Some(false),
        _ => None,
    }
}

/// QEMU has performed a system call.
pub extern "C" fn on_return(_: PluginId, index: c_uint, number: i64, result: i64) {
    let current = CURRENT.take();
    if vcpu::is_outside_guest(index) {
        // The client's first request ends the call in which its server waited.
        if let Some(cue) = plugin().producer.ring().take_asked() {
            vcpu::mark(index, cue);
        }
        tell_return(index, number, result, &current);
        learn_end(number, result, current.arguments);
        vcpu::enter_guest(index);
    }
    if let Some(alone) = current.turn {
        TURNS.give_back(alone);
    }
}

fn tell_return(index: c_uint, number: i64, result: i64, current: &Current) {
    if let Some(child) = current.child
        && result < 0
    {
        let child = ProcessId(child);
        vcpu::append_event(index, &Event::ForkFailed { child });
    }
    match known(number) {
        Some(call) if call.returns_process_id() => {
            append_syscall(index, number, current.arguments, result.signum());
        }
        None if clock::answers(plugin().architecture, number, &current.arguments) => {}
        // Reported on entry.
        Some(Known::Munmap | Known::Shmdt) => {}
        Some(Known::Futex) if wakes(current.arguments[1]) => {}
        Some(call) => {
            if matches!(call, Known::Execve | Known::Execveat) {
                exec::failed();
            }
            append_syscall(index, number, current.arguments, result);
            if call.changes_mappings() {
                // Before this thread can tell another one what it has been given.
                vcpu::publish(index);
            }
        }
        None => append_syscall(index, number, [0; 6], 0),
    }
}

/// Learns with the guest how a child ended.
fn learn_end(number: i64, result: i64, arguments: [u64; 6]) {
    let [a0, a1, a2, ..] = arguments;
    let waited = Waited::of(plugin().architecture, number, [a0, a1, a2]);
    let Some(waited) = waited.filter(|_| result >= 0) else {
        return;
    };
    if let Some(signal) = waited.signal(guest::word)
        && let Some(child) = waited.child(result, guest::word)
    {
        plugin().producer.ring().note_killed_child(child, signal);
    }
}

/// Descriptors that a child that is being made will keep. A process makes one at a time: QEMU locks
/// others out.
static FOR_CHILD: Mutex<Option<Handles<OwnedFd>>> = Mutex::new(None);

fn for_child() -> MutexGuard<'static, Option<Handles<OwnedFd>>> {
    FOR_CHILD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs in a process that is about to fork. The child holds its handles from its first moment on,
/// so that the run cannot take itself for ended in between.
pub extern "C" fn before_fork() {
    if CURRENT.get().child.is_some() {
        // Without them (there is no /proc) the child runs, but cannot execute another program.
        *for_child() = keeper::take().ok();
        touched::forget_all();
    }
}

/// Runs in a process that has forked, or failed to.
pub extern "C" fn after_fork_in_parent() {
    *for_child() = None;
}

/// Runs in a forked child before the guest goes on there.
pub extern "C" fn after_fork_in_child() {
    let current = CURRENT.get();
    let Some(child) = current.child else {
        return;
    };
    CURRENT.set(Current {
        child: None,
        ..current
    });
    PROCESS.store(child, Ordering::Relaxed);
    TURNS.forget();
    let handles = for_child().take();
    let handles = handles.map(|handles| Handles {
        plugin: handles.plugin.into_raw_fd(),
        ring: handles.ring.into_raw_fd(),
        lifeline: handles.lifeline.into_raw_fd(),
    });
    if let Err(reason) = keeper::start(handles) {
        crate::fail(&reason);
    }
    vcpu::start_after_fork(current.vcpu);
    let process = ProcessId(child);
    vcpu::append_event(current.vcpu, &Event::ThreadStart { process });
    names::tell_generated(current.vcpu);
}

/// Returns true if a call copies the process, rather than starting a thread in it. QEMU treats
/// `vfork` as `fork`.
fn makes_process(call: Known, flags: u64) -> bool {
    match call {
        Known::Fork | Known::Vfork => true,
        Known::Clone => flags & CLONE_VM == 0 || flags & CLONE_VFORK != 0,
        _ => false,
    }
}

fn append_syscall(index: c_uint, number: i64, mut arguments: [u64; 6], result: i64) {
    let is_stack = known(number) == Some(Known::Mmap) && arguments[3] & MAP_STACK != 0;
    if is_stack && plugin().layout.linux.stacks_may_be_huge() {
        arguments[3] |= STACK_MAY_BE_HUGE;
    }
    let syscall = Syscall {
        number: u16::try_from(number).unwrap_or(u16::MAX),
        arguments,
        result,
    };
    let told = vectors::told(memory_files::told(syscall));
    touched::forget_changed(&Call::of(plugin().architecture, &told));
    vectors::tell(index, &told);
    vcpu::append_event(index, &Event::Syscall(told));
    names::tell_mmap(index, &syscall);
}
