//! Addresses of statics relative to the instruction.
//!
//! In position-independent code the compiler reaches a static through the global offset table: a
//! load, five of which lie on the path of a malloc. A library's own hidden symbols need no table.

/// A reference to a static of this library, without a load.
macro_rules! near {
    ($name:path: $type:ty) => {{
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let address: *const $type;
            // SAFETY: computes the address of a static, which lives for ever; `.hidden` says that
            // nobody outside of the link defines it. Needed because the compiler has no such mode
            // for a single symbol.
            unsafe {
                core::arch::asm!(
                    ".hidden {0}",
                    "lea {1}, [rip + {0}]",
                    sym $name,
                    out(reg) address,
                    options(pure, nomem, nostack, preserves_flags)
                );
                &*address
            }
        }
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        {
            let address: &'static $type = &$name;
            address
        }
    }};
}

pub(crate) use near;
