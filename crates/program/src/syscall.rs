//! System calls that a memory system can see, under one vocabulary for all architectures.
//!
//! The list serves twice: the plugin keeps arguments and result of exactly these calls, and the
//! simulated kernel reads them back as [`Call`]s. Numbers are those of the Linux kernel's
//! `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`.

use contigua_units::{VirtAddr, VirtRange};

use crate::wire::Syscall;

/// The architecture of the guest program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Architecture {
    /// The name that QEMU and `uname -m` use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// `O_DIRECT` of `open` (Linux, `include/uapi/asm-generic/fcntl.h`, and arm64's own).
    const fn o_direct(self) -> u64 {
        match self {
            Self::X86_64 => 0o40000,
            Self::Aarch64 => 0o200_000,
        }
    }

    /// The ELF machine number (`e_machine`).
    #[must_use]
    pub const fn elf_machine(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Aarch64 => 183,
        }
    }

    /// All architectures that the project knows.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];
}

/// A clock that the QEMU plugin answers, and no kernel: it counts the instructions that the process
/// has executed, so that what a program does by this clock is the same in every run. The time is
/// written although `clock_gettime` fails.
pub const PROGRAM_CLOCK: i32 = 0x00c0_417a;

macro_rules! vocabulary {
    ($($(#[$meta:meta])* $name:ident: $x86:expr, $arm:expr;)*) => {
        /// The calls whose arguments and result are kept.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each variant is the system call of that name")]
        pub enum Known {
            $($(#[$meta])* $name,)*
        }

        impl Known {
            /// Returns the call that has a number on `architecture`, if it is one of these.
            #[must_use]
            pub fn of(architecture: Architecture, number: u16) -> Option<Self> {
                let table: &[(u16, u16, Self)] = &[$(($x86, $arm, Self::$name),)*];
                table
                    .iter()
                    .find(|&&(x86, arm, _)| {
                        let mine = match architecture {
                            Architecture::X86_64 => x86,
                            Architecture::Aarch64 => arm,
                        };
                        mine != ABSENT && mine == number
                    })
                    .map(|&(_, _, known)| known)
            }

            /// The number of the call on `architecture`; `None` where it does not exist.
            #[must_use]
            pub const fn number(self, architecture: Architecture) -> Option<u16> {
                let (x86, arm) = match self {
                    $(Self::$name => ($x86, $arm),)*
                };
                let number = match architecture {
                    Architecture::X86_64 => x86,
                    Architecture::Aarch64 => arm,
                };
                if number == ABSENT { None } else { Some(number) }
            }
        }
    };
}

/// Marks a call that an architecture does not have.
const ABSENT: u16 = u16::MAX;

vocabulary! {
    Mmap: 9, 222;
    Mprotect: 10, 226;
    Munmap: 11, 215;
    Brk: 12, 214;
    Mremap: 25, 216;
    Madvise: 28, 233;
    Shmget: 29, 194;
    Shmat: 30, 196;
    Shmdt: 67, 197;
    Read: 0, 63;
    Write: 1, 64;
    Pread64: 17, 67;
    Pwrite64: 18, 68;
    Readv: 19, 65;
    Writev: 20, 66;
    Preadv: 295, 69;
    Pwritev: 296, 70;
    Preadv2: 327, 286;
    Pwritev2: 328, 287;
    Vmsplice: 278, 75;
    Sendto: 44, 206;
    Recvfrom: 45, 207;
    Sendmsg: 46, 211;
    Recvmsg: 47, 212;
    Sendmmsg: 307, 269;
    Recvmmsg: 299, 243;
    Sendfile: 40, 71;
    Splice: 275, 76;
    CopyFileRange: 326, 285;
    Open: 2, ABSENT;
    Openat: 257, 56;
    Close: 3, 57;
    Socket: 41, 198;
    Pipe: 22, ABSENT;
    Pipe2: 293, 59;
    Accept: 43, 202;
    Accept4: 288, 242;
    EpollWait: 232, ABSENT;
    EpollPwait: 281, 22;
    Poll: 7, ABSENT;
    Ppoll: 271, 73;
    Select: 23, ABSENT;
    Pselect6: 270, 72;
    Futex: 202, 98;
    Clone: 56, 220;
    Clone3: 435, 435;
    Fork: 57, ABSENT;
    Vfork: 58, ABSENT;
    Execve: 59, 221;
    Execveat: 322, 281;
    Exit: 60, 93;
    ExitGroup: 231, 94;
    Prctl: 157, 167;
    IoUringSetup: 425, 425;
    IoSetup: 206, 0;
    Userfaultfd: 323, 282;
}

impl Known {
    /// Returns true if the call makes a process or a thread: its result is an id that differs from
    /// run to run, of which only success or failure is kept.
    #[must_use]
    pub const fn returns_process_id(self) -> bool {
        matches!(self, Self::Clone | Self::Clone3 | Self::Fork | Self::Vfork)
    }

    /// Returns true if the call changes mappings.
    #[must_use]
    pub const fn changes_mappings(self) -> bool {
        matches!(
            self,
            Self::Mmap
                | Self::Munmap
                | Self::Mremap
                | Self::Brk
                | Self::Mprotect
                | Self::Madvise
                | Self::Shmat
                | Self::Shmdt
        )
    }
}

/// Returns true if a call may end processes of the program without their doing: it sends `SIGKILL`,
/// has the kernel send it when the caller ends, or makes a PID namespace, whose processes end with
/// its first.
#[must_use]
pub fn may_kill(architecture: Architecture, number: i64, arguments: [u64; 4]) -> bool {
    const SIGKILL: u64 = 9;
    const PR_SET_PDEATHSIG: u64 = 1;
    const CLONE_NEWPID: u64 = 0x2000_0000;
    let [first, second, third, _] = arguments;
    let call = KILLING.iter().find(|call| {
        number
            == match architecture {
                Architecture::X86_64 => call.0,
                Architecture::Aarch64 => call.1,
            }
    });
    match call.map(|call| call.2) {
        Some(Killing::SignalSecond) => second == SIGKILL,
        Some(Killing::SignalThird) => third == SIGKILL,
        Some(Killing::Prctl) => first == PR_SET_PDEATHSIG && second == SIGKILL,
        Some(Killing::Flags) => first & CLONE_NEWPID != 0,
        None => false,
    }
}

/// Place in which a call that has waited for a child returns how that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// A status as `wait4` has it, at this address.
    Status(u64),
    /// A `siginfo_t`, at this address.
    Information(u64),
}

impl Waited {
    /// Of a call, if it is one and has such an address.
    #[must_use]
    pub fn of(architecture: Architecture, number: i64, arguments: [u64; 3]) -> Option<Self> {
        let (wait4, waitid) = match architecture {
            Architecture::X86_64 => (61, 247),
            Architecture::Aarch64 => (260, 95),
        };
        let found = if number == wait4 {
            Self::Status(arguments[1])
        } else if number == waitid {
            Self::Information(arguments[2])
        } else {
            return None;
        };
        (found != Self::Status(0) && found != Self::Information(0)).then_some(found)
    }

    /// Number of the child of a call that returned `result`: `waitid` returns 0, and has it 16 bytes from
    /// the start of the `siginfo_t`.
    #[must_use]
    pub fn child(self, result: i64, word: impl Fn(u64) -> Option<i32>) -> Option<u32> {
        let child = match self {
            Self::Status(_) => u32::try_from(result).ok(),
            Self::Information(at) => word(at + 16)?.try_into().ok(),
        };
        // None has ended (`WNOHANG`).
        child.filter(|&child| child != 0)
    }

    /// The signal that ended the child, if one did: what is at the address is a word of 32 bits for
    /// `wait4`, else `si_code` and `si_status` of a `siginfo_t`, 8 and 24 bytes from its start.
    #[must_use]
    pub fn signal(self, word: impl Fn(u64) -> Option<i32>) -> Option<i32> {
        /// `si_code` of a child that a signal ended, without and with a core file.
        const KILLED: [i32; 2] = [2, 3];
        match self {
            Self::Status(at) => {
                let status = word(at)?;
                let signal = status & 0x7f;
                (signal != 0 && status & 0xff != 0x7f).then_some(signal)
            }
            Self::Information(at) => {
                let code = word(at + 8)?;
                KILLED.contains(&code).then(|| word(at + 24)).flatten()
            }
        }
    }
}

/// Argument by which a call kills.
#[derive(Clone, Copy)]
enum Killing {
    SignalSecond,
    SignalThird,
    Prctl,
    Flags,
}

/// Numbers on x86-64 and on aarch64 of calls that [`may_kill`].
const KILLING: [(i64, i64, Killing); 9] = [
    (62, 129, Killing::SignalSecond),  // kill
    (200, 130, Killing::SignalSecond), // tkill
    (234, 131, Killing::SignalThird),  // tgkill
    (129, 138, Killing::SignalSecond), // rt_sigqueueinfo
    (297, 240, Killing::SignalThird),  // rt_tgsigqueueinfo
    (424, 424, Killing::SignalSecond), // pidfd_send_signal
    (157, 167, Killing::Prctl),        // prctl
    (272, 97, Killing::Flags),         // unshare
    (56, 220, Killing::Flags),         // clone
];

/// Effect of a call, for the simulated kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `mmap` put a mapping at `range`.
    Map {
        /// The new mapping.
        range: VirtRange,
        /// `PROT_WRITE` was given.
        writable: bool,
        /// `MAP_ANONYMOUS` was given; otherwise a file is mapped.
        anonymous: bool,
        /// `MAP_SHARED` was given.
        shared: bool,
        /// `MAP_HUGETLB` was given.
        huge: bool,
        /// `MAP_POPULATE` was given: pages are faulted in at once.
        populate: bool,
        /// `MAP_STACK` was given.
        stack: bool,
        /// It may have huge pages: not with `MAP_STACK`, since Linux 6.7 (`calc_vm_flag_bits`,
        /// `include/linux/mman.h`).
        may_be_huge: bool,
        /// The file of a shared mapping, where it lies in memory.
        file: Option<MemoryFile>,
        /// Offset in the file.
        offset: u64,
    },
    /// `shmget` found or made a segment of System V shared memory.
    Segment {
        /// Its identifier.
        id: u32,
        /// At least its size.
        bytes: u64,
        /// `SHM_HUGETLB` was given.
        huge: bool,
    },
    /// `shmat` mapped a segment.
    Attach {
        /// The segment.
        id: u32,
        /// Address of the mapping.
        at: VirtAddr,
        /// `SHM_RDONLY` was not given.
        writable: bool,
    },
    /// `shmdt` unmaps a segment.
    Detach {
        /// Address that `shmat` returned.
        at: VirtAddr,
    },
    /// `munmap` removed `range`.
    Unmap {
        /// The addresses.
        range: VirtRange,
    },
    /// `mremap` moved or resized a mapping.
    Remap {
        /// Its former range.
        from: VirtRange,
        /// Its present range.
        to: VirtRange,
        /// `MREMAP_DONTUNMAP` was given: the old range stays mapped, empty.
        keep: bool,
    },
    /// `brk` set the end of the heap.
    Break {
        /// The end.
        end: VirtAddr,
    },
    /// `mprotect` changed protection.
    Protect {
        /// The addresses.
        range: VirtRange,
        /// `PROT_WRITE` was given.
        writable: bool,
    },
    /// `madvise` gave advice.
    Advise {
        /// The addresses.
        range: VirtRange,
        /// The advice.
        advice: Advice,
    },
    /// `prctl(PR_SET_THP_DISABLE)`: the process has no transparent huge pages from now on, or has them
    /// again.
    DisableHugePages {
        /// Value that the call set.
        disabled: bool,
        /// Memory that `MADV_HUGEPAGE` advises has them still (Linux 6.18).
        but_advised: bool,
    },
    /// `libcontigua_sites.so` told of a block that the allocator gave to the program.
    Allocate {
        /// The block.
        range: VirtRange,
        /// Address behind the call of the allocator.
        caller: VirtAddr,
    },
    /// The program asked for something that QEMU's user mode does not have, whatever the answer.
    Ask(Facility),
    /// Data went from the kernel to the program.
    Receive {
        /// Number of bytes.
        bytes: u64,
        /// The program's buffer; `None` for calls that take vectors, which
        /// [`Event::Piece`](crate::wire::Event::Piece) tells.
        buffer: Option<VirtRange>,
        /// The file descriptor.
        descriptor: u32,
        /// The call says where in the file, so that it may return to what it has seen before.
        positioned: bool,
    },
    /// Data went from the program to the kernel.
    Send {
        /// Number of bytes.
        bytes: u64,
        /// The program's buffer; `None` for calls that take vectors, which
        /// [`Event::Piece`](crate::wire::Event::Piece) tells, and between descriptors.
        buffer: Option<VirtRange>,
        /// The file descriptor.
        descriptor: u32,
        /// The call says where in the file, so that it may return to what it has seen before.
        positioned: bool,
    },
    /// `vmsplice`: pages of the program went into a pipe, which holds them.
    /// [`Event::Piece`](crate::wire::Event::Piece) tells which.
    Lend {
        /// Number of bytes.
        bytes: u64,
    },
    /// A call that made a file descriptor.
    Open {
        /// The file descriptor; for pipes, which return two in memory, `None`.
        descriptor: Option<u32>,
        /// Kind of the descriptor.
        kind: DescriptorKind,
    },
    /// `close`.
    Close {
        /// The file descriptor.
        descriptor: u32,
    },
    /// The program waited for events.
    Wait,
    /// A thread waited for a word of memory (`futex`), and was woken.
    WaitForWord {
        /// The word.
        address: VirtAddr,
    },
    /// A thread told the kernel to wake those that wait for a word.
    WakeWord {
        /// The word.
        address: VirtAddr,
    },
    /// A thread, a process or a program began.
    Spawn,
    /// A thread or process ended.
    Exit,
    /// A call that failed, or that no memory system can see.
    Other,
}

/// Bytes that Linux moves at a time, at most (`MAX_RW_COUNT`, `include/linux/fs.h`).
pub(crate) const MOST_BYTES: u64 = 0x7fff_f000;
/// Programs have the lower half of the addresses (`Documentation/arch/x86/x86_64/mm.rst`).
pub(crate) const END_OF_PROGRAM: VirtAddr = VirtAddr::new(1 << 47);

/// Kind of a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub enum DescriptorKind {
    /// A file, or a device that looks like one.
    File,
    /// A file that was opened with `O_DIRECT`: a device reads and writes the program's pages.
    DirectFile,
    /// A socket that the program made: for connections to others, or for those that it accepts.
    Socket,
    /// A connection that a client opened.
    Accepted,
    /// A pipe.
    Pipe,
}

/// Part of Linux by which memory changes without a system call, or by another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facility {
    /// `io_uring_setup`.
    IoUring,
    /// `io_setup` (Linux AIO).
    Aio,
    /// `userfaultfd`.
    Userfaultfd,
}

