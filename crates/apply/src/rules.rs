//! Rules of an advice, as the environment passes them.
//!
//! Fields are separated by `;`: the version of the form (1); the program; the build ids of the objects that
//! rules name, separated by `,`; and each rule. The program is its build id in hexadecimal digits or, where it
//! has none, `=` and the hexadecimal digits of its path. A rule is
//!
//! * `m:BYTES:ORDER:CALLERS`: private memory of no file, of BYTES bytes in whole pages, mapped by CALLERS: ORDER
//!   is 1 for the first such mapping of a process, 0 for each. CALLERS are call instructions, innermost first,
//!   separated by `,`, each as `OBJECT+OFFSET`: an index into the objects and an offset in the file, in
//!   hexadecimal digits.
//! * `c`: the program's code.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::stack;

/// Variable with the rules.
pub const VARIABLE: &CStr = c"CONTIGUA_APPLY";
/// Rules that an advice may have.
pub const MAX_RULES: usize = 64;
/// Callers that a rule may have.
pub const MAX_CALLERS: usize = 4;
/// Objects that rules may name.
pub const MAX_OBJECTS: usize = 16;
/// Bytes of a build id.
pub const MAX_BUILD_ID: usize = 32;
/// Bytes of a program's path.
pub const MAX_PATH: usize = 1024;

/// Bytes with a length.
#[derive(Clone, Copy)]
pub struct Short<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Short<N> {
    const EMPTY: Self = Self {
        bytes: [0; N],
        length: 0,
    };

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn from_hexadecimal(text: &[u8]) -> Option<Self> {
        let mut found = Self::EMPTY;
        if text.is_empty() || text.len() > 2 * N || !text.len().is_multiple_of(2) {
            return None;
        }
        for pair in text.chunks_exact(2) {
            found.bytes[found.length] = number(pair, 16)? as u8;
            found.length += 1;
        }
        Some(found)
    }
}

/// A program, as rules name it.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one, and nothing here allocates"
)]
pub enum Identity {
    /// By its build id.
    BuildId(Short<MAX_BUILD_ID>),
    /// By its path.
    Path(Short<MAX_PATH>),
}

struct Caller {
    object: usize,
    offset: u64,
    /// Its address; 0 while its object is not loaded.
    address: AtomicUsize,
}

struct Rule {
    is_code: bool,
    bytes: u64,
    order: u64,
    callers: [Caller; MAX_CALLERS],
    caller_count: usize,
    /// Mappings that it described.
    seen: AtomicU64,
}

/// Rules of a process.
pub struct Rules {
    /// The program that they are for.
    pub program: Identity,
    objects: [Short<MAX_BUILD_ID>; MAX_OBJECTS],
    object_count: usize,
    is_loaded: [AtomicBool; MAX_OBJECTS],
    list: [Rule; MAX_RULES],
    count: usize,
}

impl Rules {
    /// No rules.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            program: Identity::Path(Short::EMPTY),
            objects: [Short::EMPTY; MAX_OBJECTS],
            object_count: 0,
            is_loaded: [const { AtomicBool::new(false) }; MAX_OBJECTS],
            list: [const { Rule::none() }; MAX_RULES],
            count: 0,
        }
    }

    /// Reads the variable; `None` where its form is another one. Rules that were read until then stay unused:
    /// callers drop them.
    pub fn read(&mut self, text: &[u8]) -> Option<()> {
        let mut fields = text.split(|&byte| byte == b';');
        if fields.next()? != b"1" {
            return None;
        }
        let program = fields.next()?;
        self.program = match program.strip_prefix(b"=") {
            Some(path) => Identity::Path(Short::from_hexadecimal(path)?),
            None => Identity::BuildId(Short::from_hexadecimal(program)?),
        };
        let objects = fields.next()?;
        for id in objects
            .split(|&byte| byte == b',')
            .filter(|id| !id.is_empty())
        {
            *self.objects.get_mut(self.object_count)? = Short::from_hexadecimal(id)?;
            self.object_count += 1;
        }
        for text in fields {
            let rule = self.list.get_mut(self.count)?;
            rule.read(text)?;
            let callers = &rule.callers[..rule.caller_count];
            if callers
                .iter()
                .any(|caller| caller.object >= self.object_count)
            {
                return None;
            }
            self.count += 1;
        }
        Some(())
    }

    /// The rule for the program's code.
    pub fn code(&self) -> Option<usize> {
        self.list[..self.count].iter().position(|rule| rule.is_code)
    }

    /// The object with a build id.
    pub fn object(&self, id: &[u8]) -> Option<usize> {
        let objects = &self.objects[..self.object_count];
        objects.iter().position(|object| object.bytes() == id)
    }

    /// An object is loaded; `address` knows where its file's bytes are.
    pub fn loaded(&self, object: usize, address: impl Fn(u64) -> Option<usize>) {
        for rule in &self.list[..self.count] {
            for caller in &rule.callers[..rule.caller_count] {
                if caller.object == object {
                    let address = address(caller.offset).unwrap_or(0);
                    caller.address.store(address, Ordering::Relaxed);
                }
            }
        }
        self.is_loaded[object].store(true, Ordering::Relaxed);
    }

    /// The rule for a mapping that is about to be made by a call that returns to `caller`; `bytes` is `None` for
    /// one that no rule describes. Each rule that describes it counts it. `load` finds the object of an address.
    pub fn find(
        &self,
        bytes: Option<u64>,
        caller: usize,
        stack: usize,
        load: fn(&Self, usize),
    ) -> Option<usize> {
        let bytes = bytes?;
        let mut found = None;
        for (index, rule) in self.list[..self.count].iter().enumerate() {
            if !rule.is_code && rule.bytes == bytes && self.is_called(rule, caller, stack, load) {
                let seen = 1 + rule.seen.fetch_add(1, Ordering::Relaxed);
                if rule.order == 0 || rule.order == seen {
                    found = found.or(Some(index));
                }
            }
        }
        found
    }

    fn is_called(&self, rule: &Rule, caller: usize, stack: usize, load: fn(&Self, usize)) -> bool {
        let Some((first, outer)) = rule.callers[..rule.caller_count].split_first() else {
            return true;
        };
        if !self.is_loaded[first.object].load(Ordering::Relaxed) {
            load(self, caller);
        }
        let calls = outer.iter().map(|of| of.address.load(Ordering::Relaxed));
        stack::returns_to(caller, first.address.load(Ordering::Relaxed))
            && calls.clone().all(|call| call != 0)
            && stack::has_calls(stack, calls)
    }
}

