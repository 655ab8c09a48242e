//! Memory that the kernel allocates for itself in a program's system calls: buffers for its sockets,
//! page cache for its files, objects for both, stacks for its threads.
//!
//! Sizes are those of Linux 6.1 on x86-64; `docs/reference/costs.md` lists them with what is
//! simplified. An allocation that fails is left out: it is the kernel's, and the program goes
//! on.

use std::collections::HashMap;

use contigua_frames::{Evict, FrameClass, Group, Request};
use contigua_paging::Memory;
use contigua_program::syscall::{Call, DescriptorKind};
use contigua_program::wire::ProcessId;
use contigua_units::{Order, PAGE_BYTES};

use crate::ageing::later_group;

/// Data that sockets hold between the device and the program: what was moved last. A server's
/// default limit for the queues of one connection (`net.ipv4.tcp_rmem`) is 6 MB.
const SOCKET_QUEUE_BYTES: u64 = 6 << 20;
/// `struct file`, dentry and inode of an opened file.
const FILE_BYTES: u64 = 232 + 192 + 1_080;
/// `struct file`, dentry, inode and `struct tcp_sock`.
const SOCKET_BYTES: u64 = 232 + 192 + 768 + 2_304;
/// Two `struct file`, an inode and the ring of a pipe.
const PIPE_BYTES: u64 = 2 * 232 + 768 + 1_024;
/// The kernel's stack of a thread is 16 KB, in single frames (`CONFIG_VMAP_STACK`).
const STACK_FRAMES: u32 = 4;

/// The kernel's demand.
#[derive(Default, contigua_state::Plain)]
pub(crate) struct Demand {
    prepared: bool,
    /// Kinds of the descriptors of each process. Inherited ones are files.
    descriptors: HashMap<(u32, u32), DescriptorKind>,
    /// Bytes that do not fill a frame yet.
    network: u64,
    files: u64,
    objects: u64,
    caches: u64,
}

/// The groups of the kernel's memory.
#[derive(Clone, Copy)]
enum Use {
    Sockets,
    Files,
    Objects,
    Caches,
    Stacks,
}

impl Use {
    fn group(self) -> Group {
        later_group(self as u16)
    }
}

impl Demand {
    pub(crate) fn call(&mut self, call: &Call, process: ProcessId, memory: &mut Memory) {
        if !self.prepared {
            self.prepared = true;
            memory.set_evict(Use::Files.group(), Evict::File);
            memory.set_evict(Use::Caches.group(), Evict::Shrink);
        }
        match *call {
            Call::Receive {
                bytes,
                descriptor,
                positioned,
                ..
            }
            | Call::Send {
                bytes,
                descriptor,
                positioned,
                ..
            } => match self.descriptors.get(&(process.0, descriptor)) {
                Some(DescriptorKind::Socket | DescriptorKind::Accepted) => {
                    self.move_through_socket(bytes, memory);
                }
                Some(DescriptorKind::File) if !positioned => {
                    self.files += bytes;
                    take(&mut self.files, Use::Files, memory);
                }
                _ => {}
            },
            Call::Open { descriptor, kind } => {
                if let Some(descriptor) = descriptor {
                    self.descriptors.insert((process.0, descriptor), kind);
                }
                match kind {
                    // Names and inodes stay in caches when a file is closed.
                    DescriptorKind::File | DescriptorKind::DirectFile => {
                        self.caches += FILE_BYTES;
                        take(&mut self.caches, Use::Caches, memory);
                    }
                    DescriptorKind::Socket | DescriptorKind::Accepted => {
                        self.objects += SOCKET_BYTES;
                    }
                    DescriptorKind::Pipe => self.objects += PIPE_BYTES,
                }
                take(&mut self.objects, Use::Objects, memory);
            }
            Call::Close { descriptor } => {
                let kind = self.descriptors.remove(&(process.0, descriptor));
                if matches!(
                    kind,
                    Some(DescriptorKind::Socket | DescriptorKind::Accepted)
                ) {
                    self.give_objects(SOCKET_BYTES, memory);
                }
            }
            Call::Spawn => {
                let mut stack = u64::from(STACK_FRAMES) * PAGE_BYTES;
                take(&mut stack, Use::Stacks, memory);
            }
            _ => {}
        }
    }

    /// Returns the kind of a process's descriptor, where the program has made it.
    pub(crate) fn descriptor(&self, process: ProcessId, number: u32) -> Option<DescriptorKind> {
        self.descriptors.get(&(process.0, number)).copied()
    }

    /// A thread's stack goes with it.
    pub(crate) fn thread_ended(memory: &mut Memory) {
        for _ in 0..STACK_FRAMES {
            memory.free_oldest(Use::Stacks.group());
        }
    }