/// `madvise` advice that changes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// `MADV_DONTNEED`: contents are dropped at once.
    DontNeed,
    /// `MADV_FREE`: contents may be dropped when memory is short.
    Free,
    /// `MADV_HUGEPAGE`.
    HugePage,
    /// `MADV_NOHUGEPAGE`.
    NoHugePage,
    /// `MADV_POPULATE_READ`.
    PopulateRead,
    /// `MADV_POPULATE_WRITE`.
    PopulateWrite,
    /// `MADV_COLLAPSE`.
    Collapse,
    /// Advice that changes no mapping.
    Other,
}

impl Advice {
    /// From the kernel's number (`include/uapi/asm-generic/mman-common.h`).
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        match number {
            4 => Self::DontNeed,
            8 => Self::Free,
            14 => Self::HugePage,
            15 => Self::NoHugePage,
            22 => Self::PopulateRead,
            23 => Self::PopulateWrite,
            25 => Self::Collapse,
            _ => Self::Other,
        }
    }
}

/// `include/uapi/linux/prctl.h`.
const PR_SET_THP_DISABLE: u64 = 41;
/// No request of Linux's: `crates/sites` has the same number.
const ALLOCATED: u64 = 0x7349_5445;
const PR_THP_DISABLE_EXCEPT_ADVISED: u64 = 1 << 1;
const PROT_WRITE: u64 = 2;
const MAP_SHARED: u64 = 0x01;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_POPULATE: u64 = 0x8000;
/// `include/uapi/asm-generic/mman.h`.
pub const MAP_STACK: u64 = 0x2_0000;
/// No flag of Linux's: a plugin gives it with [`MAP_STACK`] under versions where that means nothing.
pub const STACK_MAY_BE_HUGE: u64 = 1 << 63;
const MAP_HUGETLB: u64 = 0x4_0000;
const MREMAP_DONTUNMAP: u64 = 4;
/// `include/uapi/linux/shm.h`.
const SHM_HUGETLB: u64 = 0o4000;
const SHM_RDONLY: u64 = 0o10000;

