//! Does the window agree with its rules, applied to lists of everything that happened?

use std::collections::{HashMap, HashSet};

use contigua_core::{Blocks, CoreConfig, CoreCounters, CycleBreakdown, Ports, Window};
use contigua_program::decode::{Instruction, OperationClass as Class, RegisterSet};
use contigua_units::{Cycles, PhysAddr, VirtAddr};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

#[derive(Clone, Copy, Debug)]
struct Access {
    store: bool,
    address: u64,
    translation: u64,
    walked: bool,
    data: u64,
}

#[derive(Clone, Debug)]
enum Step {
    /// A block with the accesses of each of its instructions, and what fetches it takes.
    Block(usize, Vec<(u64, bool, u64)>, Vec<Vec<Access>>),
    Drain,
    Kernel(u64),
    Wait(u64),
    Reset,
}

/// A miss register or page walker: its latest eight busy times, of which those with a pause of at most
/// `handover` between them are one, and the end of the one before these.
#[derive(Clone, Default)]
struct Holder {
    past: u64,
    busy: Vec<(u64, u64)>,
}

impl Holder {
    fn start(&self, ready: u64, length: u64, handover: u64) -> u64 {
        let mut start = ready;
        if ready < self.past {
            start = self.past + handover;
        }
        for &(begin, end) in &self.busy {
            if begin < start + length && start < end {
                start = end + handover;
            }
        }
        start
    }

    fn hold(&mut self, begin: u64, end: u64, handover: u64) {
        self.busy.push((begin, end));
        self.busy.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for &(begin, end) in &self.busy {
            match merged.last_mut() {
                Some(last) if begin <= last.1 + handover => last.1 = end,
                _ => merged.push((begin, end)),
            }
        }
        if merged.len() > 8 {
            self.past = merged.remove(0).1;
        }
        self.busy = merged;
    }
}

/// Results of a model that are compared.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// When each load started.
    loads: Vec<u64>,
    now: u64,
    breakdown: CycleBreakdown,
    counters: CoreCounters,
}

/// Address of a block.
fn place(block: usize) -> u64 {
    0x1_0000 + 0x1000 * block as u64
}

/// Cycles before a walk in which the second-level TLB is looked up.
const SECOND_LEVEL_TLB: u64 = 3;

fn run(config: &CoreConfig, code: &[Vec<Instruction>], steps: &[Step]) -> Outcome {
    let mut blocks = Blocks::new(config);
    for (number, code) in code.iter().enumerate() {
        blocks.learn(
            number,
            VirtAddr::new(place(number)),
            &vec![4; code.len()],
            code,
        );
    }
    let mut window = Window::new(config)
        .unwrap()
        .with_second_level_tlb(Cycles::new(SECOND_LEVEL_TLB));
    let mut loads = Vec::new();
    for step in steps {
        match step {
            Step::Block(block, fetches, accesses) => {
                window.enter(&blocks, *block);
                for &(translation, walked, data) in fetches {
                    window.fetch(Cycles::new(translation), walked, Cycles::new(data));
                }
                for (index, accesses) in accesses.iter().enumerate() {
                    for access in accesses {
                        let start = window.access(&blocks, index, access.store);
                        if !access.store {
                            loads.push(start.get());
                        }
                        window.answer(
                            PhysAddr::new(access.address),
                            Cycles::new(access.translation),
                            access.walked,
                            Cycles::new(access.data),
                        );
                    }
                }
            }
            Step::Drain => window.drain(&blocks),
            Step::Kernel(work) => {
                window.drain(&blocks);
                window.kernel(Cycles::new(*work));
            }
            Step::Wait(time) => {
                window.drain(&blocks);
                window.wait_until(Cycles::new(*time));
            }
            Step::Reset => {
                window.drain(&blocks);
                window.reset();
            }
        }
        assert_eq!(window.breakdown().total(), window.cycles());
    }
    window.drain(&blocks);
    assert_eq!(window.breakdown().total(), window.cycles());
    Outcome {
        loads,
        now: window.now().get(),
        breakdown: window.breakdown(),
        counters: window.counters(),
    }
}

/// Execution behind a mispredicted branch.
struct WrongPath {
    /// When the branch is resolved.
    until: u64,
    /// Dispatch and resolution of the latest mispredicted branch behind it.
    next: Option<(u64, u64)>,
    /// The latest dispatch, and how many there were in its cycle.
    front: (u64, u32),
    ready: HashMap<u32, u64>,
}

