//! Translation: every block is described once and then known by its number.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::ffi::{c_uint, c_void};
use std::hash::BuildHasher;
use std::sync::Mutex;

use contigua_program::code::BlockCode;
use contigua_program::wire::{BlockId, block_word};
use contigua_units::VirtAddr;

use crate::api::{self, Block, PluginId};
use crate::{access, guest, image, plugin, vcpu};

/// Blocks that were described, by address and contents: QEMU forgets and retranslates code, and
/// the same code must keep its number.
struct Known {
    numbers: HashMap<(u64, u64), BlockId>,
    hasher: RandomState,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// QEMU has translated a block and asks what to observe of it.
pub extern "C" fn on_translate(_: PluginId, block: *mut Block) {
    // SAFETY: QEMU passes a valid block; its instructions live during the callback.
    unsafe {
        let count = api::qemu_plugin_tb_n_insns(block);
        let mut lengths = Vec::with_capacity(count);
        let mut bytes = Vec::with_capacity(count * 4);
        for i in 0..count {
            let instruction = api::qemu_plugin_tb_get_insn(block, i);
            let size = api::qemu_plugin_insn_size(instruction);
            let data = api::qemu_plugin_insn_data(instruction).cast::<u8>();
            lengths.push(size as u8);
            bytes.extend_from_slice(std::slice::from_raw_parts(data, size));
            if i == 0 {
                let virtual_address = api::qemu_plugin_insn_vaddr(instruction);
                let host_address = api::qemu_plugin_insn_haddr(instruction) as u64;
                guest::set_base(host_address.wrapping_sub(virtual_address));
            }
            api::qemu_plugin_register_vcpu_mem_cb(
                instruction,
                access::callback(),
                api::NO_REGISTERS,
                api::READ_WRITE,
                access::template(i),
            );
        }
        let number = describe(&BlockCode {
            address: VirtAddr::new(api::qemu_plugin_tb_vaddr(block)),
            lengths: &lengths,
            bytes: &bytes,
        });
        api::qemu_plugin_register_vcpu_tb_exec_cb(
            block,
            on_execute,
            api::NO_REGISTERS,
            block_word(number) as *mut c_void,
        );
    }
    image::report_once();
}

extern "C" fn on_execute(index: c_uint, word: *mut c_void) {
    vcpu::append(index, word as u64);
}

fn describe(code: &BlockCode<'_>) -> BlockId {
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = known.get_or_insert_with(|| Known {
        numbers: HashMap::new(),
        hasher: RandomState::new(),
    });
    let key = (code.address.get(), known.hasher.hash_one(code.bytes));
    *known.numbers.entry(key).or_insert_with(|| {
        plugin()
            .producer
            .ring()
            .describe(code)
            .unwrap_or_else(|| crate::fail("the program has more distinct code than a run can hold"))
    })
}