/// A file whose pages are memory, and no copy of a device's. The plugin puts it in the place of
/// the descriptor of a shared mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFile {
    /// Name, by which processes have the same file: [`MemoryFile::NAME_BITS`] bits.
    pub name: u64,
    /// Origin of its pages.
    pub kind: MemoryFileKind,
}

/// Origin of the pages of a [`MemoryFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFileKind {
    /// `memfd_create`.
    Memfd,
    /// A `tmpfs` that is mounted, such as `/dev/shm`.
    Mounted,
    /// `hugetlbfs`, or `memfd_create` with `MFD_HUGETLB`.
    HugeTlb,
}

impl MemoryFile {
    /// Bits of a name.
    pub const NAME_BITS: u32 = 56;
    /// Marks a file in the place of a descriptor, which has 32 bits.
    const MARK: u64 = 0x40;

    /// The argument of `mmap` that has it in the place of a descriptor.
    #[must_use]
    pub const fn encode(self) -> u64 {
        (Self::MARK | self.kind as u64) << Self::NAME_BITS
            | self.name & ((1 << Self::NAME_BITS) - 1)
    }

    /// The file of an `mmap` with these flags and this argument.
    fn of_map(flags: u64, argument: u64) -> Option<Self> {
        if flags & MAP_SHARED == 0 || flags & MAP_ANONYMOUS != 0 {
            return None;
        }
        let kinds = [
            MemoryFileKind::Memfd,
            MemoryFileKind::Mounted,
            MemoryFileKind::HugeTlb,
        ];
        let name = argument & ((1 << Self::NAME_BITS) - 1);
        kinds
            .map(|kind| Self { name, kind })
            .into_iter()
            .find(|file| file.encode() == argument)
    }
}

