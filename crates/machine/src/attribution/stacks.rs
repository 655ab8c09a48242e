//! Call stacks, from the calls and returns that threads execute: no frame pointer is needed, nor any
//! information for unwinding.
//!
//! A call pushes where it returns to. A return pops to the frame that it leads to, however many others
//! lie above (`longjmp`, exceptions); one that leads to no frame is a jump. Stacks that have been seen
//! are nodes of a tree.

use std::collections::HashMap;

use contigua_program::wire::ThreadId;
use rustc_hash::FxBuildHasher;
use schemars::JsonSchema;
use serde::Serialize;

/// Frames that a stack tells apart; calls below them belong to the deepest one.
const DEPTH: usize = 128;
/// Frames that are remembered, to return through them. A deeper recursion loses its outermost ones.
const FRAMES: usize = 1 << 16;

/// Exit of a block, for stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exit {
    /// Otherwise.
    #[default]
    Other,
    /// By a call.
    Call,
    /// By a return.
    Return,
}

/// A stack: the instruction that called, in the stack that it was called in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Node {
    /// Index of the calling function's stack; that of the root is its own.
    pub parent: u32,
    /// The call, by its place in the profile's list of instructions.
    pub call: u32,
}

/// The stack without calls.
pub const ROOT: u32 = 0;

struct Frame {
    returns_to: u64,
    /// The stack that the call was made in.
    node: u32,
}

#[derive(Default)]
struct Thread {
    frames: Vec<Frame>,
    node: u32,
    /// Distance of `node` from the root.
    depth: usize,
    /// End of the last block: its last instruction and the address behind it.
    pending: Pending,
}

#[derive(Clone, Copy, Default)]
struct Pending {
    exit: Exit,
    last: u32,
    end: u64,
}

/// The stacks of all threads.
pub struct Stacks {
    nodes: Vec<Node>,
    known: HashMap<(u32, u32), u32, FxBuildHasher>,
    threads: Vec<Thread>,
}

impl Stacks {
    pub fn new() -> Self {
        Self {
            nodes: vec![Node {
                parent: ROOT,
                call: 0,
            }],
            known: HashMap::default(),
            threads: Vec::new(),
        }
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The stack of a thread.
    #[inline]
    pub fn of(&self, thread: ThreadId) -> u32 {
        self.threads
            .get(thread.0 as usize)
            .map_or(ROOT, |thread| thread.node)
    }

    fn thread(&mut self, thread: ThreadId) -> &mut Thread {
        let index = thread.0 as usize;
        if index >= self.threads.len() {
            self.threads.resize_with(index + 1, Thread::default);
        }
        &mut self.threads[index]
    }

    /// A thread enters a block that begins at `start`. Its last instruction is `last`, and `end` the
    /// address behind it.
    #[inline]
    pub fn enter(&mut self, thread: ThreadId, start: u64, exit: Exit, last: u32, end: u64) {
        let of = self.thread(thread);
        let before = std::mem::replace(&mut of.pending, Pending { exit, last, end });
        match before.exit {
            Exit::Other => {}
            Exit::Call => self.call(thread, before),
            Exit::Return => self.thread(thread).ret(start),
        }
    }

    fn call(&mut self, thread: ThreadId, before: Pending) {
        let of = self.thread(thread);
        let parent = of.node;
        if of.frames.len() == FRAMES {
            of.frames.drain(..FRAMES / 2);
        }
        of.frames.push(Frame {
            returns_to: before.end,
            node: parent,
        });
        of.depth += 1;
        if of.depth <= DEPTH {
            let node = self.child(parent, before.last);
            self.thread(thread).node = node;
        }
    }

    fn child(&mut self, parent: u32, call: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let node = *self.known.entry((parent, call)).or_insert(next);
        if node == next {
            self.nodes.push(Node { parent, call });
        }
        node
    }

    /// Forgets a thread's stack, because blocks were missed: it begins anew at the root.
    pub fn forget(&mut self, thread: ThreadId) {
        *self.thread(thread) = Thread::default();
    }
}

impl Thread {
    fn ret(&mut self, to: u64) {
        let found = self.frames.iter().rposition(|frame| frame.returns_to == to);
        let Some(found) = found else {
            return;
        };
        self.node = self.frames[found].node;
        self.depth -= (self.frames.len() - found).min(self.depth);
        self.frames.truncate(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: ThreadId = ThreadId(0);

    /// A program of functions at multiples of 100, whose blocks are entered in order.
    struct Walker(Stacks);

    impl Walker {
        fn enter(&mut self, start: u64, exit: Exit) {
            self.0.enter(THREAD, start, exit, start as u32, start + 10);
        }

        /// The calls of the present stack, outermost first.
        fn calls(&self) -> Vec<u32> {
            let mut calls = Vec::new();
            let mut node = self.0.of(THREAD);
            while node != ROOT {
                calls.push(self.0.nodes()[node as usize].call);
                node = self.0.nodes()[node as usize].parent;
            }
            calls.reverse();
            calls
        }
    }

    #[test]
    fn calls_nest_and_returns_lead_back() {
        let mut walker = Walker(Stacks::new());
        walker.enter(100, Exit::Call);
        walker.enter(200, Exit::Call);
        walker.enter(300, Exit::Return);
        assert_eq!(walker.calls(), [100, 200]);
        walker.enter(210, Exit::Call);
        assert_eq!(walker.calls(), [100]);
        walker.enter(300, Exit::Return);
        assert_eq!(walker.calls(), [100, 210]);
        walker.enter(220, Exit::Return);
        walker.enter(110, Exit::Other);
        assert!(walker.calls().is_empty());
        assert_eq!(walker.0.nodes().len(), 4, "equal stacks are one node");
    }

    #[test]
    fn a_return_through_several_frames_pops_them_and_a_foreign_one_none() {
        let mut walker = Walker(Stacks::new());
        for start in [100, 200, 300] {
            walker.enter(start, Exit::Call);
        }
        walker.enter(400, Exit::Return);
        walker.enter(777, Exit::Return);
        assert_eq!(walker.calls(), [100, 200, 300]);
        walker.enter(110, Exit::Other);
        assert!(walker.calls().is_empty());
    }

    #[test]
    fn a_recursion_a_million_deep_is_bounded_and_comes_back() {
        let mut walker = Walker(Stacks::new());
        for _ in 0..1_000_000 {
            walker.enter(100, Exit::Call);
        }
        walker.enter(200, Exit::Return);
        assert_eq!(walker.calls().len(), DEPTH);
        assert!(walker.0.nodes().len() <= DEPTH + 1);
        for _ in 0..FRAMES / 2 {
            walker.enter(110, Exit::Return);
        }
        assert!(walker.calls().len() <= DEPTH);
    }
}
