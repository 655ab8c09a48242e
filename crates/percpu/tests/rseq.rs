//! Are the restartable sequences right wherever the kernel interrupts them?
//!
//! The instructions of `src/x86_64.rs`, as they stand in the source, run on a model of two
//! CPUs whose kernel may preempt a thread before any instruction, move it to the other CPU and send
//! it to the abort handler, while a third party drains the stacks as `front::drain` does and changes
//! their capacities. All interleavings are visited. In each, every object has exactly one place.
//!
//! The memory is sequentially consistent, which is enough here: a CPU sees its own stores in order,
//! a context switch and `membarrier` are full barriers, and between them only the drainer and the
//! owner of a slab look at it. Changed rules and changed instructions show that the search can fail.

use std::collections::{HashMap, HashSet};

const CPUS: usize = 2;
const CLASS: u64 = 1;
/// Words of a slab that exist here: two of headers, two that nobody may change, the stack.
const WORDS: usize = 7;
const FIRST: u64 = 4;
const HOT: u64 = 0x1000;
const BASE: u64 = 0x4000_0000;
const AREA: u64 = 0x2000;
const LOCAL: u64 = 0x3000;
/// Address of the descriptor, as `lea` loads it.
const DESCRIPTOR: u64 = 0x5000;
const SLAB_SHIFT: u64 = 18;
/// The first and the last object; addresses are multiples of 8.
const OBJECT: u64 = 0x9000;

/// Registers that a call sets and its instructions keep.
const INPUTS: [&str; 8] = [
    "offset", "class", "hot", "items", "out", "count", "cpu", "header",
];
/// Undefined contents of registers and arrays.
const POISON: u64 = 0xdead_dead_dead_dead;

#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// A register by number, and how many bits of it.
    Register(usize, u32),
    Memory {
        segment: bool,
        /// Registers with their factors.
        terms: Vec<(usize, u64)>,
        offset: u64,
        bits: u32,
    },
    Number(u64),
    Descriptor,
}

#[derive(Clone, Debug)]
struct Instruction {
    name: String,
    operands: Vec<Place>,
    /// Target of a jump; `None` for a jump out of the block, to a `label` operand.
    target: Option<usize>,
}

/// One `asm!` block.
#[derive(Clone, Debug)]
struct Program {
    code: Vec<Instruction>,
    registers: Vec<String>,
    begin: usize,
    end: usize,
    abort: usize,
}

/// The lines of the assembly of a function of the source.
fn assembly(function: &str) -> (Vec<String>, Vec<String>) {
    let source = include_str!("../src/x86_64.rs");
    let start = source
        .find(&format!("fn {function}("))
        .unwrap_or_else(|| panic!("no function {function}"));
    let block = source[start..].split_once("asm!(").expect("assembly").1;
    let (mut lines, mut operands) = (Vec::new(), Vec::new());
    for line in block.lines().map(str::trim) {
        if line == ");" {
            break;
        }
        match line.strip_prefix('"').and_then(|l| l.strip_suffix("\",")) {
            Some(text) => lines.push(text.replace("\\\"", "\"")),
            None if !line.is_empty() => operands.push(line.to_owned()),
            None => {}
        }
    }
    (lines, operands)
}

impl Program {
    fn new(function: &str) -> Self {
        Self::from(&assembly(function).0)
    }