impl Call {
    /// Returns the effect of a system call that has returned. Failed calls did nothing and are
    /// [`Call::Other`], except `brk`, which reports the unchanged break.
    #[must_use]
    pub fn of(architecture: Architecture, syscall: &Syscall) -> Self {
        let Some(known) = Known::of(architecture, syscall.number) else {
            return Self::Other;
        };
        let [a0, a1, a2, a3, a4, a5] = syscall.arguments;
        let address = VirtAddr::new(syscall.result.cast_unsigned());
        let first = |bytes| VirtRange::with_length(VirtAddr::new(a0), bytes).page_aligned();
        if syscall.result < 0 {
            return Self::refused(known, syscall);
        }
        match known {
            Known::Mmap => Self::Map {
                range: VirtRange::with_length(address, a1).page_aligned(),
                writable: a2 & PROT_WRITE != 0,
                anonymous: a3 & MAP_ANONYMOUS != 0,
                shared: a3 & MAP_SHARED != 0,
                huge: a3 & MAP_HUGETLB != 0,
                populate: a3 & MAP_POPULATE != 0,
                stack: a3 & MAP_STACK != 0,
                may_be_huge: a3 & (MAP_STACK | STACK_MAY_BE_HUGE) != MAP_STACK,
                file: MemoryFile::of_map(a3, a4),
                offset: a5,
            },
            Known::Shmget => Self::Segment {
                id: address.get() as u32,
                bytes: a1,
                huge: a2 & SHM_HUGETLB != 0,
            },
            Known::Shmat => Self::Attach {
                id: a0 as u32,
                at: address,
                writable: a2 & SHM_RDONLY == 0,
            },
            Known::Shmdt => Self::Detach {
                at: VirtAddr::new(a0),
            },
            Known::Munmap => Self::Unmap { range: first(a1) },
            Known::Mremap => Self::Remap {
                from: first(a1),
                to: VirtRange::with_length(address, a2).page_aligned(),
                keep: a3 & MREMAP_DONTUNMAP != 0,
            },
            Known::Brk => Self::Break { end: address },
            Known::Mprotect => Self::Protect {
                range: first(a1),
                writable: a2 & PROT_WRITE != 0,
            },
            Known::Madvise => Self::Advise {
                range: first(a1),
                advice: Advice::from_number(a2),
            },
            Known::Open | Known::Openat => {
                let flags = if known == Known::Open { a1 } else { a2 };
                let kind = if flags & architecture.o_direct() != 0 {
                    DescriptorKind::DirectFile
                } else {
                    DescriptorKind::File
                };
                Self::Open {
                    descriptor: Some(address.get() as u32),
                    kind,
                }
            }
            Known::Socket => Self::Open {
                descriptor: Some(address.get() as u32),
                kind: DescriptorKind::Socket,
            },
            Known::Accept | Known::Accept4 => Self::Open {
                descriptor: Some(address.get() as u32),
                kind: DescriptorKind::Accepted,
            },
            Known::Pipe | Known::Pipe2 => Self::Open {
                descriptor: None,
                kind: DescriptorKind::Pipe,
            },
            Known::Close => Self::Close {
                descriptor: a0 as u32,
            },
            Known::EpollWait
            | Known::EpollPwait
            | Known::Poll
            | Known::Ppoll
            | Known::Select
            | Known::Pselect6 => Self::Wait,
            Known::Futex => {
                let address = VirtAddr::new(a0);
                if wakes(a1) {
                    Self::WakeWord { address }
                } else {
                    Self::WaitForWord { address }
                }
            }
            Known::Clone
            | Known::Clone3
            | Known::Fork
            | Known::Vfork
            | Known::Execve
            | Known::Execveat => Self::Spawn,
            Known::Exit | Known::ExitGroup => Self::Exit,
            _ => Self::transfer(known, syscall),
        }
    }

