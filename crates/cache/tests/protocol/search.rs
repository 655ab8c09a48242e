//! Breadth-first search through all states, so that a counter-example is as short as possible.
//!
//! Not a crate of that kind: `stateright` removes symmetric states only when it searches depth
//! first, whose counter-examples are long, and keeps 64-bit fingerprints of states, so that it may
//! take one state for another. States of 128 bits can be kept as they are, in 29 bytes each.

use super::model::{Action, Model, State, Violation};

/// Result of a search.
#[derive(Debug)]
pub enum Outcome {
    /// Every reachable state was visited, and none is bad.
    Holds { states: usize, depth: usize },
    /// Shortest way to a bad step.
    Refuted {
        states: usize,
        violation: Violation,
        steps: Vec<String>,
    },
    /// More states than the search may visit.
    TooManyStates,
}

/// Visits every reachable state.
pub fn search(model: &mut Model, max_states: usize) -> Outcome {
    let mut seen = Seen::new();
    for state in model.initial_states() {
        let packed = model.pack(&state);
        seen.insert(packed, Seen::NO_PARENT);
    }
    let (mut actions, mut successors) = (Vec::new(), Vec::new());
    let (mut next, mut depth, mut level_end) = (0, 0, seen.len());
    while next < seen.len() {
        if next == level_end {
            depth += 1;
            level_end = seen.len();
        }
        if seen.len() > max_states {
            return Outcome::TooManyStates;
        }
        let state = model.unpack(seen.states[next]);
        model.actions(&state, &mut actions);
        for &action in &actions {
            match model.step(&state, action) {
                Ok(state) => successors.push(model.pack(&state)),
                Err(violation) => {
                    let steps = explain(model, &seen, next, &violation);
                    return Outcome::Refuted {
                        states: seen.len(),
                        violation,
                        steps,
                    };
                }
            }
        }
        seen.insert_all(&mut successors, next as u32);
        next += 1;
    }
    Outcome::Holds {
        states: seen.len(),
        depth,
    }
}

/// Result of a search for a state from which the migrations might not end.
#[derive(Debug)]
pub enum Ending {
    /// They end from every reachable state, in any order of the steps that are due, once no agent
    /// starts anything new.
    Always { states: usize },
    /// Shortest way to a state in which nothing is due, or from which steps that are due lead back
    /// to it.
    Never { steps: Vec<String> },
}

/// Visits every reachable state, and then follows the steps that are due ([`Model::is_progress`])
/// from each: there must be no circle, and no end but that of the migrations.
///
/// # Panics
/// If a bad state can be reached, or more than `max_states` of any kind.
pub fn search_for_a_dead_end(model: &mut Model, max_states: usize) -> Ending {
    let mut seen = Seen::new();
    for state in model.initial_states() {
        let packed = model.pack(&state);
        seen.insert(packed, Seen::NO_PARENT);
    }
    let (mut actions, mut successors) = (Vec::new(), Vec::new());
    let mut next = 0;
    while next < seen.len() {
        assert!(seen.len() <= max_states, "too many states");
        let state = model.unpack(seen.states[next]);
        model.actions(&state, &mut actions);
        for &action in &actions {
            let state = model.step(&state, action).expect("the protocol is correct");
            successors.push(model.pack(&state));
        }
        seen.insert_all(&mut successors, next as u32);
        next += 1;
    }
    // Depth first: a state is on the way, or its ways have all been followed.
    let (mut is_on_way, mut is_over) = (vec![false; seen.len()], vec![false; seen.len()]);
    let mut way: Vec<(usize, Vec<usize>)> = Vec::new();
    for start in 0..seen.len() {
        let mut entered = Some(start);
        loop {
            if let Some(at) = entered.filter(|&at| !is_over[at]) {
                let ways = due(model, &seen, at);
                let is_done = model.is_done(&model.unpack(seen.states[at]));
                if is_on_way[at] || ways.is_empty() && !is_done {
                    let (_, steps) = walk(model, &seen, at);
                    return Ending::Never { steps };
                }
                is_on_way[at] = true;
                way.push((at, ways));
            }
            let Some((at, rest)) = way.last_mut() else {
                break;
            };
            entered = rest.pop();
            if entered.is_none() {
                is_on_way[*at] = false;
                is_over[*at] = true;
                way.pop();
            }
        }
    }
    Ending::Always { states: seen.len() }
}

