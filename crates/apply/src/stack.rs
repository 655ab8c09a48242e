//! Return addresses on the stack.

use core::ptr::null_mut;

const PAGE: usize = 4096;
/// Bytes of the longest call instruction.
const CALL_BYTES: usize = 7;
const WORD: usize = size_of::<usize>();
/// Pages of the stack that are searched for one caller's caller.
const MOST_PAGES: usize = 16;

/// Looks for return addresses behind calls, innermost first, upward from a stack pointer. Only live frames lie
/// there, so that return addresses in this order are those of the calls.
pub fn has_calls(stack: usize, calls: impl Iterator<Item = usize>) -> bool {
    let mut at = stack;
    let mut readable_end = 0;
    for call in calls {
        let limit = at.saturating_add(MOST_PAGES * PAGE);
        loop {
            if at >= limit {
                return false;
            }
            if at >= readable_end {
                if !is_readable(at) {
                    return false;
                }
                readable_end = at / PAGE * PAGE + PAGE;
            }
            // SAFETY: aligned, and the kernel could read the page.
            let word = unsafe { core::ptr::read_volatile(at as *const usize) };
            at += WORD;
            if returns_to(word, call) {
                break;
            }
        }
    }
    true
}

/// Returns true for the return address of a call instruction at `call`.
pub fn returns_to(address: usize, call: usize) -> bool {
    (1..=CALL_BYTES).contains(&address.wrapping_sub(call))
}

/// Returns true if a word can be read. `rt_sigprocmask` reads the set before it refuses the impossible request,
/// and changes nothing.
fn is_readable(address: usize) -> bool {
    let before = crate::maps::errno();
    // SAFETY: the kernel checks the address; `!0` is no request, so no mask changes.
    let refused = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            !0_i32,
            address / WORD * WORD,
            null_mut::<u8>(),
            8_usize,
        )
    };
    let readable = refused == 0 || crate::maps::errno() == libc::EINVAL;
    crate::maps::set_errno(before);
    readable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_in_order_only() {
        let words: [usize; 6] = [1, 0x1005, 7, 0x2002, 9, 0x3007];
        let stack = words.as_ptr() as usize;
        let has = |calls: &[usize]| has_calls(stack, calls.iter().copied());
        assert!(has(&[]));
        assert!(has(&[0x1000, 0x2000, 0x3000]));
        assert!(has(&[0x1000, 0x3000]));
        assert!(!has(&[0x2000, 0x1000]));
        assert!(!has(&[0x1005]), "the call itself is no return address");
        assert!(!has(&[0x0fff_0000]));
    }

    #[test]
    fn the_end_of_the_stack_is_no_fault() {
        let page = crate::maps::plain(2 * PAGE).map() as usize;
        crate::maps::unmap(page + PAGE, PAGE);
        assert!(!has_calls(page + PAGE - WORD, [0x1000].into_iter()));
        assert!(!is_readable(page + PAGE));
        crate::maps::unmap(page, PAGE);
    }
}