    /// A call that QEMU refuses and Linux does not, or one that failed.
    fn refused(known: Known, syscall: &Syscall) -> Self {
        let [a0, a1, a2, a3, a4, _] = syscall.arguments;
        match known {
            Known::IoUringSetup => Self::Ask(Facility::IoUring),
            Known::IoSetup => Self::Ask(Facility::Aio),
            Known::Userfaultfd => Self::Ask(Facility::Userfaultfd),
            Known::Prctl if a0 == ALLOCATED => Self::Allocate {
                range: VirtRange::with_length(VirtAddr::new(a1), a2),
                caller: VirtAddr::new(a3),
            },
            Known::Prctl if a0 == PR_SET_THP_DISABLE && a3 == 0 && a4 == 0 => {
                Self::DisableHugePages {
                    disabled: a1 != 0,
                    but_advised: a2 & PR_THP_DISABLE_EXCEPT_ADVISED != 0,
                }
            }
            _ => Self::Other,
        }
    }

    /// Returns true if mappings, threads and processes are afterwards as they were before.
    #[must_use]
    pub const fn keeps_mappings(&self) -> bool {
        matches!(
            self,
            Self::Receive { .. }
                | Self::Send { .. }
                | Self::Lend { .. }
                | Self::Open { .. }
                | Self::Close { .. }
                | Self::Wait
                | Self::WaitForWord { .. }
                | Self::WakeWord { .. }
                | Self::Segment { .. }
                | Self::Allocate { .. }
                | Self::Ask(_)
                | Self::Other
        )
    }

