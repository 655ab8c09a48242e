//! QEMU's plugin interface, version 1 and versions 4 to 6, as far as it is used.
//!
//! Declared here because Debian does not ship the header. The functions are those of
//! `docs/devel/tcg-plugins.rst`; QEMU 7.2 is the oldest version that exports all of them. QEMU
//! refuses a plugin whose `qemu_plugin_version` is not in the range that it supports, and no value
//! is in all ranges (1 only up to QEMU 8.2, from 9.0 on at least 2). So a constructor of this
//! library, which runs before QEMU reads the value, sets it to what QEMU's functions show. Versions
//! 2 and 3 (QEMU 9) cannot be asked which memory is the program's. What changed in each version: `include/plugins/qemu-plugin.h` of QEMU 11.1.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

/// Names this plugin towards QEMU.
pub type PluginId = u64;
/// Describes a memory access; only QEMU's own functions can read it.
pub type MemoryInfo = u32;

/// A block that is being translated.
#[repr(C)]
pub struct Block {
    _opaque: [u8; 0],
}

/// An instruction of such a block.
#[repr(C)]
pub struct Instruction {
    _opaque: [u8; 0],
}

/// QEMU's description of itself.
#[repr(C)]
pub struct Info {
    /// `x86_64`, `aarch64`, ...
    pub target_name: *const c_char,
    /// Oldest plugin version that is accepted.
    pub version_minimum: c_int,
    /// Plugin version of this QEMU.
    pub version_current: c_int,
    /// True if a whole machine is emulated.
    pub system_emulation: bool,
}

/// The callback reads no guest registers.
pub const NO_REGISTERS: c_int = 0;
/// The callback reads guest registers, which QEMU 7.2 does not heed.
pub const READ_REGISTERS: c_int = 1;
/// Both loads and stores.
pub const READ_WRITE: c_int = 3;

pub type VcpuCallback = extern "C" fn(PluginId, c_uint);
pub type TranslateCallback = extern "C" fn(PluginId, *mut Block);
pub type ExecuteCallback = extern "C" fn(c_uint, *mut c_void);
pub type MemoryCallback = extern "C" fn(c_uint, MemoryInfo, u64, *mut c_void);
pub type SyscallCallback =
    extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub type SyscallReturnCallback = extern "C" fn(PluginId, c_uint, i64, i64);
pub type ExitCallback = extern "C" fn(PluginId, *mut c_void);

/// The newest version that is spoken. In version 7 (QEMU 11.1) callbacks have other arguments.
const NEWEST: c_int = 6;

/// A function that each version added.
const ADDED: [(c_int, &CStr); 3] = [
    (4, READ_MEMORY),
    (5, c"qemu_plugin_write_memory_vaddr"),
    (6, c"qemu_plugin_register_vcpu_syscall_filter_cb"),
];
const READ_MEMORY: &CStr = c"qemu_plugin_read_memory_vaddr";

/// The interface version that QEMU checks before it calls `qemu_plugin_install`: an `int` to it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = choose_version;

extern "C" fn choose_version() {
    let has = |(_, name): &&(c_int, &CStr)| symbol(name).is_some();
    let version = ADDED.iter().take_while(has).last();
    let version = version.map_or(1, |&(version, _)| version);
    qemu_plugin_version.store(version, Ordering::Relaxed);
}

/// The address of a function of QEMU's, or of a library that it uses.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is NUL-terminated; the process's own symbols are looked up.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// Checks, when QEMU says which version it has, whether it is one that is spoken.
pub fn check_version(info: &Info) -> Result<(), String> {
    let current = info.version_current;
    if current > NEWEST {
        return Err(format!(
            "this QEMU has version {current} of the plugin interface, and {NEWEST} is the newest \
             that is supported; run `contigua setup qemu` for another QEMU"
        ));
    }
    qemu_plugin_version.store(current, Ordering::Relaxed);
    Ok(())
}

/// Returns true for QEMU 10.0 or newer, which translates some instructions in other ways than 7.2.
pub fn is_10_or_newer() -> bool {
    qemu_plugin_version.load(Ordering::Relaxed) > 1
}

/// Appends the bytes of an instruction.
///
/// # Safety
/// `instruction` is one of a block that is being translated.
pub unsafe fn append_code(instruction: *const Instruction, into: &mut Vec<u8>) {
    type Pointer = unsafe extern "C" fn(*const Instruction) -> *const u8;
    type Copy = unsafe extern "C" fn(*const Instruction, *mut u8, usize) -> usize;
    let function = qemu_plugin_insn_data as unsafe extern "C" fn();
    // SAFETY: `qemu_plugin_insn_data` has the first type up to version 2 and the second one since.
    // The pointer is to as many bytes as the instruction has; no more than these are copied.
    unsafe {
        let size = qemu_plugin_insn_size(instruction);
        if qemu_plugin_version.load(Ordering::Relaxed) < 3 {
            let data = std::mem::transmute::<unsafe extern "C" fn(), Pointer>(function);
            into.extend_from_slice(std::slice::from_raw_parts(data(instruction), size));
        } else {
            let copy = std::mem::transmute::<unsafe extern "C" fn(), Copy>(function);
            let before = into.len();
            into.resize(before + size, 0);
            let copied = copy(instruction, into.as_mut_ptr().add(before), size);
            into.truncate(before + copied);
        }
    }
}

