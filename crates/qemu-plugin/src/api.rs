//! QEMU's plugin interface, version 1, as far as it is used.
//!
//! Declared here because Debian does not ship the header. The functions are those of
//! `docs/devel/tcg-plugins.rst`; QEMU 7.2 is the oldest version that exports all of them.

use std::ffi::{c_char, c_int, c_uint, c_void};

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

/// What QEMU says of itself.
#[repr(C)]
pub struct Info {
    /// `x86_64`, `aarch64`, ...
    pub target_name: *const c_char,
    /// Oldest plugin version that is accepted.
    pub version_minimum: c_int,
    /// Plugin version of this QEMU.
    pub version_current: c_int,
    /// Whether a whole machine is emulated.
    pub system_emulation: bool,
}

/// The callback reads no guest registers.
pub const NO_REGISTERS: c_int = 0;
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
    pub fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    pub fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    pub fn qemu_plugin_insn_haddr(instruction: *const Instruction) -> *const c_void;

    pub fn qemu_plugin_mem_size_shift(info: MemoryInfo) -> c_uint;
    pub fn qemu_plugin_mem_is_store(info: MemoryInfo) -> bool;

    pub fn qemu_plugin_path_to_binary() -> *const c_char;
}