/// Reference model: computes from lists of all that happened so far.
struct Reference<'a> {
    config: &'a CoreConfig,
    dispatches: Vec<u64>,
    /// Cycles of dispatch, and how many places of them were taken.
    dispatched: Vec<(u64, u32)>,
    retirements: Vec<u64>,
    /// When each place in the window was left.
    places: Vec<u64>,
    /// Of instructions that need a general register, a vector register.
    general_retirements: Vec<u64>,
    vector_retirements: Vec<u64>,
    load_retirements: Vec<u64>,
    commitments: Vec<u64>,
    /// Port and cycle (for dividers: interval) of each start.
    starts: Vec<((&'static str, u8), u64)>,
    registers: Vec<Holder>,
    /// Intervals in which a line reached the first level.
    fills: HashSet<u64>,
    walkers: Vec<Holder>,
    lines: HashMap<u64, (u64, u64)>,
    walks: HashMap<u64, (u64, u64)>,
    /// Data and commitment of the last store to each word.
    words: HashMap<u64, (u64, u64)>,
    ready: HashMap<u32, u64>,
    /// Ends of what holds up the front end, with the name of the part.
    front: u64,
    redirected: u64,
    fetch_translated: u64,
    fetch_walked: bool,
    /// Dispatches before the last fetch, and its end.
    fetched: (usize, u64),
    /// When the target of the last taken branch was fetched, and where the last block ended.
    taken: u64,
    ended: Option<u64>,
    barrier: u64,
    clock: u64,
    last_done: u64,
    wrong_path: Option<WrongPath>,
    parts: HashMap<&'static str, u64>,
    counters: CoreCounters,
    loads: Vec<u64>,
}

/// Milestones of an instruction: the part that time before each is charged to.
type Milestones = Vec<(u64, &'static str)>;

impl<'a> Reference<'a> {
    fn new(config: &'a CoreConfig) -> Self {
        Self {
            config,
            dispatches: Vec::new(),
            retirements: Vec::new(),
            places: Vec::new(),
            dispatched: Vec::new(),
            general_retirements: Vec::new(),
            vector_retirements: Vec::new(),
            load_retirements: Vec::new(),
            commitments: Vec::new(),
            starts: Vec::new(),
            registers: vec![Holder::default(); config.miss_registers as usize],
            fills: HashSet::new(),
            walkers: vec![Holder::default(); config.page_walkers as usize],
            lines: HashMap::new(),
            walks: HashMap::new(),
            words: HashMap::new(),
            ready: HashMap::new(),
            front: 0,
            redirected: 0,
            fetch_translated: 0,
            fetch_walked: false,
            fetched: (0, 0),
            taken: 0,
            ended: None,
            barrier: 0,
            clock: 0,
            last_done: 0,
            wrong_path: None,
            parts: HashMap::new(),
            counters: CoreCounters::default(),
            loads: Vec::new(),
        }
    }

    /// The entry that is `count` before the next one.
    fn before(list: &[u64], count: u32) -> u64 {
        let place = list.len().checked_sub(count as usize);
        place.map_or(0, |place| list[place])
    }

    fn registers_ready(ready: &HashMap<u32, u64>, set: RegisterSet) -> u64 {
        let bits = (0..64).filter(|bit| set.0 >> bit & 1 != 0);
        bits.map(|bit| ready.get(&bit).copied().unwrap_or(0))
            .max()
            .unwrap_or(0)
    }

    /// A branch was mispredicted.
    fn leave_path(&mut self) {
        let dispatch = self.dispatches.last().copied().unwrap_or(0);
        let resolved = self.last_done;
        match &mut self.wrong_path {
            Some(wrong_path) => wrong_path.next = Some((dispatch, resolved)),
            None if resolved > dispatch + 24 => {
                self.wrong_path = Some(WrongPath {
                    until: resolved,
                    next: None,
                    front: (dispatch, 0),
                    ready: self.ready.clone(),
                });
            }
            None => {}
        }
    }

    /// When there is a place in the window for an instruction, and registers for its results.
    fn window(&self, instruction: &Instruction) -> u64 {
        let config = self.config;
        let mut free = Self::before(&self.places, config.window);
        let (general, vector) = registers(instruction);
        if general {
            let count = config.general_registers.unwrap_or(config.window);
            free = free.max(Self::before(&self.general_retirements, count));
        }
        if vector {
            let count = config.vector_registers.unwrap_or(config.window);
            free = free.max(Self::before(&self.vector_retirements, count));
        }
        free
    }

    /// When the instruction that was just dispatched is on the wrong path, if it is.
    fn dispatch_early(&mut self, instruction: &Instruction, accesses: bool) -> Option<u64> {
        let config = self.config;
        let mut window = self.window(instruction);
        if accesses {
            window = window.max(Self::before(&self.load_retirements, config.load_buffer));
        }
        let wrong_path = self.wrong_path.as_mut()?;
        let (mut front, mut used) = wrong_path.front;
        used += 1;
        if used == config.issue_width {
            (front, used) = (front + 1, 0);
        }
        let wait = |front: &mut u64, used: &mut u32, time: u64| {
            if time > *front {
                (*front, *used) = (time, 0);
            }
        };
        wait(&mut front, &mut used, window);
        if front >= wrong_path.until {
            let (branch, resolved) = wrong_path.next.take().unwrap_or((0, 0));
            wait(&mut front, &mut used, branch);
            wrong_path.until = resolved;
        }
        wrong_path.front = (front, used);
        if front >= wrong_path.until || front >= *self.dispatches.last().unwrap() {
            self.wrong_path = None;
        }
        self.wrong_path.as_ref().map(|_| front)
    }

    fn start(&mut self, unit: &'static str, ready: u64) -> u64 {
        let intervals = &self.config.divide_interval_cycles;
        let interval = match unit {
            "none" => return ready,
            "divide" => u64::from(intervals.integer),
            "float divide" => u64::from(intervals.float),
            "divide 64" => u64::from(intervals.integer_64.unwrap_or(intervals.integer)),
            _ => 1,
        };
        let mut at = ready / interval;
        loop {
            let ports = self.ports(unit);
            let taken = |port| self.starts.contains(&(port, at));
            if let Some(port) = ports.into_iter().find(|&port| !taken(port)) {
                self.starts.push((port, at));
                return ready.max(at * interval);
            }
            at += 1;
        }
    }

    /// The ports of a kind, those first that fewer kinds use.
    fn ports(&self, unit: &'static str) -> Vec<(&'static str, u8)> {
        let ports = &self.config.ports;
        let execution = [
            ("integer", Some(&ports.integer)),
            ("multiply", Some(&ports.multiply)),
            ("float", Some(&ports.float)),
            ("vector", Some(&ports.vector)),
            ("branch", Some(&ports.branch)),
            ("shift", ports.shift.as_ref()),
            ("select", ports.select.as_ref()),
            ("float add", ports.float_add.as_ref()),
            ("transfer", ports.transfer.as_ref()),
        ];
        let memory = [("load", Some(&ports.load)), ("store", Some(&ports.store))];
        let unit = match unit {
            "shift" if ports.shift.is_none() => "integer",
            "select" if ports.select.is_none() => "integer",
            "float add" if ports.float_add.is_none() => "float",
            "transfer" if ports.transfer.is_none() => "vector",
            unit => unit,
        };
        let numbers = |ports: &Ports| match ports {
            Ports::Numbers(numbers) => numbers.clone(),
            Ports::Own(_) => unreachable!("ports have numbers here"),
        };
        for (group, kinds) in [("execution", &execution[..]), ("memory", &memory)] {
            if let Some((_, Some(own))) = kinds.iter().find(|(kind, _)| *kind == unit) {
                let users = |port: u8| {
                    let of_kinds = kinds
                        .iter()
                        .filter_map(|(_, ports)| Some(numbers((*ports)?)));
                    of_kinds.filter(|ports| ports.contains(&port)).count()
                };
                let mut own = numbers(own);
                own.sort_by_key(|&port| (users(port), port));
                return own.into_iter().map(|port| (group, port)).collect();
            }
        }
        vec![(unit, 0)]
    }

    fn hold(holders: &mut [Holder], ready: u64, length: u64, handover: u32) -> u64 {
        let handover = u64::from(handover);
        let starts = holders
            .iter_mut()
            .map(|holder| (holder.start(ready, length, handover), holder));
        let (start, holder) = starts.min_by_key(|(start, _)| *start).unwrap();
        holder.hold(start, start + length, handover);
        start
    }

    /// When a translation by a walk begins that ends when the walk does: later than `ready` if that waits.
    fn walk(&mut self, ready: u64, length: u64) -> u64 {
        let handover = self.config.page_walk_replay_cycles;
        let looked_up = length.min(SECOND_LEVEL_TLB);
        let (ready, length) = (ready + looked_up, length - looked_up);
        let start = Self::hold(&mut self.walkers, ready, length, handover);
        self.counters.page_walkers_full += u64::from(start > ready);
        start - looked_up
    }

    fn arrival(flights: &mut HashMap<u64, (u64, u64)>, key: u64, time: u64) -> Option<u64> {
        let (start, end) = flights.get(&key).copied()?;
        let flight = if time < start {
            (time, time + end - start)
        } else {
            (start, end)
        };
        if time >= end {
            return None;
        }
        flights.insert(key, flight);
        Some(flight.1)
    }

    fn dispatch(
        &mut self,
        instruction: &Instruction,
        (loads, stores): (bool, bool),
        slots: u32,
    ) -> (u64, Milestones) {
        let config = self.config;
        let window = self.window(instruction);
        let load = if loads {
            Self::before(&self.load_retirements, config.load_buffer)
        } else {
            0
        };
        let store = if stores {
            Self::before(&self.commitments, config.store_buffer)
        } else {
            0
        };
        let last = self.dispatched.last().map_or(0, |last| last.0);
        let front = self.front.max(self.barrier).max(last);
        self.counters.window_full += u64::from(window > front.max(load).max(store));
        self.counters.load_buffer_full += u64::from(load > front.max(window).max(store));
        self.counters.store_buffer_full += u64::from(store > front.max(window).max(load));
        let mut time = front.max(window).max(load).max(store);
        let slots = slots.min(config.issue_width);
        if self.dispatched_at(time) + slots > config.issue_width {
            time += 1;
        }
        self.dispatches.push(time);
        self.dispatched.push((time, slots));
        let translation = if self.fetch_walked { "walk" } else { "tlb" };
        let milestones = vec![
            (self.redirected, "branch"),
            (self.fetch_translated, translation),
            (self.front, "fetch"),
            (self.barrier.max(store), "data"),
            (time, "issue"),
        ];
        (time, milestones)
    }

    /// Places of the cycle's dispatch that are taken.
    fn dispatched_at(&self, time: u64) -> u32 {
        let at_time = self.dispatched.iter().filter(|(at, _)| *at == time);
        at_time.map(|(_, slots)| slots).sum()
    }

    /// A division's microcode takes more places of dispatch, and in the window.
    fn microcode(&mut self, class: Class) {
        let slots = &self.config.slots;
        let all = match class {
            Class::IntegerDivide => slots.divide,
            Class::IntegerDivide64 => slots.divide_64.unwrap_or(slots.divide),
            _ => 1,
        };
        for _ in 1..all {
            let mut time = self.dispatched.last().unwrap().0;
            if self.dispatched_at(time) == self.config.issue_width {
                time += 1;
            }
            self.dispatched.push((time, 1));
            self.places.push(self.clock);
        }
    }

    fn retire(&mut self, done: u64, milestones: &[(u64, &'static str)]) -> u64 {
        let mut time = done.max(self.clock);
        let in_cycle = self.retirements.iter().filter(|&&at| at == time).count();
        if in_cycle as u32 == self.config.retire_width {
            time += 1;
        }
        // The cycle that ends at `time` is the one in which it retires.
        for cycle in self.clock..time {
            let waits = milestones.iter().find(|(until, _)| cycle < *until);
            let part = match waits {
                _ if cycle + 1 == time => "issue",
                Some((_, part)) => part,
                None => "dependence",
            };
            *self.parts.entry(part).or_default() += 1;
        }
        self.clock = time;
        self.retirements.push(time);
        self.places.push(time);
        time
    }

    fn translate(&mut self, start: u64, access: &Access) -> (u64, &'static str) {
        let frame = access.address >> 12;
        if access.translation == 0 {
            return match Self::arrival(&mut self.walks, frame, start) {
                Some(arrival) => {
                    self.counters.merged_walks += 1;
                    (arrival, "walk")
                }
                None => (start, "tlb"),
            };
        }
        if !access.walked {
            return (start + access.translation, "tlb");
        }
        let begin = self.walk(start, access.translation);
        let end = begin + access.translation;
        self.walks.insert(frame, (begin, end));
        (end, "walk")
    }

    fn line(&mut self, time: u64, access: &Access) -> u64 {
        let line = access.address >> 6;
        if let Some(arrival) = Self::arrival(&mut self.lines, line, time) {
            self.counters.merged_misses += 1;
            return arrival;
        }
        if access.data == 0 {
            return time;
        }
        let begin = Self::hold(&mut self.registers, time, access.data, 0);
        self.counters.miss_registers_full += u64::from(begin > time);
        let mut arrives = begin + access.data;
        if self.wrong_path.is_none() {
            let interval = u64::from(self.config.fill_cycles);
            let mut at = arrives / interval;
            while !self.fills.insert(at) {
                at += 1;
            }
            arrives = arrives.max(at * interval);
        }
        self.lines.insert(line, (begin, arrives));
        arrives
    }

    fn fetch(&mut self, translation: u64, walked: bool, data: u64) {
        let ahead = Self::before(&self.dispatches, self.config.fetch_queue);
        let start = self.front.max(ahead);
        let mut begin = start;
        if translation > 0 {
            self.fetch_walked = walked;
            if walked {
                begin = self.walk(start, translation);
            }
        }
        let since = if self.fetched == (self.dispatches.len(), start) {
            self.fetch_translated
        } else {
            start
        };
        self.fetch_translated = since + begin - start + translation;
        self.front = begin + translation + data;
        self.fetched = (self.dispatches.len(), self.front);
    }

    fn slots_of(&self, instruction: &Instruction) -> u32 {
        let slots = &self.config.slots;
        let modifies = instruction.loads > 0 && instruction.stores > 0;
        match instruction.class {
            Class::FloatConvert => slots.convert,
            Class::IntegerShiftVariable => slots.variable_shift,
            Class::IntegerSimple | Class::IntegerShift | Class::IntegerSelect if modifies => {
                slots.read_modify_write
            }
            Class::Call => slots.call,
            _ => 1,
        }
    }

    fn unit_and_latency(&self, instruction: &Instruction) -> (&'static str, u32) {
        let latency = &self.config.latency_cycles;
        if instruction.copies && self.config.eliminates_copies {
            return ("none", 0);
        }
        match instruction.class {
            Class::IntegerSimple => ("integer", latency.integer),
            Class::IntegerShift | Class::IntegerShiftVariable => ("shift", latency.integer),
            Class::IntegerSelect => ("select", latency.integer),
            Class::IntegerMultiply => ("multiply", latency.multiply),
            Class::IntegerDivide => ("divide", latency.divide),
            Class::IntegerDivide64 => ("divide 64", latency.divide_64.unwrap_or(latency.divide)),
            Class::FloatAdd => ("float add", latency.float_add),
            Class::FloatMultiply => ("float", latency.float_multiply),
            Class::FloatOther => ("float add", latency.float_other),
            Class::FloatConvert => ("transfer", latency.convert.unwrap_or(latency.float_other)),
            Class::FloatDivide => ("float divide", latency.float_divide),
            Class::VectorSimple => ("vector", latency.vector),
            Class::VectorTransfer => ("transfer", latency.transfer.unwrap_or(latency.vector)),
            Class::Call | Class::Return | Class::Jump => ("branch", latency.integer),
            Class::Load | Class::Store => ("none", 0),
            Class::Atomic => ("none", latency.atomic),
            Class::Serializing => ("none", latency.serializing),
            Class::Nop => ("none", 1),
            Class::FastString => ("integer", latency.other),
            class => unreachable!("{class:?} is not generated"),
        }
    }

    fn instruction(&mut self, instruction: &Instruction, accesses: &[Access]) {
        // At most 16 loads, then at most one store, take a place in the window.
        let mut groups: Vec<Vec<Access>> = vec![Vec::new()];
        for access in accesses {
            let group = groups.last_mut().unwrap();
            if group.last().is_some_and(|last| last.store) || group.len() == 16 && !access.store {
                groups.push(Vec::new());
            }
            groups.last_mut().unwrap().push(*access);
        }
        let drains = matches!(instruction.class, Class::Atomic | Class::Serializing);
        let (mut sources, mut addresses, mut done) = (0, 0, 0);
        let (mut early_sources, mut early_addresses, mut early_loaded) = (0, 0, 0);
        let mut early_dispatch = None;
        for (number, group) in groups.iter().enumerate() {
            let first = number == 0;
            let accesses = !group.is_empty();
            let loads = accesses && (first && instruction.loads > 0 || !group[0].store);
            let stores = accesses && (first && instruction.stores > 0 || group[0].store);
            let slots = if first { self.slots_of(instruction) } else { 1 };
            let (dispatch, mut milestones) = self.dispatch(instruction, (loads, stores), slots);
            if let Some(wrong_path) = &self.wrong_path
                && first
            {
                early_sources = Self::registers_ready(&wrong_path.ready, instruction.reads);
                early_addresses = Self::registers_ready(&wrong_path.ready, instruction.addresses);
            }
            early_dispatch = self.dispatch_early(instruction, accesses);
            if first {
                let committed = self.commitments.last().copied().unwrap_or(0);
                let drained = if drains { self.clock.max(committed) } else { 0 };
                sources = Self::registers_ready(&self.ready, instruction.reads).max(drained);
                addresses = Self::registers_ready(&self.ready, instruction.addresses).max(drained);
                if drains {
                    milestones[3].0 = milestones[3].0.max(committed);
                }
                if instruction.class == Class::FastString && accesses {
                    let begun = dispatch + u64::from(self.config.latency_cycles.fast_string);
                    self.front = self.front.max(begun);
                }
            }
            let early = early_dispatch.map(|dispatch| early_addresses.max(dispatch));
            let (group_done, loaded) = self.group(
                instruction,
                group,
                (dispatch, sources, addresses, early),
                milestones,
            );
            done = done.max(group_done);
            early_loaded = loaded;
        }
        let latency = u64::from(self.unit_and_latency(instruction).1).max(1);
        if let Some(wrong_path) = &mut self.wrong_path {
            let operands = early_sources.max(early_loaded).max(early_dispatch.unwrap());
            for bit in (0..64).filter(|bit| instruction.writes.0 >> bit & 1 != 0) {
                wrong_path.ready.insert(bit, done.min(operands + latency));
            }
        }
        if drains {
            self.wrong_path = None;
        }
        for bit in (0..64).filter(|bit| instruction.writes.0 >> bit & 1 != 0) {
            self.ready.insert(bit, done);
        }
        self.last_done = done;
    }

    /// One place in the window: its loads, its operation, and its store. Says when it is done, and
    /// when its loads are on a wrong path, where their addresses are known at `early`.
    fn group(
        &mut self,
        instruction: &Instruction,
        group: &[Access],
        (dispatch, sources, addresses, early): (u64, u64, u64, Option<u64>),
        mut milestones: Milestones,
    ) -> (u64, u64) {
        let latency = self.config.latency_cycles.clone();
        let (mut loaded, mut early_loaded) = (0, 0);
        let mut slowest = Vec::new();
        for access in group.iter().filter(|access| !access.store) {
            self.counters.loads += 1;
            let start = self.start("load", addresses.max(dispatch));
            let mut begins = start;
            if let (Some(wrong_path), Some(early)) = (&self.wrong_path, early)
                && early < wrong_path.until
            {
                begins = start.min(early);
            }
            self.loads.push(begins);
            let (there, part) = self.translate(begins, access);
            let translated = there.max(start);
            let stored = self.words.get(&(access.address >> 3)).copied();
            let mut fetched = translated;
            let done = match stored {
                Some((data, committed)) if translated < committed => {
                    self.counters.forwarded_loads += 1;
                    let forward = u64::from(latency.store_forward);
                    early_loaded = early_loaded.max(there.max(data) + forward);
                    translated.max(data) + forward
                }
                _ => {
                    let arrives = self.line(there, access);
                    early_loaded = early_loaded.max(arrives + u64::from(latency.load));
                    fetched = arrives.max(translated);
                    fetched + u64::from(latency.load)
                }
            };
            if done > loaded {
                loaded = done;
                slowest = vec![(start, "dependence"), (translated, part), (fetched, "data")];
            }
        }
        let store = group.iter().find(|access| access.store);
        let address = store.map(|store| {
            let start = self.start("store", addresses.max(dispatch));
            let (translated, part) = self.translate(start, store);
            (start, translated, part)
        });
        let (unit, latency) = self.unit_and_latency(instruction);
        let operands = sources.max(loaded).max(dispatch);
        let executed = (self.start(unit, operands) + u64::from(latency)).max(dispatch + 1);
        let mut done = executed;
        if let Some((start, translated, part)) = address
            && translated + 1 >= executed
        {
            done = translated + 1;
            slowest = vec![(start, "dependence"), (translated, part)];
        }
        milestones.extend(slowest);
        let retired = self.retire(done, &milestones);
        let (general, vector) = registers(instruction);
        self.general_retirements.extend(general.then_some(retired));
        self.vector_retirements.extend(vector.then_some(retired));
        let loads = group.iter().filter(|access| !access.store);
        self.load_retirements.extend(loads.map(|_| retired));
        let drains = matches!(instruction.class, Class::Atomic | Class::Serializing);
        if drains {
            self.barrier = retired;
        }
        if store.is_none() {
            self.microcode(instruction.class);
        }
        if let Some(store) = store {
            self.counters.stores += 1;
            let before = self.commitments.last().copied().unwrap_or(0);
            let arrival = self.line(retired, store);
            let commit = (retired + 1).max(before + 1).max(arrival);
            self.commitments.push(commit);
            self.words.insert(store.address >> 3, (executed, commit));
            if drains {
                self.barrier = commit;
            }
        }
        (done, early_loaded)
    }

    fn run(mut self, code: &[Vec<Instruction>], steps: &[Step]) -> Outcome {
        let mut returned = false;
        let config = self.config;
        let mut operations_before = 0;
        for step in steps {
            match step {
                Step::Block(block, fetches, accesses) => {
                    // Nothing calls, so that no return is predicted.
                    if returned {
                        self.counters.branches += 1;
                        self.counters.mispredictions += 1;
                        self.redirected =
                            self.last_done + self.config.mispredict_penalty_cycles.get();
                        self.front = self.front.max(self.redirected);
                        self.leave_path();
                    }
                    let start = place(*block);
                    if self.ended.is_some_and(|end| end != start) {
                        let ahead = Self::before(&self.dispatches, self.config.fetch_queue);
                        let call = config.call_cycles.filter(|_| returned);
                        let cycles = call.unwrap_or(config.taken_branch_cycles);
                        let next = self.taken.max(ahead) + u64::from(cycles);
                        self.taken = next.max(self.redirected);
                        self.front = self.front.max(self.taken);
                    }
                    self.ended = Some(start + 4 * code[*block].len() as u64);
                    for &(translation, walked, data) in fetches {
                        self.fetch(translation, walked, data);
                    }
                    for (instruction, accesses) in code[*block].iter().zip(accesses) {
                        self.instruction(instruction, accesses);
                    }
                    let last = code[*block].last();
                    returned = last.is_some_and(|last| last.class == Class::Return);
                    continue;
                }
                Step::Drain => {}
                Step::Kernel(work) => {
                    self.clock += work;
                    *self.parts.entry("kernel").or_default() += work;
                }
                Step::Wait(time) => {
                    let idle = time.saturating_sub(self.clock);
                    self.clock += idle;
                    *self.parts.entry("idle").or_default() += idle;
                }
                Step::Reset => {
                    self.parts.clear();
                    self.counters = CoreCounters::default();
                    operations_before = self.dispatches.len();
                }
            }
            returned = false;
            self.ended = None;
            self.wrong_path = None;
            self.front = self.front.max(self.clock);
        }
        let part = |name| Cycles::new(self.parts.get(name).copied().unwrap_or(0));
        Outcome {
            now: self.clock,
            breakdown: CycleBreakdown {
                issue: part("issue"),
                branch: part("branch"),
                dependence: part("dependence"),
                fetch: part("fetch"),
                data: part("data"),
                tlb: part("tlb"),
                walk: part("walk"),
                kernel: part("kernel"),
                idle: part("idle"),
            },
            counters: CoreCounters {
                operations: (self.dispatches.len() - operations_before) as u64,
                ..self.counters
            },
            loads: self.loads,
        }
    }
}

/// Returns whether an instruction needs a general register, and a vector register, for its results.
fn registers(instruction: &Instruction) -> (bool, bool) {
    let of = |bits: std::ops::Range<u32>| {
        !instruction.copies
            && bits
                .into_iter()
                .any(|bit| instruction.writes.0 >> bit & 1 != 0)
    };
    (of(0..16), of(17..57))
}

/// Small resources, so that programs of some hundred instructions run out of all of them.
fn configs() -> impl Strategy<Value = CoreConfig> {
    let sizes = vec(1..8_u32, 8);
    let ports = || subsequence((0..6).collect::<Vec<u8>>(), 1..4).prop_shuffle();
    let ports = vec(ports().prop_map(Ports::Numbers), 11);
    (sizes, ports, vec(1..12_u32, 16), 0..20_u64).prop_map(|(sizes, ports, latencies, penalty)| {
        let mut config = crate::common::skylake();
        config.issue_width = sizes[0].min(4);
        config.retire_width = sizes[1].min(4);
        config.window = 2 * sizes[2] * sizes[2];
        config.load_buffer = 2 * sizes[3];
        config.store_buffer = sizes[4];
        config.miss_registers = sizes[5].min(4);
        config.fill_cycles = latencies[14];
        config.eliminates_copies = latencies[13] % 2 == 1;
        config.page_walkers = sizes[6].min(3);
        config.page_walk_replay_cycles = latencies[15] % 4;
        config.fetch_queue = sizes[7];
        config.mispredict_penalty_cycles = Cycles::new(penalty);
        config.ports.integer = ports[0].clone();
        config.ports.multiply = ports[1].clone();
        config.ports.float = ports[2].clone();
        config.ports.vector = ports[3].clone();
        config.ports.load = ports[4].clone();
        config.ports.store = ports[5].clone();
        config.ports.branch = ports[6].clone();
        // Each kind has ports of its own in some configurations, and none in others.
        let own =
            |bit: u32, place: usize| (latencies[13] >> bit & 1 == 1).then(|| ports[place].clone());
        config.ports.shift = own(0, 7);
        config.ports.select = own(1, 8);
        config.ports.float_add = own(2, 9);
        config.ports.transfer = own(3, 10);
        config.slots.convert = sizes[0] % 4 + 1;
        config.slots.read_modify_write = sizes[1] % 4 + 1;
        config.slots.variable_shift = sizes[2] % 4 + 1;
        config.slots.call = sizes[3] % 4 + 1;
        config.slots.divide = sizes[0] % 13 + 1;
        config.slots.divide_64 = (sizes[1] > 2).then_some(sizes[2] % 40 + 1);
        let latency = &mut config.latency_cycles;
        latency.integer = latencies[0];
        latency.multiply = latencies[1];
        latency.divide = latencies[2];
        latency.divide_64 = (latencies[2] > 2).then_some(latencies[12]);
        latency.float_add = latencies[3];
        latency.float_multiply = latencies[11];
        latency.float_other = latencies[10];
        latency.convert = (latencies[3] > 3).then_some(latencies[14]);
        latency.transfer = (latencies[4] > 3).then_some(latencies[15]);
        latency.float_divide = latencies[4];
        latency.vector = latencies[5];
        latency.load = latencies[6];
        latency.store_forward = latencies[7];
        latency.atomic = latencies[8];
        latency.serializing = latencies[9];
        latency.other = latencies[13];
        latency.fast_string = latencies[14];
        config.taken_branch_cycles = latencies[15] / 4;
        config.call_cycles = (latencies[15] > 5).then_some(latencies[14] / 3);
        config.general_registers = (latencies[13] > 3).then_some(latencies[13]);
        config.vector_registers = (latencies[12] > 3).then_some(latencies[12]);
        config.divide_interval_cycles.integer = latencies[10];
        config.divide_interval_cycles.float = latencies[11];
        config.divide_interval_cycles.integer_64 = (latencies[2] > 2).then_some(latencies[9]);
        config
    })
}

/// Instructions on six general registers, of which the first two serve as addresses as well, and on as many
/// vector registers.
fn instructions() -> impl Strategy<Value = Instruction> {
    let classes = prop_oneof![
        6 => Just(Class::IntegerSimple),
        2 => Just(Class::IntegerShift),
        1 => Just(Class::IntegerShiftVariable),
        2 => Just(Class::IntegerSelect),
        2 => Just(Class::IntegerMultiply),
        1 => Just(Class::IntegerDivide),
        1 => Just(Class::IntegerDivide64),
        2 => Just(Class::FloatAdd),
        1 => Just(Class::FloatMultiply),
        1 => Just(Class::FloatOther),
        1 => Just(Class::FloatConvert),
        1 => Just(Class::VectorTransfer),
        1 => Just(Class::FloatDivide),
        2 => Just(Class::VectorSimple),
        6 => Just(Class::Load),
        4 => Just(Class::Store),
        1 => Just(Class::Atomic),
        1 => Just(Class::Serializing),
        1 => Just(Class::FastString),
        1 => Just(Class::Nop),
    ];
    // More registers than an operation's lists have room for now and then.
    let few = || prop_oneof![6 => 0..64_u64, 1 => 0..(1_u64 << 12)];
    (classes, few(), few(), 0..4_u64, 0..4_u8).prop_map(
        |(class, reads, writes, addresses, accesses)| {
            let (loads, stores) = match class {
                Class::Load => (1, 0),
                Class::Store => (0, 1),
                Class::Atomic => (1, 1),
                Class::Serializing | Class::Nop => (0, 0),
                // Both in one operation: read, modify, write.
                _ => (u8::from(accesses % 2 == 1), u8::from(accesses >= 2)),
            };
            // Not the stack pointer, which is renamed apart.
            let set = |bits: u64| RegisterSet(bits & !(1 << 4));
            let is_vector = matches!(
                class,
                Class::FloatAdd
                    | Class::FloatMultiply
                    | Class::FloatOther
                    | Class::FloatDivide
                    | Class::VectorSimple
            );
            // The first vector register.
            let shift = if is_vector { 25 } else { 0 };
            Instruction {
                class,
                reads: set(reads << shift | addresses),
                addresses: if loads + stores > 0 {
                    set(addresses)
                } else {
                    RegisterSet::EMPTY
                },
                writes: set(writes << shift),
                loads,
                stores,
                fuses: false,
                copies: class == Class::IntegerSimple && loads + stores == 0 && writes % 2 == 1,
            }
        },
    )
}

fn codes() -> impl Strategy<Value = Vec<Vec<Instruction>>> {
    let end = prop_oneof![
        Just(None),
        Just(Some(Class::Jump)),
        Just(Some(Class::Return))
    ];
    // Returns are mispredicted, and wait for a register.
    let block =
        (vec(instructions(), 0..12), end, 0..4_u32).prop_map(|(mut code, end, register)| {
            code.extend(end.map(|class| crate::common::operation(class, &[register], &[])));
            code
        });
    vec(block, 1..5)
}

/// Few lines and frames, so that accesses meet; their words differ in the bits that the window
/// tells stores apart by.
fn access(store: bool) -> impl Strategy<Value = Access> {
    let translation = prop_oneof![4 => Just((0, false)), 1 => (1..20_u64, any::<bool>())];
    let data = prop_oneof![4 => Just(0), 1 => 1..60_u64, 1 => 60..400_u64];
    (0..40_u64, 0..3_u64, translation, data).prop_map(
        move |(place, frame, (translation, walked), data)| Access {
            store,
            address: frame << 12 | (frame * 40 + place) << 3,
            translation: translation + if walked { SECOND_LEVEL_TLB } else { 0 },
            walked,
            data,
        },
    )
}

/// Accesses of an instruction: mostly its operands; at times none, or many.
fn accesses(instruction: &Instruction) -> BoxedStrategy<Vec<Access>> {
    let (loads, stores) = (instruction.loads, instruction.stores);
    if loads + stores == 0 {
        return Just(Vec::new()).boxed();
    }
    let operands = (
        vec(access(false), loads as usize),
        vec(access(true), stores as usize),
    )
        .prop_map(|(loads, stores)| [loads, stores].concat());
    let any_access = any::<bool>().prop_flat_map(access);
    let more = prop_oneof![vec(any_access, 0..6), vec(access(false), 15..20)];
    prop_oneof![9 => operands, 1 => more].boxed()
}

fn programs() -> impl Strategy<Value = (Vec<Vec<Instruction>>, Vec<Step>)> {
    codes().prop_flat_map(|code| {
        let fetch = prop_oneof![Just((0, false)), (1..20_u64, any::<bool>())];
        let fetch = (fetch, 0..20_u64).prop_map(|((latency, walked), data)| {
            let looked_up = if walked && latency > 0 {
                SECOND_LEVEL_TLB
            } else {
                0
            };
            (latency + looked_up, walked, data)
        });
        let fetches = prop_oneof![3 => Just(Vec::new()), 1 => vec(fetch, 1..3)];
        let blocks: Vec<_> = code
            .iter()
            .map(|block| block.iter().map(accesses).collect::<Vec<_>>())
            .collect();
        let block = (0..code.len(), fetches).prop_flat_map(move |(number, fetches)| {
            blocks[number]
                .clone()
                .prop_map(move |accesses| Step::Block(number, fetches.clone(), accesses))
        });
        let step = prop_oneof![
            20 => block,
            1 => Just(Step::Drain),
            1 => (0..50_u64).prop_map(Step::Kernel),
            1 => (0..2000_u64).prop_map(Step::Wait),
            1 => Just(Step::Reset),
        ];
        (Just(code), vec(step, 0..24))
    })
}

proptest! {
    #[test]
    fn the_window_follows_its_rules(config in configs(), (code, steps) in programs()) {
        let fast = run(&config, &code, &steps);
        let slow = Reference::new(&config).run(&code, &steps);
        prop_assert_eq!(fast, slow);
    }
}
