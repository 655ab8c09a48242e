//! Handlers of signals, before which the program may have had its own.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::errno;

/// A handler that wants to know more than the signal's number.
pub type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Action of a signal before ours was installed.
pub struct Former {
    action: UnsafeCell<MaybeUninit<libc::sigaction>>,
    known: AtomicBool,
}

// SAFETY: `action` is written once, before `known` says so, and only read after that.
unsafe impl Sync for Former {}

impl Former {
    /// Not known yet.
    pub const fn new() -> Self {
        Self {
            action: UnsafeCell::new(MaybeUninit::uninit()),
            known: AtomicBool::new(false),
        }
    }

    /// Have `handler` called on `signal` from now on, with these flags more than it has to have. It blocks all other
    /// signals if `alone`, else what the former handler blocked. Once only.
    ///
    /// A handler that the program sets later wins.
    ///
    /// # Errors
    /// The system's number.
    pub fn replace(
        &self,
        signal: i32,
        handler: Handler,
        flags: i32,
        alone: bool,
    ) -> Result<(), i32> {
        // SAFETY: structures are initialized before they are used; nobody reads `action` yet. The handler has the
        // type that `SA_SIGINFO` asks for, and is never unloaded. Needed because signals are the system's.
        unsafe {
            let former = self.action.get().cast::<libc::sigaction>();
            if libc::sigaction(signal, core::ptr::null(), former) != 0 {
                return Err(errno());
            }
            self.known.store(true, Ordering::Release);
            let mut action = *former;
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | flags;
            if alone {
                libc::sigfillset(&raw mut action.sa_mask);
            } else {
                action.sa_flags |= (*former).sa_flags & libc::SA_NODEFER;
            }
            if libc::sigaction(signal, &raw const action, null_mut()) != 0 {
                return Err(errno());
            }
        }
        Ok(())
    }

    fn action(&self) -> Option<&libc::sigaction> {
        let known = self.known.load(Ordering::Acquire);
        // SAFETY: written before it became known.
        known.then(|| unsafe { &*self.action.get().cast::<libc::sigaction>() })
    }

    /// Call the former handler; `false` if there is none.
    pub fn call(
        &self,
        signal: i32,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) -> bool {
        let Some(action) = self.action() else {
            return false;
        };
        let handler = action.sa_sigaction;
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            return false;
        }
        // SAFETY: the address of a handler that somebody set with these flags.
        unsafe {
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                core::mem::transmute::<usize, Handler>(handler)(signal, info, context);
            } else {
                core::mem::transmute::<usize, extern "C" fn(i32)>(handler)(signal);
            }
        }
        true
    }

    /// Have the signal lead to what it led to before.
    pub fn restore(&self, signal: i32) {
        if let Some(action) = self.action() {
            // SAFETY: the system gave us this action.
            unsafe { libc::sigaction(signal, action, null_mut()) };
        }
    }

    /// Returns true if the signal was ignored.
    pub fn is_to_ignore(&self) -> bool {
        self.action()
            .is_some_and(|action| action.sa_sigaction == libc::SIG_IGN)
    }

    /// Returns true if the handler was to be called once.
    pub fn is_for_once(&self) -> bool {
        self.action()
            .is_some_and(|action| action.sa_flags & libc::SA_RESETHAND != 0)
    }
}

/// Have a signal end the process.
pub fn set_default(signal: i32) {
    // SAFETY: all fields are initialized: the system's own action, no flags, nothing blocked.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const action, null_mut());
    }
}
