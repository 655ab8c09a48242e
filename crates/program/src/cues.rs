//! Markers, calls and returns in code of x86-64, which begin and end regions.
//!
//! A marker is `xchg %bx, %bx`, which does nothing, after its command was put into `%rax`: the
//! convention of the simulator Sniper (`SimMagic0` in its `include/sim_api.h`), which `contigua.h`
//! keeps. Registers are not asked for: the command is read from the code before the marker.

/// `xchg %bx, %bx`.
const MARKER: [u8; 3] = [0x66, 0x87, 0xdb];
/// Commands of Sniper's: `SIM_CMD_ROI_TOGGLE`, `SIM_CMD_ROI_START` and `SIM_CMD_ROI_END`.
const TOGGLE: u64 = 0;
const START: u64 = 1;
const END: u64 = 2;
/// Instructions before a marker among which its command is: arguments are loaded in between.
const NEAR: usize = 4;

/// Command of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A region begins.
    Begin,
    /// It ends.
    End,
    /// It begins, or ends if it has begun.
    Toggle,
    /// Something that has nothing to do with regions.
    Other,
    /// Its command is not in the code before it.
    Unknown,
}

/// The markers of a block with instructions of these lengths, in its order.
pub fn markers<'a>(lengths: &'a [u8], bytes: &'a [u8]) -> impl Iterator<Item = Marker> + 'a {
    let mut begin = 0;
    let begins = lengths.iter().map(move |&length| {
        begin += usize::from(length);
        begin - usize::from(length)
    });
    let found = begins.enumerate().filter_map(|(index, begin)| {
        let is_marker = lengths[index] == 3 && bytes.get(begin..begin + 3)? == MARKER;
        is_marker.then_some((index, begin))
    });
    found.map(|(index, begin)| command(&lengths[..index], bytes.get(..begin).unwrap_or_default()))
}

/// Returns the command of the marker behind these instructions.
fn command(lengths: &[u8], bytes: &[u8]) -> Marker {
    let mut end = bytes.len();
    let mut before = lengths.iter().rev().map(|&length| {
        let begin = end.saturating_sub(usize::from(length));
        let code = &bytes[begin..end];
        end = begin;
        code
    });
    let mut command = None;
    for _ in 0..NEAR {
        match before.next() {
            Some([0xb8, value @ ..] | [0x48, 0xc7, 0xc0, value @ ..]) => {
                command = number(value);
                break;
            }
            Some([0x31 | 0x33, 0xc0]) => {
                command = Some(0);
                break;
            }
            // Without optimization, through the stack: the same operand was stored to before.
            Some([0x48, 0x8b, operand @ ..]) if is_rax(operand) => {
                let stored = before.take(NEAR).find_map(|code| {
                    let rest = code.strip_prefix(&[0x48, 0xc7])?;
                    number(rest.strip_prefix(operand)?)
                });
                command = stored;
                break;
            }
            _ => {}
        }
    }
    match command {
        Some(TOGGLE) => Marker::Toggle,
        Some(START) => Marker::Begin,
        Some(END) => Marker::End,
        Some(_) => Marker::Other,
        None => Marker::Unknown,
    }
}

/// Returns true if an operand in memory (`ModRM` and what follows) has the register `%rax`.
fn is_rax(operand: &[u8]) -> bool {
    operand
        .first()
        .is_some_and(|modrm| modrm & 0x38 == 0 && modrm >> 6 != 3)
}

fn number(value: &[u8]) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(value.try_into().ok()?)))
}

/// Effect of an instruction on the stack of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It stores where to return to.
    Call,
    /// It loads that.
    Return,
}

/// Returns the transfer of a near call or near return.
#[must_use]
pub fn transfer(code: &[u8]) -> Option<Transfer> {
    let is_prefix =
        |byte: &&u8| matches!(byte, 0x2e | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3);
    let prefixes = code.iter().take_while(is_prefix).count();
    match code[prefixes..] {
        [0xe8, ..] => Some(Transfer::Call),
        [0xff, modrm, ..] if modrm >> 3 & 7 == 2 => Some(Transfer::Call),
        [0xc3] | [0xc2, _, _] => Some(Transfer::Return),
        _ => None,
    }
}