    /// A call that moves data between the program and the kernel.
    fn transfer(known: Known, syscall: &Syscall) -> Self {
        let [a0, a1, a2, ..] = syscall.arguments;
        let bytes = syscall.result.cast_unsigned().min(MOST_BYTES);
        let takes_address = matches!(
            known,
            Known::Read
                | Known::Pread64
                | Known::Recvfrom
                | Known::Write
                | Known::Pwrite64
                | Known::Sendto
        );
        let buffer = VirtRange::with_length(VirtAddr::new(a1), bytes);
        let buffer = (takes_address && bytes > 0 && buffer.end <= END_OF_PROGRAM).then_some(buffer);
        match known {
            Known::Read
            | Known::Pread64
            | Known::Readv
            | Known::Preadv
            | Known::Preadv2
            | Known::Recvfrom
            | Known::Recvmsg => Self::Receive {
                bytes,
                buffer,
                descriptor: a0 as u32,
                positioned: is_positioned(known, syscall),
            },
            Known::Write
            | Known::Pwrite64
            | Known::Writev
            | Known::Pwritev
            | Known::Pwritev2
            | Known::Sendto
            | Known::Sendmsg
            | Known::Sendfile
            | Known::Splice
            | Known::CopyFileRange => Self::Send {
                bytes,
                buffer,
                descriptor: match known {
                    // Where these two send to is their third argument.
                    Known::Splice | Known::CopyFileRange => a2 as u32,
                    _ => a0 as u32,
                },
                positioned: is_positioned(known, syscall),
            },
            Known::Vmsplice => Self::Lend { bytes },
            // The results of these two count messages: their vectors say how many bytes.
            Known::Recvmmsg => Self::Receive {
                bytes: 0,
                buffer: None,
                descriptor: a0 as u32,
                positioned: false,
            },
            Known::Sendmmsg => Self::Send {
                bytes: 0,
                buffer: None,
                descriptor: a0 as u32,
                positioned: false,
            },
            _ => Self::refused(known, syscall),
        }
    }
}

/// Returns true if a call says where in the file.
fn is_positioned(known: Known, syscall: &Syscall) -> bool {
    match known {
        Known::Pread64 | Known::Preadv | Known::Pwrite64 | Known::Pwritev => true,
        // -1 is the file's own position (`do_preadv`, `fs/read_write.c`); the high half comes after.
        Known::Preadv2 | Known::Pwritev2 => syscall.arguments[3] != u64::MAX,
        _ => false,
    }
}