impl Rule {
    const fn none() -> Self {
        Self {
            is_code: false,
            bytes: 0,
            order: 0,
            callers: [const {
                Caller {
                    object: 0,
                    offset: 0,
                    address: AtomicUsize::new(0),
                }
            }; MAX_CALLERS],
            caller_count: 0,
            seen: AtomicU64::new(0),
        }
    }

    fn read(&mut self, text: &[u8]) -> Option<()> {
        let mut parts = text.split(|&byte| byte == b':');
        self.is_code = match parts.next()? {
            b"c" => true,
            b"m" => false,
            _ => return None,
        };
        if self.is_code {
            return parts.next().is_none().then_some(());
        }
        self.bytes = number(parts.next()?, 10)?;
        self.order = number(parts.next()?, 10)?;
        let callers = parts.next()?;
        for caller in callers
            .split(|&byte| byte == b',')
            .filter(|text| !text.is_empty())
        {
            let into = self.callers.get_mut(self.caller_count)?;
            let plus = caller.iter().position(|&byte| byte == b'+')?;
            into.object = number(&caller[..plus], 10)? as usize;
            into.offset = number(&caller[plus + 1..], 16)?;
            self.caller_count += 1;
        }
        parts.next().is_none().then_some(())
    }
}

fn number(text: &[u8], base: u32) -> Option<u64> {
    let digits = core::str::from_utf8(text).ok()?;
    let is_plain = !digits.starts_with('+');
    u64::from_str_radix(digits, base).ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use super::*;

    fn read(text: &str) -> Option<Box<Rules>> {
        let mut rules = Box::new(Rules::none());
        rules.read(text.as_bytes())?;
        Some(rules)
    }

    #[test]
    fn other_forms_are_no_rules() {
        for text in [
            "",
            "2;ab;",
            "1",
            "1;",
            "1;ab",
            "1;xy;",
            "1;ab;cd;m",
            "1;ab;cd;m:4096",
            "1;ab;cd;m:4096:1",
            "1;ab;cd;m:4096:1:1+0",
            "1;ab;cd;m:4096:1:0",
            "1;ab;cd;m:4096:+1:",
            "1;ab;cd;c:",
            "1;ab;cd;x",
            "1;ab;cd;m:4096:1:0+1,0+2,0+3,0+4,0+5",
            "1;abc;",
            "1;ab;cd;m:1:1::",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
        let many =
            |count| read(&(std::string::String::from("1;ab;") + &";m:4096:1:".repeat(count)));
        assert!(many(MAX_RULES).is_some() && many(MAX_RULES + 1).is_none());
        assert!(read("1;ab;").is_some() && read("1;=2f61;cd,ef;c;m:4096:0:1+1f,0+2").is_some());
    }

    #[test]
    fn order_and_size_tell_mappings_apart() {
        let rules = read("1;ab;;m:4096:2:;m:8192:0:").unwrap();
        let found = [4096, 4096, 8192, 4096, 8192, 12288]
            .map(|bytes| rules.find(Some(bytes), 0, 0, |_, _| ()));
        assert_eq!(found, [None, Some(0), Some(1), None, Some(1), None]);
        assert_eq!(rules.find(None, 0, 0, |_, _| ()), None);
    }

    #[test]
    fn callers_tell_mappings_apart() {
        let rules = read("1;ab;cd,ef;m:4096:1:0+10,1+20;m:4096:1:0+10,1+30").unwrap();
        rules.loaded(0, |offset| Some(0x1000 + offset as usize));
        let stack = [0_usize, 5, 0x2035, 0];
        let at = stack.as_ptr() as usize;
        assert_eq!(
            rules.find(Some(4096), 0x1015, at, |_, _| ()),
            None,
            "an object is not loaded"
        );
        rules.loaded(1, |offset| Some(0x2000 + offset as usize));
        assert_eq!(
            rules.find(Some(4096), 0x1115, at, |_, _| ()),
            None,
            "called from elsewhere"
        );
        assert_eq!(rules.find(Some(4096), 0x1015, at, |_, _| ()), Some(1));
        assert_eq!(
            rules.find(Some(4096), 0x1015, at, |_, _| ()),
            None,
            "only the first is named"
        );
    }
}