/// The calls of a thread, by the addresses on its stack that have where they return to.
#[derive(Debug, Default)]
pub struct Calls {
    stack: Vec<u64>,
    /// Of the call that is followed.
    followed: Option<u64>,
}

impl Calls {
    /// A frame is left without a return by `longjmp` and the like, within a stack of this size: what
    /// lies further away is another stack.
    const STACK: u64 = 8 << 20;

    /// A thread's that has called nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stack: Vec::new(),
            followed: None,
        }
    }

    /// The function of interest is entered; whether that call is to be followed: another one is not
    /// under way.
    pub fn enter(&mut self) -> bool {
        let is_outermost = self.followed.is_none();
        if is_outermost {
            self.followed = Some(self.stack.last().copied().unwrap_or(u64::MAX));
        }
        is_outermost
    }

    /// A call stores its return address at `at`; whether the followed call is over.
    pub fn call(&mut self, at: u64) -> bool {
        self.pop(at);
        let ends = self.is_behind(at);
        self.stack.push(at);
        ends
    }

    /// A return loads its address from `at`; whether the followed call is over.
    pub fn ret(&mut self, at: u64) -> bool {
        self.pop(at);
        self.is_behind(at)
    }

    /// Forgets the followed call; whether there was one.
    pub fn leave(&mut self) -> bool {
        self.followed.take().is_some()
    }

    fn pop(&mut self, at: u64) {
        while self.stack.last().is_some_and(|&top| top <= at) {
            self.stack.pop();
        }
    }

    /// Returns true if the frame of the followed call lies here or below.
    fn is_behind(&mut self, at: u64) -> bool {
        let is_behind = self
            .followed
            .is_some_and(|slot| at.checked_sub(slot).is_some_and(|away| away < Self::STACK));
        is_behind && self.leave()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The markers of a block of these instructions.
    fn markers_of(code: &[&[u8]]) -> Vec<Marker> {
        let lengths: Vec<u8> = code.iter().map(|code| code.len() as u8).collect();
        markers(&lengths, &code.concat()).collect()
    }

    const XCHG: &[u8] = &MARKER;
    const NOP: &[u8] = &[0x90];

    #[test]
    fn commands_are_read_as_compilers_write_them() {
        let start: &[u8] = &[0xb8, 1, 0, 0, 0];
        let long_end: &[u8] = &[0x48, 0xc7, 0xc0, 2, 0, 0, 0];
        let toggle: &[u8] = &[0x31, 0xc0];
        let other: &[u8] = &[0xb8, 4, 0, 0, 0];
        // movq $1, -24(%rbp); mov -24(%rbp), %rax
        let store: &[u8] = &[0x48, 0xc7, 0x45, 0xe8, 1, 0, 0, 0];
        let elsewhere: &[u8] = &[0x48, 0xc7, 0x45, 0xe0, 1, 0, 0, 0];
        let load: &[u8] = &[0x48, 0x8b, 0x45, 0xe8];
        let into_rdx: &[u8] = &[0x48, 0x8b, 0x55, 0xe8];
        for (code, expected) in [
            (&[start, XCHG][..], &[Marker::Begin][..]),
            (&[NOP, long_end, XCHG, NOP], &[Marker::End]),
            (&[toggle, XCHG], &[Marker::Toggle]),
            (&[other, XCHG], &[Marker::Other]),
            (&[start, NOP, into_rdx, XCHG], &[Marker::Begin]),
            (&[store, load, XCHG], &[Marker::Begin]),
            (&[elsewhere, load, XCHG], &[Marker::Unknown]),
            (&[XCHG], &[Marker::Unknown]),
            (&[start, NOP, NOP, NOP, NOP, XCHG], &[Marker::Unknown]),
            (
                &[start, XCHG, NOP, long_end, XCHG],
                &[Marker::Begin, Marker::End],
            ),
            (&[start, NOP], &[]),
            // xchg %ax, %bx
            (&[start, &[0x66, 0x87, 0xd8]], &[]),
        ] {
            assert_eq!(markers_of(code), expected, "{code:x?}");
        }
    }

    #[test]
    fn calls_and_returns_are_told_from_others() {
        for code in [
            &[0xe8, 0, 0, 0, 0][..],
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd2],
            &[0xff, 0x15, 0, 0, 0, 0],
            &[0xff, 0x50, 8],
        ] {
            assert_eq!(transfer(code), Some(Transfer::Call), "{code:x?}");
        }
        for code in [&[0xc3][..], &[0xf3, 0xc3], &[0xc2, 8, 0]] {
            assert_eq!(transfer(code), Some(Transfer::Return), "{code:x?}");
        }
        // jmp *%rax, push, jmp, nothing
        for code in [
            &[0xff, 0xe0][..],
            &[0xff, 0x30],
            &[0xe9, 0, 0, 0, 0],
            &[],
            &[0x40],
        ] {
            assert_eq!(transfer(code), None, "{code:x?}");
        }
    }

    #[test]
    fn the_outermost_call_is_followed_to_its_return() {
        let mut calls = Calls::new();
        assert!(!calls.call(1000));
        assert!(calls.enter());
        // It calls itself, and others.
        assert!(!calls.call(900));
        assert!(!calls.enter());
        assert!(!calls.ret(900));
        assert!(!calls.call(800));
        assert!(!calls.ret(800));
        assert!(calls.ret(1000));
        assert!(!calls.ret(1000));
        // Again, left by a jump to a frame above, which calls something else.
        assert!(!calls.call(1000));
        assert!(calls.enter());
        assert!(!calls.call(900));
        assert!(calls.call(1000));
        // A handler on another stack says nothing of it.
        assert!(calls.enter());
        assert!(!calls.ret(1000 + Calls::STACK));
        assert!(calls.leave() && !calls.leave());
    }

    #[test]
    fn a_call_through_a_stub_returns_to_the_caller() {
        let mut calls = Calls::new();
        assert!(!calls.call(1000));
        // The stub's resolver calls others, and jumps.
        assert!(!calls.call(700));
        assert!(!calls.ret(700));
        assert!(calls.enter());
        assert!(!calls.call(700));
        assert!(!calls.ret(700));
        assert!(calls.ret(1000));
    }

    /// A program of calls and returns; the function of interest is 0.
    fn any_program() -> impl Strategy<Value = Vec<Option<u8>>> {
        proptest::collection::vec(proptest::option::weighted(0.5, 0..4_u8), 0..200)
    }

    proptest! {
        #[test]
        fn a_followed_call_is_what_a_list_of_frames_says(program in any_program()) {
            let mut calls = Calls::new();
            let mut frames: Vec<u8> = Vec::new();
            let mut inside = false;
            let slot = |depth: usize| 100_000 - 16 * depth as u64;
            for step in program {
                match step {
                    Some(function) => {
                        frames.push(function);
                        prop_assert!(!calls.call(slot(frames.len())));
                        if function == 0 {
                            prop_assert_eq!(calls.enter(), !inside);
                            inside = true;
                        }
                    }
                    None if frames.is_empty() => {}
                    None => {
                        let ended = calls.ret(slot(frames.len()));
                        frames.pop();
                        let still = frames.contains(&0);
                        prop_assert_eq!(ended, inside && !still);
                        inside = still;
                    }
                }
            }
        }

        #[test]
        fn arbitrary_code_never_panics(
            lengths in proptest::collection::vec(0..=15_u8, 0..20),
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = markers(&lengths, &bytes).count();
            let _ = transfer(&bytes);
        }
    }
}