    /// A child has its parent's descriptors.
    pub(crate) fn forked(&mut self, parent: ProcessId, child: ProcessId) {
        let inherited: Vec<_> = self
            .descriptors
            .iter()
            .filter(|((process, _), _)| *process == parent.0)
            .map(|(&(_, descriptor), &kind)| ((child.0, descriptor), kind))
            .collect();
        self.descriptors.extend(inherited);
    }

    /// New buffers for what was moved; the oldest have reached their end.
    fn move_through_socket(&mut self, bytes: u64, memory: &mut Memory) {
        self.network += bytes;
        take(&mut self.network, Use::Sockets, memory);
        let group = Use::Sockets.group();
        while u64::from(memory.frames_in(group)) * PAGE_BYTES > SOCKET_QUEUE_BYTES {
            memory.free_oldest(group);
        }
    }

    fn give_objects(&mut self, bytes: u64, memory: &mut Memory) {
        let held = u64::from(memory.frames_in(Use::Objects.group())) * PAGE_BYTES;
        match self.objects.checked_sub(bytes) {
            Some(left) => self.objects = left,
            None if held > 0 => {
                memory.free_oldest(Use::Objects.group());
                self.objects += PAGE_BYTES - bytes;
            }
            None => self.objects = 0,
        }
    }
}

fn request(what: Use) -> Request {
    let class = match what {
        Use::Sockets => FrameClass::NetworkBuffer,
        Use::Files => FrameClass::PageCache,
        Use::Objects | Use::Caches => FrameClass::Slab,
        Use::Stacks => FrameClass::KernelOther,
    };
    Request {
        reclaimable: matches!(what, Use::Caches),
        group: Some(what.group()),
        // Single frames need no compaction, which would move the program's pages unseen.
        ..Request::new(Order::BASE, class)
    }
}

/// Allocates the whole frames of a number of bytes.
fn take(bytes: &mut u64, what: Use, memory: &mut Memory) {
    while *bytes >= PAGE_BYTES {
        *bytes -= PAGE_BYTES;
        memory.allocate_or_reclaim(&request(what), &mut ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ageing::fresh_memory;
    use contigua_frames::{Config, Placement};
    use contigua_units::Bytes;

    const PROCESS: ProcessId = ProcessId(3);

    fn open(descriptor: u32, kind: DescriptorKind) -> Call {
        Call::Open {
            descriptor: Some(descriptor),
            kind,
        }
    }

    fn receive(descriptor: u32, bytes: u64) -> Call {
        Call::Receive {
            bytes,
            buffer: None,
            descriptor,
            positioned: false,
        }
    }

    fn after(calls: &[Call]) -> Memory {
        let mut memory = fresh_memory(
            Bytes::new(64 << 20),
            &Config::default(),
            &Placement::default(),
        )
        .unwrap();
        let mut demand = Demand::default();
        for call in calls {
            demand.call(call, PROCESS, &mut memory);
        }
        assert_eq!(memory.validate(), Ok(()));
        memory
    }

    #[test]
    fn data_through_a_socket_is_buffered_up_to_the_limit_of_its_queue() {
        let socket = open(5, DescriptorKind::Socket);
        let memory = after(&[socket, receive(5, 1 << 20)]);
        assert_eq!(memory.frames_of(FrameClass::NetworkBuffer), 256);
        let memory = after(&[socket, receive(5, 50 << 20)]);
        assert_eq!(memory.frames_of(FrameClass::NetworkBuffer), 6 << 8);
        let other = after(&[socket, receive(6, 1 << 20)]);
        assert_eq!(other.frames_of(FrameClass::NetworkBuffer), 0);
    }

    #[test]
    fn data_through_a_file_stays_in_the_page_cache_until_reclaim_wants_it() {
        let file = open(5, DescriptorKind::File);
        let memory = after(&[file, receive(5, 8 << 20)]);
        assert_eq!(memory.frames_of(FrameClass::PageCache), 2048);
        // More than there is memory for.
        let memory = after(&[file, receive(5, 100 << 20)]);
        assert!(memory.counters().frames_reclaimed_direct > 0);
        assert_eq!(memory.counters().failures_movable, 0);
    }

    #[test]
    fn sockets_take_slab_and_give_it_back() {
        let mut calls: Vec<Call> = (0..1000).map(|i| open(i, DescriptorKind::Socket)).collect();
        let opened = after(&calls).frames_of(FrameClass::Slab);
        assert_eq!(opened, 1000 * SOCKET_BYTES / PAGE_BYTES);
        calls.extend((0..1000).map(|descriptor| Call::Close { descriptor }));
        assert!(after(&calls).frames_of(FrameClass::Slab) <= 1);
    }

    #[test]
    fn a_thread_has_a_stack() {
        assert_eq!(after(&[Call::Spawn]).frames_of(FrameClass::KernelOther), 4);
    }
}