/// States to which the steps lead that are due in one, and change it.
fn due(model: &mut Model, seen: &Seen, at: usize) -> Vec<usize> {
    let state = model.unpack(seen.states[at]);
    let mut actions = Vec::new();
    model.actions(&state, &mut actions);
    actions.retain(|&action| Model::is_progress(action));
    let steps = actions.into_iter().map(|action| {
        let state = model.step(&state, action).expect("the protocol is correct");
        seen.find(model.pack(&state)).expect("every state was met")
    });
    steps.filter(|&next| next != at).collect()
}

/// The way to a bad step.
fn explain(model: &mut Model, seen: &Seen, last: usize, violation: &Violation) -> Vec<String> {
    let (state, mut steps) = walk(model, seen, last);
    let (action, _) = find_step(model, &state, |_, outcome| {
        outcome == Err(violation.clone())
    });
    steps.push(format!("{}: {violation}", model.describe(&state, action)));
    steps
}

/// The way to a state, and the state. States stand for their symmetric groups, so the way is walked
/// again, and cores keep their numbers on it.
fn walk(model: &mut Model, seen: &Seen, last: usize) -> (State, Vec<String>) {
    let mut way = vec![seen.states[last]];
    let mut index = last;
    while seen.parents[index] != Seen::NO_PARENT {
        index = seen.parents[index] as usize;
        way.push(seen.states[index]);
    }
    way.reverse();
    let mut state = model.unpack(way[0]);
    let mut steps: Vec<_> = Model::describe_caches(&state).into_iter().collect();
    for &target in &way[1..] {
        let (action, next) = find_step(model, &state, |model, outcome| {
            outcome.is_ok_and(|next| model.pack(&next) == target)
        });
        steps.push(model.describe(&state, action));
        state = next.expect("the step was possible");
    }
    (state, steps)
}

fn find_step(
    model: &mut Model,
    state: &State,
    wanted: impl Fn(&mut Model, Result<State, Violation>) -> bool,
) -> (Action, Result<State, Violation>) {
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    for action in actions {
        let outcome = model.step(state, action);
        if wanted(model, outcome.clone()) {
            return (action, outcome);
        }
    }
    unreachable!("the search took this step");
}

/// The states that were met, in that order, and which state each was met from.
struct Seen {
    states: Vec<u128>,
    parents: Vec<u32>,
    /// Open addressing; one more than the place in `states`, or 0.
    slots: Vec<u32>,
    /// Room for [`Seen::insert_all`].
    found: Vec<u32>,
}

impl Seen {
    const NO_PARENT: u32 = u32::MAX;

    fn new() -> Self {
        Self {
            states: Vec::new(),
            parents: Vec::new(),
            slots: vec![0; 1 << 16],
            found: Vec::new(),
        }
    }

    fn len(&self) -> usize {
        self.states.len()
    }

    /// Inserts the states and leaves the list empty. Nearly all have been met before, and to find
    /// that out takes two accesses to memory, one after the other; in these loops the processor
    /// waits for those of several states at the same time.
    fn insert_all(&mut self, states: &mut Vec<u128>, parent: u32) {
        let mask = self.slots.len() - 1;
        self.found.clear();
        let slots = states.iter().map(|&state| self.slots[hash(state) & mask]);
        self.found.extend(slots);
        let mut found = self.found.iter();
        states.retain(|state| match found.next() {
            Some(&slot) if slot != 0 => self.states[slot as usize - 1] != *state,
            _ => true,
        });
        for state in states.drain(..) {
            self.insert(state, parent);
        }
    }

    fn find(&self, state: u128) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash(state) & mask;
        while self.slots[slot] != 0 {
            let index = self.slots[slot] as usize - 1;
            if self.states[index] == state {
                return Some(index);
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    fn insert(&mut self, state: u128, parent: u32) {
        if self.states.len() * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut slot = hash(state) & mask;
        while self.slots[slot] != 0 {
            if self.states[self.slots[slot] as usize - 1] == state {
                return;
            }
            slot = (slot + 1) & mask;
        }
        self.states.push(state);
        self.parents.push(parent);
        self.slots[slot] = u32::try_from(self.states.len()).expect("fewer states than 2^32");
    }

    fn grow(&mut self) {
        let length = self.slots.len() * 2;
        self.slots = Vec::new();
        self.slots.resize(length, 0);
        for (index, &state) in self.states.iter().enumerate() {
            let mut slot = hash(state) & (length - 1);
            while self.slots[slot] != 0 {
                slot = (slot + 1) & (length - 1);
            }
            self.slots[slot] = index as u32 + 1;
        }
    }
}

fn hash(state: u128) -> usize {
    let mut hash = (state as u64) ^ ((state >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ hash >> 31) as usize
}