    fn from(lines: &[String]) -> Self {
        let mut program = Self {
            code: Vec::new(),
            registers: Vec::new(),
            begin: 0,
            end: 0,
            abort: 0,
        };
        let mut labels: HashMap<String, Vec<usize>> = HashMap::new();
        let mut jumps = Vec::new();
        let mut data = false;
        for line in lines {
            // The descriptor; the handler's section has code.
            data = match line.as_str() {
                l if l.starts_with(".pushsection __rseq_cs") => true,
                ".popsection" => false,
                _ => data,
            };
            if data {
                if line.starts_with(".quad") {
                    assert_eq!(line, ".quad 3f, (4f - 3f), 7f", "the descriptor");
                }
                continue;
            }
            let mut text = line.as_str();
            if let Some((label, rest)) = text.split_once(':')
                && label.chars().all(|c| c.is_ascii_digit())
            {
                labels
                    .entry(label.into())
                    .or_default()
                    .push(program.code.len());
                text = rest.trim();
            }
            if text.is_empty() || text.starts_with('.') {
                continue;
            }
            let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
            let mut instruction = Instruction {
                name: name.into(),
                operands: Vec::new(),
                target: None,
            };
            if name.starts_with('j') {
                jumps.push((program.code.len(), operands.to_owned()));
            } else if name != "prefetcht0" {
                instruction.operands = operands
                    .split(", ")
                    .map(|operand| program.operand(operand))
                    .collect();
            }
            program.code.push(instruction);
        }
        for (at, to) in jumps {
            if to.starts_with('{') {
                continue;
            }
            let places = &labels[&to[..to.len() - 1]];
            program.code[at].target = Some(if to.ends_with('f') {
                *places.iter().find(|&&place| place > at).expect("forward")
            } else {
                *places
                    .iter()
                    .rfind(|&&place| place <= at)
                    .expect("backward")
            });
        }
        // The handler stands first and jumps to 2.
        (program.begin, program.end) = (labels["3"][0], labels["4"][0]);
        program.abort = labels["7"][0];
        program
    }

    fn register(&mut self, name: &str) -> usize {
        if let Some(index) = self.registers.iter().position(|known| known == name) {
            return index;
        }
        self.registers.push(name.into());
        self.registers.len() - 1
    }

    /// A register by its name in the template, or in the machine; how many bits of it are meant.
    fn parse_register(&mut self, text: &str) -> Option<(usize, u32)> {
        if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
            let (name, modifier) = inner.split_once(':').unwrap_or((inner, ""));
            let bits = match modifier {
                "" => 64,
                "e" => 32,
                "x" => 16,
                _ => panic!("modifier {modifier}"),
            };
            return Some((self.register(name), bits));
        }
        let digits = text.strip_prefix('r')?;
        let (number, bits) = match digits.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "" => (digits, 64),
            _ => match digits.split_at(digits.len() - 1) {
                (number, "d") => (number, 32),
                (number, "w") => (number, 16),
                _ => return None,
            },
        };
        number.parse::<u32>().ok()?;
        Some((self.register(&format!("r{number}")), bits))
    }

    fn operand(&mut self, text: &str) -> Place {
        if text == "{shift}" {
            return Place::Number(SLAB_SHIFT);
        }
        if let Some((register, bits)) = self.parse_register(text) {
            return Place::Register(register, bits);
        }
        if let Ok(number) = text.parse() {
            return Place::Number(number);
        }
        if text == "[rip + 6b]" {
            return Place::Descriptor;
        }
        let (size, rest) = text
            .split_once(" ptr ")
            .unwrap_or_else(|| panic!("the model does not know {text}"));
        let bits = match size {
            "qword" => 64,
            "dword" => 32,
            "word" => 16,
            _ => panic!("the model does not know {size}"),
        };
        let (segment, rest) = match rest.strip_prefix("fs:") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let inner = rest.trim_start_matches('[').trim_end_matches(']');
        let (mut terms, mut offset) = (Vec::new(), 0u64);
        for term in inner.replace(" - ", " + -").split(" + ") {
            if let Ok(number) = term.parse::<i64>() {
                offset = offset.wrapping_add_signed(number);
            } else {
                let (name, factor) = term.split_once('*').unwrap_or((term, "1"));
                let register = self.parse_register(name).expect("a register").0;
                terms.push((register, factor.parse().expect("a factor")));
            }
        }
        Place::Memory {
            segment,
            terms,
            offset,
            bits,
        }
    }
}

/// Next operation of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Call {
    /// Take an object and keep it.
    Pop,
    /// Put the first object back that it has.
    Push,
    /// Both for two objects.
    PopAll,
    PushAll,
    /// Write the header of the slab of a CPU that the thread was on some time ago.
    Open(u64),
}

impl Call {
    fn function(self) -> &'static str {
        match self {
            Call::Pop => "pop",
            Call::Push => "push",
            Call::PopAll => "pop_all",
            Call::PushAll => "push_all",
            Call::Open(_) => "open",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "a processor has them")]