/// `GByteArray` of the library that QEMU is linked with.
#[repr(C)]
struct Bytes {
    _opaque: [u8; 0],
}

type Read = unsafe extern "C" fn(u64, *mut Bytes, usize) -> bool;

/// Asks QEMU about the guest's memory.
pub struct Reader {
    read: Read,
    buffer: *mut Bytes,
}

impl Reader {
    /// `None` before version 4, where QEMU cannot be asked.
    pub fn new() -> Option<Self> {
        type New = unsafe extern "C" fn() -> *mut Bytes;
        let (read, new) = (symbol(READ_MEMORY)?, symbol(c"g_byte_array_new")?);
        // SAFETY: the functions have these types in QEMU's interface and in the library's. The array is
        // never freed: a process makes one.
        unsafe {
            Some(Self {
                read: std::mem::transmute::<*mut c_void, Read>(read),
                buffer: std::mem::transmute::<*mut c_void, New>(new)(),
            })
        }
    }

    /// Returns true if the guest may read the byte at one of its addresses. Only in a vCPU's
    /// callbacks.
    pub fn is_readable(&self, address: u64) -> bool {
        // SAFETY: the buffer is this reader's and live; QEMU checks the address.
        unsafe { (self.read)(address, self.buffer, 1) }
    }
}

/// `GArray` and `GByteArray`, as far as the library lets others see.
#[repr(C)]
struct Array {
    data: *const u8,
    length: c_uint,
}

/// `qemu_plugin_reg_descriptor`.
#[repr(C)]
struct Register {
    handle: usize,
    name: *const c_char,
    feature: *const c_char,
}

/// Names and handles of the guest's registers; none before QEMU 9. Only in a vCPU's callbacks.
pub fn registers() -> Vec<(String, usize)> {
    type Get = unsafe extern "C" fn() -> *const Array;
    let Some(get) = symbol(c"qemu_plugin_get_registers") else {
        return Vec::new();
    };
    // SAFETY: the function has this type in QEMU's interface. It returns a valid array of descriptors,
    // whose names live as long as QEMU; the array is never freed: a process asks once.
    unsafe {
        let found = std::mem::transmute::<*mut c_void, Get>(get)();
        let Array { data, length } = &*found;
        let registers = std::slice::from_raw_parts(data.cast::<Register>(), *length as usize);
        let named = registers.iter().filter(|register| !register.name.is_null());
        let name = |register: &Register| CStr::from_ptr(register.name).to_string_lossy().into();
        named.map(|each| (name(each), each.handle)).collect()
    }
}

/// A register of 64 bits, by its handle. Only in a vCPU's callbacks that were registered with
/// [`READ_REGISTERS`].
pub fn read_register(handle: usize) -> Option<u64> {
    type Read = unsafe extern "C" fn(usize, *mut Array) -> c_int;
    type New = unsafe extern "C" fn() -> *mut Array;
    type Free = unsafe extern "C" fn(*mut Array, c_int) -> *mut u8;
    let (read, new, free) = (
        symbol(c"qemu_plugin_read_register")?,
        symbol(c"g_byte_array_new")?,
        symbol(c"g_byte_array_free")?,
    );
    // SAFETY: the functions have these types in QEMU's interface and in the library's. The array is
    // this function's own, and freed after its bytes were copied.
    unsafe {
        let array = std::mem::transmute::<*mut c_void, New>(new)();
        std::mem::transmute::<*mut c_void, Read>(read)(handle, array);
        let Array { data, length } = &*array;
        let value = (*length == 8).then(|| data.cast::<u64>().read_unaligned());
        std::mem::transmute::<*mut c_void, Free>(free)(array, 1);
        value
    }
}

/// Addresses of the code of the program's file; `None` for QEMU 10.0, which leaves these functions
/// out of its user mode (`linux-user/meson.build` asks for `CONFIG_TCG_PLUGINS`, which nothing
/// sets). Only once the program is loaded.
pub fn program_code() -> Option<(u64, u64)> {
    type Get = unsafe extern "C" fn() -> u64;
    let (start, end) = (
        symbol(c"qemu_plugin_start_code")?,
        symbol(c"qemu_plugin_end_code")?,
    );
    // SAFETY: the functions have this type in QEMU's interface.
    unsafe {
        let get = |function| std::mem::transmute::<*mut c_void, Get>(function)();
        Some((get(start), get(end)))
    }
}

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: VcpuCallback);
    pub fn qemu_plugin_register_vcpu_exit_cb(id: PluginId, callback: VcpuCallback);
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: TranslateCallback);
    pub fn qemu_plugin_register_vcpu_syscall_cb(id: PluginId, callback: SyscallCallback);
    pub fn qemu_plugin_register_vcpu_syscall_ret_cb(id: PluginId, callback: SyscallReturnCallback);
    pub fn qemu_plugin_register_atexit_cb(id: PluginId, callback: ExitCallback, data: *mut c_void);

    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        callback: ExecuteCallback,
        flags: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: ExecuteCallback,
        flags: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: MemoryCallback,
        flags: c_int,
        kind: c_int,
        data: *mut c_void,
    );

    pub fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    pub fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    fn qemu_plugin_insn_data();
    pub fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    pub fn qemu_plugin_insn_haddr(instruction: *const Instruction) -> *const c_void;

    pub fn qemu_plugin_mem_size_shift(info: MemoryInfo) -> c_uint;
    pub fn qemu_plugin_mem_is_store(info: MemoryInfo) -> bool;
}
