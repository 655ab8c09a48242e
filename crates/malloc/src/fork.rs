//! `fork` while other threads allocate: the forking thread takes every lock first, so that the
//! child, which has only that thread, finds all structures whole.
//!
//! Caches of CPUs need nothing: a sequence that another thread was in has either stored its one
//! word or has not. What other threads had in hand is lost to the child, as their stacks are.

use crate::classes::COUNT;
use crate::lock::{self, Lock};
use crate::{
    background, central, dump, front, guarded, harden, metadata, pages, primary, profile,
    telemetry, tls, transfer, unwind,
};

/// Visit every lock, outer ones first.
fn each_lock(mut visit: impl FnMut(&'static Lock)) {
    visit(dump::lock());
    visit(telemetry::lock());
    visit(profile::lock());
    visit(front::lock());
    for class in 0..COUNT {
        visit(transfer::lock(class));
    }
    for class in 0..COUNT {
        visit(central::lock(class));
    }
    visit(harden::lock());
    visit(guarded::lock());
    pages::locks().into_iter().for_each(&mut visit);
    visit(metadata::lock());
}

unsafe extern "C" fn prepare() {
    unwind::before_fork();
    each_lock(Lock::hold);
    primary::before_fork();
    lock::set_forking(tls::thread_pointer());
}

unsafe extern "C" fn parent() {
    primary::in_parent();
    lock::set_forking(0);
    each_lock(Lock::unhold);
    unwind::after_fork();
}

unsafe extern "C" fn child() {
    if primary::in_child() {
        front::write_canaries();
    }
    lock::set_forking(0);
    each_lock(Lock::reset);
    unwind::in_child();
    front::after_fork();
    background::after_fork();
    telemetry::after_fork();
    profile::after_fork();
    dump::after_fork();
}

/// Register the handlers: as early as possible, because handlers that were registered before run
/// outside of ours and may allocate.
pub fn register() {
    // Miri has no fork.
    if cfg!(miri) {
        return;
    }
    // SAFETY: the handlers are functions of this library, which is never unloaded. Needed because
    // the C library gives no other notice of a fork.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}