struct Thread {
    cpu: Option<usize>,
    /// Calls that are done.
    done: usize,
    /// The next instruction of the present call, if it has begun.
    at: Option<usize>,
    registers: [u64; 10],
    zero: bool,
    carry: bool,
    sign: bool,
    overflow: bool,
    /// The call whose descriptor the kernel knows, if it knows one.
    descriptor: Option<usize>,
    /// Arrays of the caller's.
    local: [u64; 2],
    held: Vec<u64>,
    /// Objects that the present call returns to the transfer cache: unowned until the call is over.
    offered: Vec<u64>,
}

/// The steps of `front::drain`, and of changing capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    Close,
    Fence,
    /// Read `current` of a CPU's slab.
    Look(usize),
    /// Take the object below it, if there is one, and look again.
    Take(usize),
    Reopen,
    Grow(usize),
    Shrink(usize),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    cpus: u64,
    slabs: [[u64; WORDS]; CPUS],
    threads: Vec<Thread>,
    other: usize,
    looked: u64,
    /// Counter of pops.
    left: u64,
    drained: Vec<u64>,
}

/// Inconsistency of a state.
type Fault = String;

struct Model {
    programs: HashMap<&'static str, Program>,
    calls: Vec<Vec<Call>>,
    other: Vec<Other>,
    /// True if the kernel restarts interrupted sequences.
    restarts: bool,
    initial: State,
    objects: u64,
}