/// Returns true if an operation of `futex` wakes threads rather than waits
/// (`include/uapi/linux/futex.h`).
#[must_use]
pub const fn wakes(operation: u64) -> bool {
    const COMMAND: u64 = 0x7f;
    const WAKE: u64 = 1;
    const REQUEUE: u64 = 3;
    const WAKE_OP: u64 = 5;
    const UNLOCK_PI: u64 = 7;
    const WAKE_BITSET: u64 = 10;
    matches!(
        operation & COMMAND,
        WAKE | REQUEUE..=WAKE_OP | UNLOCK_PI | WAKE_BITSET
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_for_a_word_or_wakes_others() {
        const PRIVATE: u64 = 128;
        let address = VirtAddr::new(0x7000);
        let waits = call(202, [0x7000, PRIVATE | 9, 1, 0, 0, 0], 0);
        assert_eq!(waits, Call::WaitForWord { address });
        let wakes = call(202, [0x7000, PRIVATE | 1, 1, 0, 0, 0], 1);
        assert_eq!(wakes, Call::WakeWord { address });
        // The word had changed meanwhile.
        assert_eq!(call(202, [0x7000, PRIVATE, 1, 0, 0, 0], -11), Call::Other);
    }

    fn call(number: u16, arguments: [u64; 6], result: i64) -> Call {
        let syscall = Syscall {
            number,
            arguments,
            result,
        };
        Call::of(Architecture::X86_64, &syscall)
    }

    #[test]
    fn shared_memory_is_named() {
        let file = MemoryFile {
            name: 0xab_cdef_0123_4567,
            kind: MemoryFileKind::HugeTlb,
        };
        let mapped = |flags, descriptor| {
            let call = call(9, [0, 4096, 3, flags, descriptor, 8192], 0x7000_0000);
            let Call::Map { file, offset, .. } = call else {
                panic!("{call:?}");
            };
            (file, offset)
        };
        assert_eq!(mapped(MAP_SHARED, file.encode()), (Some(file), 8192));
        assert_eq!(mapped(MAP_SHARED, 7), (None, 8192));
        assert_eq!(mapped(MAP_SHARED | MAP_ANONYMOUS, u64::MAX), (None, 8192));
        assert_eq!(mapped(2, file.encode()), (None, 8192));
        let segment = Call::Segment {
            id: 9,
            bytes: 8 << 20,
            huge: true,
        };
        assert_eq!(call(29, [0, 8 << 20, 0o5600, 0, 0, 0], 9), segment);
        let attached = Call::Attach {
            id: 9,
            at: VirtAddr::new(0x7000_0000),
            writable: false,
        };
        assert_eq!(call(30, [9, 0, 0o10000, 0, 0, 0], 0x7000_0000), attached);
    }

    #[test]
    fn mmap_reports_where_the_kernel_put_the_mapping() {
        let flags = 0x22 | MAP_POPULATE;
        let mapped = call(9, [0, 5000, 3, flags, u64::MAX, 0], 0x7000_0000);
        assert_eq!(
            mapped,
            Call::Map {
                range: VirtRange::with_length(VirtAddr::new(0x7000_0000), 8192),
                writable: true,
                anonymous: true,
                shared: false,
                huge: false,
                populate: true,
                stack: false,
                may_be_huge: true,
                file: None,
                offset: 0,
            }
        );
        let may_be_huge = |flags| {
            let mapped = call(9, [0, 5000, 3, flags, u64::MAX, 0], 0x7000_0000);
            matches!(
                mapped,
                Call::Map {
                    stack: true,
                    may_be_huge: true,
                    ..
                }
            )
        };
        assert!(!may_be_huge(flags | MAP_STACK));
        assert!(may_be_huge(flags | MAP_STACK | STACK_MAY_BE_HUGE));
    }

    #[test]
    fn calls_that_end_processes_and_tell_how_they_ended_are_known() {
        use Architecture::{Aarch64, X86_64};

        for (architecture, number, arguments, kills) in [
            (X86_64, 62, [7, 9, 0, 0], true),
            (X86_64, 62, [7, 15, 0, 0], false),
            (Aarch64, 129, [7, 9, 0, 0], true),
            (X86_64, 234, [7, 7, 9, 0], true),
            (X86_64, 157, [1, 9, 0, 0], true),
            (X86_64, 157, [15, 9, 0, 0], false),
            (X86_64, 272, [0x2002_0000, 0, 0, 0], true),
            (X86_64, 272, [0x2_0000, 0, 0, 0], false),
            (X86_64, 9, [0, 9, 9, 0], false),
        ] {
            assert_eq!(may_kill(architecture, number, arguments), kills, "{number}");
        }
        let memory = |at| match at {
            0x1000 | 0x3018 => Some(9),
            0x1004 => Some(3 << 8),
            0x1008 => Some(0x8b),
            0x100c => Some(0x137f),
            0x2008 => Some(2),
            0x2018 => Some(15),
            0x3008 => Some(1),
            0x2010 => Some(77),
            _ => None,
        };
        let child = |at| Waited::of(Aarch64, 95, [0, 0, at])?.child(0, memory);
        assert_eq!([0x2000, 0x9000].map(child), [Some(77), None]);
        let child = Waited::of(X86_64, 61, [1, 0x1000, 0]).and_then(|one| one.child(76, memory));
        assert_eq!(child, Some(76));
        let none = Waited::of(X86_64, 61, [1, 0x1000, 1]).and_then(|one| one.child(0, memory));
        assert_eq!(none, None);
        let status = |at| Waited::of(X86_64, 61, [1, at, 0])?.signal(memory);
        let information = |at| Waited::of(Aarch64, 95, [0, 0, at])?.signal(memory);
        let ended = [0x1000, 0x1004, 0x1008, 0x100c, 0, 0x9000].map(status);
        assert_eq!(ended, [Some(9), None, Some(11), None, None, None]);
        let ended = [0x2000, 0x3000, 0].map(information);
        assert_eq!(ended, [Some(15), None, None]);
        assert_eq!(Waited::of(X86_64, 1, [1, 2, 3]), None);
    }

    #[test]
    fn a_failed_call_changes_nothing() {
        assert_eq!(call(9, [0, 4096, 3, 0x22, 0, 0], -12), Call::Other);
        assert_eq!(call(11, [0x1000, 4096, 0, 0, 0, 0], -22), Call::Other);
    }

    #[test]
    fn what_qemu_refuses_is_what_the_program_asked_for() {
        let asked = call(425, [8, 0x7000, 0, 0, 0, 0], -38);
        assert_eq!(asked, Call::Ask(Facility::IoUring));
        let disables = |arguments| call(157, arguments, -22);
        let all = Call::DisableHugePages {
            disabled: true,
            but_advised: false,
        };
        assert_eq!(disables([41, 1, 0, 0, 0, 0]), all);
        assert_eq!(disables([41, 1, 0, 1, 0, 0]), Call::Other);
        assert_eq!(disables([15, 0x7000, 0, 0, 0, 0]), Call::Other);
    }

    #[test]
    fn calls_that_move_data_say_through_which_descriptor_and_where_to() {
        let buffer = VirtRange::with_length(VirtAddr::new(0x1000), 100);
        let received = Call::Receive {
            bytes: 100,
            buffer: Some(buffer),
            descriptor: 7,
            positioned: false,
        };
        assert_eq!(call(0, [7, 0x1000, 4096, 0, 0, 0], 100), received);
        // No program has such addresses, and Linux moves no more than 2 GB at a time.
        for (address, bytes) in [(u64::MAX - 50, 100), (1 << 47, 100), (0x1000, i64::MAX)] {
            match call(0, [7, address, 4096, 0, 0, 0], bytes) {
                Call::Receive { bytes, buffer, .. } => {
                    assert!(bytes < 1 << 31);
                    assert!(buffer.is_none_or(|buffer| buffer.end.get() <= 1 << 47));
                }
                other => panic!("{other:?}"),
            }
        }
        let opened = Call::Open {
            descriptor: Some(9),
            kind: DescriptorKind::Accepted,
        };
        assert_eq!(call(288, [5, 0, 0, 0, 0, 0], 9), opened);
        let spliced = Call::Send {
            bytes: 1,
            buffer: None,
            descriptor: 4,
            positioned: false,
        };
        assert_eq!(call(275, [3, 0, 4, 0, 0, 0], 1), spliced);
    }

    #[test]
    fn the_same_call_has_different_numbers_on_different_architectures() {
        assert_eq!(Known::of(Architecture::X86_64, 222), None);
        assert_eq!(Known::of(Architecture::Aarch64, 222), Some(Known::Mmap));
        assert_eq!(Known::of(Architecture::Aarch64, ABSENT), None);
        assert_eq!(Known::Mmap.number(Architecture::Aarch64), Some(222));
        assert_eq!(Known::Open.number(Architecture::Aarch64), None);
    }
}