fn mask(bits: u32) -> u64 {
    if bits == 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

impl Model {
    /// Threads with their calls and objects at first, objects in each CPU's slab, and what the
    /// other party does.
    fn new(threads: &[(&[Call], u64)], stacks: [u64; CPUS], other: &[Other]) -> Self {
        let mut next = OBJECT;
        let mut fresh = |count: u64| -> Vec<u64> {
            (0..count)
                .map(|_| {
                    next += 8;
                    next - 8
                })
                .collect()
        };
        let mut slabs = [[0; WORDS]; CPUS];
        for (slab, &count) in slabs.iter_mut().zip(&stacks) {
            let end = WORDS as u64;
            slab[CLASS as usize] = (FIRST + count) | FIRST << 16 | end << 32;
            for (word, item) in slab[FIRST as usize..].iter_mut().zip(fresh(count)) {
                *word = item;
            }
        }
        let initial = State {
            cpus: CPUS as u64,
            slabs,
            threads: threads
                .iter()
                .map(|(_, count)| Thread {
                    cpu: None,
                    done: 0,
                    at: None,
                    registers: [0; 10],
                    zero: false,
                    carry: false,
                    sign: false,
                    overflow: false,
                    descriptor: None,
                    local: [0; 2],
                    held: fresh(*count),
                    offered: Vec::new(),
                })
                .collect(),
            other: 0,
            looked: 0,
            left: 0,
            drained: Vec::new(),
        };
        Self {
            programs: ["pop", "push", "pop_all", "push_all", "open"]
                .map(|name| (name, Program::new(name)))
                .into(),
            calls: threads.iter().map(|(calls, _)| calls.to_vec()).collect(),
            other: other.to_vec(),
            restarts: true,
            initial,
            objects: (next - OBJECT) / 8,
        }
    }

    /// Change the lines of a function's assembly.
    fn change(&mut self, function: &'static str, change: impl FnOnce(&mut Vec<String>)) {
        let mut lines = assembly(function).0;
        change(&mut lines);
        self.programs.insert(function, Program::from(&lines));
    }

    /// Visit all states. The number of them, or a fault.
    fn explore(&self) -> Result<usize, Fault> {
        let mut seen = HashSet::new();
        let mut open = vec![self.initial.clone()];
        seen.insert(self.initial.clone());
        let mut ends = 0;
        while let Some(state) = open.pop() {
            let following = self.following(&state)?;
            let busy = state
                .threads
                .iter()
                .zip(&self.calls)
                .any(|(t, c)| t.done < c.len());
            if !busy && state.other == self.other.len() {
                ends += 1;
                self.account(&state)?;
            }
            for next in following {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
            assert!(seen.len() < 5_000_000, "too much to visit");
        }
        assert!(ends > 0, "no run ever ends");
        Ok(seen.len())
    }

    /// The objects that the first thread has where all is over, in each such state.
    fn ends(&self) -> Vec<usize> {
        let (mut seen, mut open) = (HashSet::new(), vec![self.initial.clone()]);
        let mut ends = Vec::new();
        while let Some(state) = open.pop() {
            if state.threads[0].done == self.calls[0].len() {
                ends.push(state.threads[0].held.len());
                continue;
            }
            for next in self.following(&state).expect("no fault") {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        assert!(!ends.is_empty());
        ends
    }

    /// Every object has one place when all is over.
    fn account(&self, state: &State) -> Result<(), Fault> {
        let mut places: Vec<u64> = state.drained.clone();
        for slab in &state.slabs {
            let (current, begin) = (slab[1] & 0xffff, slab[1] >> 16 & 0xffff);
            if current < begin || current > WORDS as u64 {
                return Err(format!("the header became {:#x}", slab[1]));
            }
            places.extend(&slab[begin as usize..current as usize]);
        }
        for thread in &state.threads {
            places.extend(&thread.held);
        }
        places.sort_unstable();
        let all: Vec<u64> = (0..self.objects).map(|n| OBJECT + 8 * n).collect();
        if places != all {
            return Err(format!("objects at the end: {places:x?}"));
        }
        Ok(())
    }

    fn following(&self, state: &State) -> Result<Vec<State>, Fault> {
        let mut out = Vec::new();
        for index in 0..state.threads.len() {
            let thread = &state.threads[index];
            if thread.done == self.calls[index].len() {
                continue;
            }
            if thread.cpu.is_some() {
                let mut next = state.clone();
                self.interrupt(&mut next, index);
                next.threads[index].cpu = None;
                out.push(next);
                let mut next = state.clone();
                self.step(&mut next, index)?;
                out.push(next);
                continue;
            }
            for cpu in 0..CPUS {
                if state.threads.iter().all(|other| other.cpu != Some(cpu)) {
                    let mut next = state.clone();
                    next.threads[index].cpu = Some(cpu);
                    out.push(next);
                }
            }
        }
        if let Some(&other) = self.other.get(state.other) {
            let mut next = state.clone();
            self.other_step(&mut next, other)?;
            out.push(next);
        }
        Ok(out)
    }

    /// The kernel's action on a thread that it interrupts or migrates (`rseq_ip_fixup`).
    fn interrupt(&self, state: &mut State, index: usize) {
        let thread = &mut state.threads[index];
        let (Some(at), Some(call)) = (thread.at, thread.descriptor.take()) else {
            return;
        };
        // Another call's descriptor covers other instructions.
        if call == thread.done && self.restarts {
            let program = &self.programs[self.calls[index][call].function()];
            if (program.begin..program.end).contains(&at) {
                thread.at = Some(program.abort);
                // Nothing that an interrupted sequence computed may matter when it starts again.
                for (register, name) in thread.registers.iter_mut().zip(&program.registers) {
                    let input = INPUTS.contains(&name.as_str())
                        || name == "item" && self.calls[index][call] == Call::Push;
                    if !input {
                        *register = POISON;
                    }
                }
                if self.calls[index][call] == Call::PopAll {
                    thread.local = [POISON; 2];
                }
                (thread.zero, thread.carry) = (false, false);
                (thread.sign, thread.overflow) = (false, false);
            }
        }
    }

    fn other_step(&self, state: &mut State, other: Other) -> Result<(), Fault> {
        state.other += 1;
        match other {
            Other::Close => state.cpus = 0,
            Other::Reopen => state.cpus = CPUS as u64,
            Other::Fence => {
                for index in 0..state.threads.len() {
                    if state.threads[index].cpu.is_some() {
                        self.interrupt(state, index);
                    }
                }
            }
            Other::Look(cpu) => state.looked = state.slabs[cpu][1] & 0xffff,
            Other::Take(cpu) => {
                if state.looked > FIRST {
                    let item = state.slabs[cpu][state.looked as usize - 1];
                    state.slabs[cpu][1] = state.slabs[cpu][1] & !0xffff | (state.looked - 1);
                    Self::nobody_has(state, item)?;
                    state.drained.push(item);
                    // Look once more.
                    state.other -= 2;
                }
            }
            Other::Grow(cpu) | Other::Shrink(cpu) => {
                let end = state.slabs[cpu][1] >> 32;
                let to = match other {
                    Other::Grow(_) => (end + 1).min(WORDS as u64),
                    _ => (end - 1).max(FIRST),
                };
                state.slabs[cpu][1] = state.slabs[cpu][1] & 0xffff_ffff | to << 32;
            }
        }
        Ok(())
    }

    fn nobody_has(state: &State, item: u64) -> Result<(), Fault> {
        let held = state
            .threads
            .iter()
            .any(|thread| thread.held.contains(&item));
        if held || state.drained.contains(&item) || item < OBJECT {
            return Err(format!("{item:#x} was given to two, or is no object"));
        }
        Ok(())
    }

    /// Begin a call, or execute instructions up to and including one that touches shared memory.
    fn step(&self, state: &mut State, index: usize) -> Result<(), Fault> {
        let call = self.calls[index][state.threads[index].done];
        let program = &self.programs[call.function()];
        if state.threads[index].at.is_none() {
            Self::begin(&mut state.threads[index], call, program);
            return Ok(());
        }
        loop {
            let Some(at) = state.threads[index].at else {
                return self.finish(state, index, call, program, false);
            };
            if at >= program.code.len() {
                return self.finish(state, index, call, program, true);
            }
            let inside = (program.begin..program.end).contains(&at);
            let shared = Self::execute(state, index, program, at)?;
            let Some(at) = state.threads[index].at else {
                continue;
            };
            // Within a sequence, an interruption before an instruction that touches only registers
            // ends in the same state as one before those in front of it.
            if shared || !inside || !(program.begin..program.end).contains(&at) {
                return Ok(());
            }
        }
    }

    fn begin(thread: &mut Thread, call: Call, program: &Program) {
        assert!(program.registers.len() <= thread.registers.len());
        thread.local = [POISON; 2];
        let (count, offered) = match call {
            Call::PushAll => {
                let count = thread.held.len().min(2);
                (count as u64, count)
            }
            Call::Push => (0, 1),
            _ => (2, 0),
        };
        thread.offered = thread.held.drain(..offered).collect();
        if let Call::PushAll = call {
            for (slot, &item) in thread.local.iter_mut().zip(&thread.offered) {
                *slot = item;
            }
        }
        for (register, name) in thread.registers.iter_mut().zip(&program.registers) {
            *register = match name.as_str() {
                "offset" => AREA,
                "class" => CLASS,
                "hot" => HOT,
                "item" if call == Call::Push => thread.offered[0],
                "items" | "out" => LOCAL,
                "count" => count,
                "cpu" => match call {
                    Call::Open(cpu) => cpu,
                    _ => 0,
                },
                "header" => FIRST | FIRST << 16 | (WORDS as u64) << 32,
                _ => POISON,
            };
        }
        // The code begins behind the handler, at 2.
        thread.at = Some(
            program.code[program.abort]
                .target
                .expect("the handler jumps to 2"),
        );
    }

    /// Take over what a call did. `through`: it ran to its end, it did not jump out.
    fn finish(
        &self,
        state: &mut State,
        index: usize,
        call: Call,
        program: &Program,
        through: bool,
    ) -> Result<(), Fault> {
        let value = |name: &str| {
            let register = program.registers.iter().position(|known| known == name);
            register.map(|register| state.threads[index].registers[register])
        };
        let mut got = Vec::new();
        let mut gave = 0;
        match call {
            Call::Pop => got.extend(value("item").filter(|&item| item != 0 && through)),
            Call::Push => gave = usize::from(through && value("done").is_none_or(|done| done != 0)),
            Call::PopAll => {
                let done = value("done").expect("a register");
                got.extend(&state.threads[index].local[..done as usize]);
            }
            Call::PushAll => gave = value("done").expect("a register") as usize,
            Call::Open(_) => {}
        }
        for item in got {
            Self::nobody_has(state, item)?;
            state.threads[index].held.push(item);
        }
        let thread = &mut state.threads[index];
        thread.held.extend(thread.offered.split_off(gave));
        thread.offered.clear();
        thread.at = None;
        thread.done += 1;
        thread.registers = [0; 10];
        thread.local = [0; 2];
        (thread.zero, thread.carry, thread.sign, thread.overflow) = (false, false, false, false);
        if thread.done == self.calls[index].len() {
            thread.cpu = None;
            thread.descriptor = None;
        }
        Ok(())
    }

    /// Execute one instruction; whether it touched memory that others see.
    fn execute(
        state: &mut State,
        index: usize,
        program: &Program,
        at: usize,
    ) -> Result<bool, Fault> {
        let instruction = &program.code[at];
        state.threads[index].at = Some(at + 1);
        let name = instruction.name.as_str();
        if name.starts_with('j') {
            let t = &mut state.threads[index];
            let taken = match name {
                "jmp" => true,
                "jae" => !t.carry,
                "jb" => t.carry,
                "jbe" => t.carry || t.zero,
                "je" => t.zero,
                "jne" => !t.zero,
                "jle" => t.zero || t.sign != t.overflow,
                _ => panic!("the model does not know {name}"),
            };
            if taken {
                t.at = instruction.target;
            }
            return Ok(false);
        }
        if name == "prefetcht0" {
            return Ok(false);
        }
        let operands = &instruction.operands;
        let mut shared = false;
        let (to, bits) = match &operands[0] {
            Place::Register(_, bits) | Place::Memory { bits, .. } => (&operands[0], *bits),
            other => panic!("{name} to {other:?}"),
        };
        let source = match operands.get(1) {
            Some(operand) => Self::read(state, index, operand, &mut shared)?,
            None => 1,
        };
        let old = match name {
            "mov" | "movzx" | "lea" => 0,
            _ => Self::read(state, index, to, &mut shared)?,
        };
        let (m, top) = (mask(bits), 1u64 << (bits - 1));
        let (source, old) = (source & m, old & m);
        let mut flags = None;
        let mut subtract = |a: u64, b: u64, carries: bool| {
            let result = a.wrapping_sub(b) & m;
            let overflow = (a ^ b) & (a ^ result) & top != 0;
            flags = Some((result, carries.then_some(a < b), overflow));
            result
        };
        let result = match name {
            "mov" | "movzx" | "lea" => Some(source),
            "cmova" => {
                let t = &state.threads[index];
                Some(if t.carry || t.zero { old } else { source })
            }
            "shl" => Some(old << source & m),
            "cmp" => {
                subtract(old, source, true);
                None
            }
            "sub" => Some(subtract(old, source, true)),
            "dec" => Some(subtract(old, source, false)),
            "neg" => Some(subtract(0, old, true)),
            "xor" => {
                flags = Some((old ^ source, Some(false), false));
                Some(old ^ source)
            }
            "add" | "inc" => {
                let result = old.wrapping_add(source) & m;
                let overflow = (old ^ result) & (source ^ result) & top != 0;
                flags = Some((result, (name == "add").then_some(result < old), overflow));
                Some(result)
            }
            _ => panic!("the model does not know {name}"),
        };
        if let Some((value, carry, overflow)) = flags {
            let t = &mut state.threads[index];
            (t.zero, t.sign, t.overflow) = (value == 0, value & top != 0, overflow);
            t.carry = carry.unwrap_or(t.carry);
        }
        if let Some(result) = result {
            Self::write(state, index, to, result, &mut shared)?;
        }
        Ok(shared)
    }

    /// Resolves an address to the word, the shift, and whether others see it.
    fn resolve(
        state: &mut State,
        index: usize,
        address: u64,
        bits: u32,
        writing: bool,
    ) -> Result<(&mut u64, u32, bool), Fault> {
        let (word, shift) = (address / 8 * 8, (address % 8) as u32 * 8);
        assert!(shift + bits <= 64, "unaligned access to {address:#x}");
        if word == HOT + 8 && !writing {
            return Ok((&mut state.cpus, shift, true));
        }
        if (LOCAL..LOCAL + 16).contains(&word) {
            let slot = ((word - LOCAL) / 8) as usize;
            return Ok((&mut state.threads[index].local[slot], shift, false));
        }
        let (cpu, slot) = (
            (word.wrapping_sub(BASE) >> SLAB_SHIFT) as usize,
            (word.wrapping_sub(BASE) % (1 << SLAB_SHIFT) / 8) as usize,
        );
        let known = cpu < CPUS && slot < WORDS;
        // The pops left, which only sequences on the CPU touch. What they write is forgotten: an interrupted pop may
        // count twice, and its states are those of any other count.
        if known && slot == 0 && shift == 48 && bits == 16 {
            let left = &mut state.left;
            *left = state.slabs[cpu][0];
            return Ok((left, shift, false));
        }
        if !known || writing && slot != CLASS as usize && slot < FIRST as usize {
            return Err(format!("access to {address:#x}"));
        }
        Ok((&mut state.slabs[cpu][slot], shift, true))
    }

    fn address(state: &State, index: usize, terms: &[(usize, u64)], offset: u64) -> u64 {
        terms.iter().fold(offset, |sum, &(register, factor)| {
            let value = state.threads[index].registers[register];
            sum.wrapping_add(value.wrapping_mul(factor))
        })
    }

    fn read(
        state: &mut State,
        index: usize,
        place: &Place,
        shared: &mut bool,
    ) -> Result<u64, Fault> {
        Ok(match place {
            Place::Number(number) => *number,
            Place::Descriptor => DESCRIPTOR,
            Place::Register(register, bits) => {
                state.threads[index].registers[*register] & mask(*bits)
            }
            Place::Memory {
                segment,
                terms,
                offset,
                bits,
            } => {
                let address = Self::address(state, index, terms, *offset);
                if *segment {
                    assert_eq!((address, *bits), (AREA + 4, 32), "the number of the CPU");
                    // Whatever changes it interrupts a sequence.
                    return Ok(state.threads[index].cpu.expect("it runs") as u64);
                }
                if address == HOT {
                    return Ok(BASE);
                }
                let (word, shift, seen) = Self::resolve(state, index, address, *bits, false)?;
                *shared |= seen;
                *word >> shift & mask(*bits)
            }
        })
    }

    fn write(
        state: &mut State,
        index: usize,
        place: &Place,
        value: u64,
        shared: &mut bool,
    ) -> Result<(), Fault> {
        match place {
            Place::Register(register, bits) => {
                let register = &mut state.threads[index].registers[*register];
                *register = match bits {
                    16 => *register & !0xffff | value,
                    _ => value,
                };
            }
            Place::Memory {
                segment: true,
                terms,
                offset,
                ..
            } => {
                let address = Self::address(state, index, terms, *offset);
                assert_eq!((address, value), (AREA + 8, DESCRIPTOR));
                let done = state.threads[index].done;
                state.threads[index].descriptor = Some(done);
            }
            Place::Memory {
                terms,
                offset,
                bits,
                ..
            } => {
                let address = Self::address(state, index, terms, *offset);
                let (word, shift, seen) = Self::resolve(state, index, address, *bits, true)?;
                *word = *word & !(mask(*bits) << shift) | value << shift;
                *shared |= seen;
            }
            other => panic!("write to {other:?}"),
        }
        Ok(())
    }
}

const DRAIN: [Other; 7] = [
    Other::Close,
    Other::Fence,
    Other::Look(0),
    Other::Take(0),
    Other::Look(1),
    Other::Take(1),
    Other::Reopen,
];

use Call::{Open, Pop, PopAll, Push, PushAll};

/// Two threads that share CPUs, with a drain at any time.
fn pairs() -> Vec<Model> {
    let calls: [&[Call]; 4] = [&[Pop], &[Push], &[PopAll], &[PushAll]];
    let mut models = Vec::new();
    for (index, first) in calls.iter().enumerate() {
        for second in &calls[index..] {
            models.push(Model::new(&[(first, 1), (second, 2)], [2, 1], &DRAIN));
        }
    }
    models
}

#[test]
fn has_every_object_one_place_while_all_is_drained() {
    let mut states = 0;
    for model in pairs() {
        states += model.explore().unwrap();
    }
    println!("{states} states");
}

#[test]
fn has_every_object_one_place_with_three_threads_on_two_cpus() {
    let mut states = 0;
    for calls in [
        [Pop, Pop, Push],
        [Push, Pop, PopAll],
        [PushAll, PopAll, Pop],
    ] {
        let threads = calls.each_ref().map(|call| (std::slice::from_ref(call), 2));
        states += Model::new(&threads, [1, 2], &[]).explore().unwrap();
    }
    println!("{states} states");
}

#[test]
fn has_every_object_one_place_when_calls_follow_each_other() {
    let calls: [&[Call]; 2] = [&[Pop, Push], &[Push, Pop]];
    let mut states = 0;
    for (first, second) in [(0, 0), (0, 1), (1, 1)] {
        let threads = [(calls[first], 1), (calls[second], 1)];
        states += Model::new(&threads, [2, 1], &[]).explore().unwrap();
    }
    println!("{states} states");
}

#[test]
fn a_pop_that_is_the_last_of_its_count_takes_nothing() {
    for (left, taken) in [(0, 1), (1, 0), (2, 1)] {
        let mut model = Model::new(&[(&[Pop], 0)], [2, 2], &[]);
        for slab in &mut model.initial.slabs {
            slab[0] = left << 48;
        }
        for held in model.ends() {
            assert_eq!(held, taken, "{left} left");
        }
    }
    // And nothing is lost meanwhile.
    for mut model in pairs().into_iter().take(4) {
        for slab in &mut model.initial.slabs {
            slab[0] = 1 << 48;
        }
        model.explore().unwrap();
    }
}

#[test]
fn may_anybody_change_capacities_meanwhile() {
    let other = [
        Other::Shrink(0),
        Other::Shrink(0),
        Other::Grow(0),
        Other::Shrink(1),
    ];
    for calls in [[Push, Pop], [PushAll, PopAll], [PopAll, Push]] {
        let threads = [(&calls[..], 2), (&calls[1..], 1)];
        Model::new(&threads, [2, 1], &other).explore().unwrap();
    }
}

#[test]
fn is_a_header_written_once() {
    let calls: [&[Call]; 2] = [&[Open(0), Push], &[Open(0), PushAll, Pop]];
    let mut model = Model::new(&[(calls[0], 1), (calls[1], 2)], [0, 0], &[]);
    model.initial.slabs[0][1] = 0;
    // A stack without a header has neither objects nor room: an end of 0 says so to all sequences.
    model.explore().unwrap();
}

fn refuted(models: impl IntoIterator<Item = Model>) -> bool {
    models.into_iter().any(|model| model.explore().is_err())
}

#[test]
fn is_a_kernel_that_restarts_nothing_refuted() {
    assert!(refuted(pairs().into_iter().map(|mut model| {
        model.restarts = false;
        model
    })));
}

#[test]
fn is_a_drain_without_fence_refuted() {
    assert!(refuted(pairs().into_iter().map(|mut model| {
        model.other.retain(|&step| step != Other::Fence);
        // The steps that look again count back by two.
        model
    })));
}

#[test]
fn is_a_drain_that_keeps_the_slabs_open_refuted() {
    assert!(refuted(pairs().into_iter().map(|mut model| {
        model.other.retain(|&step| step != Other::Close);
        model
    })));
}

#[test]
fn is_a_cpu_read_before_the_sequence_refuted() {
    assert!(refuted(pairs().into_iter().map(|mut model| {
        model.change("pop", |lines| {
            // "3:" moves behind the load of the CPU's number.
            let label = lines.iter().position(|line| line == "3:").unwrap();
            let load = lines
                .iter()
                .position(|line| line.ends_with("{offset} + 4]"))
                .unwrap();
            let label = lines.remove(label);
            lines.insert(load, label);
        });
        model
    })));
}

#[test]
fn is_a_push_that_commits_before_it_writes_refuted() {
    assert!(refuted(pairs().into_iter().map(|mut model| {
        model.change("push", |lines| {
            let write = lines
                .iter()
                .position(|line| line.starts_with("mov qword ptr [") && line.ends_with(", {item}"))
                .unwrap();
            let commit = lines.iter().position(|line| line == "4:").unwrap() - 1;
            // The slot is the same: the index is one more by then.
            let line = lines.remove(write).replace("*8]", "*8 - 8]");
            lines.insert(commit, line);
        });
        model
    })));
}

#[test]
fn is_a_sequence_that_ends_behind_its_commit_refuted() {
    assert!(refuted(pairs().into_iter().map(|mut model| {
        for function in ["pop", "push", "pop_all", "push_all"] {
            model.change(function, |lines| {
                // Restarted after its effect, a sequence has it twice.
                let label = lines.iter().position(|line| line == "4:").unwrap();
                lines.insert(label, "prefetcht0 byte ptr [{slab}]".into());
            });
        }
        model
    })));
}
