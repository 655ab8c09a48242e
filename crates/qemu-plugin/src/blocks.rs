//! Translation: every block is described once and then known by its number.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::ffi::{c_uint, c_void};
use std::hash::BuildHasher;
use std::sync::Mutex;

use contigua_program::code::BlockCode;
use contigua_program::syscall::Architecture;
use contigua_program::wire::BlockId;
use contigua_units::{PAGE_BYTES, VirtAddr};
use iced_x86::{Decoder, DecoderError, DecoderOptions};

use crate::api::{self, Block, PluginId};
use crate::{access, clock, guest, image, plugin, regions, strings, vcpu, zeroing};

/// Blocks that were described, by address and contents: QEMU forgets and retranslates code, and
/// the same code must keep its number.
struct Known {
    numbers: HashMap<(u64, u64), BlockId>,
    hasher: RandomState,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// QEMU has translated a block and asks what to observe of it.
pub extern "C" fn on_translate(_: PluginId, block: *mut Block) {
    let code;
    // SAFETY: QEMU passes a valid block; its instructions live during the callback.
    unsafe {
        let count = api::qemu_plugin_tb_n_insns(block);
        let mut lengths = Vec::with_capacity(count);
        let mut bytes = Vec::with_capacity(count * 4);
        let mut zeroes = None;
        for i in 0..count {
            let instruction = api::qemu_plugin_tb_get_insn(block, i);
            let address = api::qemu_plugin_insn_vaddr(instruction);
            let before = bytes.len();
            api::append_code(instruction, &mut bytes);
            if i > 0 && was_given_up(address, &bytes[before..]) {
                bytes.truncate(before);
                break;
            }
            lengths.push((bytes.len() - before) as u8);
            let host_address = api::qemu_plugin_insn_haddr(instruction) as u64;
            if i == 0 && host_address != 0 {
                guest::set_base(host_address.wrapping_sub(address));
            }
            let code = &bytes[before..];
            if plugin().plan.tells_accesses() {
                zeroes = zeroing::observe(instruction, i, code, zeroes);
            }
            match strings::begin(code) {
                None if !plugin().plan.tells_accesses() => {}
                None => access::observe(instruction, i, regions::transfer_callback(code)),
                Some(begin) => {
                    strings::observe(instruction, begin, iteration_argument(address, code));
                }
            }
        }
        let number = describe(&BlockCode {
            address: VirtAddr::new(api::qemu_plugin_tb_vaddr(block)),
            lengths: &lengths,
            bytes: &bytes,
        });
        let address = api::qemu_plugin_tb_vaddr(block);
        let executed = vcpu::block_argument(number, lengths.len());
        let (callback, argument): (api::ExecuteCallback, _) =
            match regions::argument(address, &lengths, &bytes, executed) {
                None => (on_execute, executed as *mut c_void),
                Some(argument) => (regions::on_execute, argument),
            };
        api::qemu_plugin_register_vcpu_tb_exec_cb(block, callback, api::NO_REGISTERS, argument);
        code = (address, bytes.len() as u64);
    }
    image::report_once();
    vcpu::tell_code(code.0, code.1);
}

/// Argument of [`vcpu::execute`] for a block that is a single instruction.
fn iteration_argument(address: u64, code: &[u8]) -> u64 {
    let number = describe(&BlockCode {
        address: VirtAddr::new(address),
        lengths: &[code.len() as u8],
        bytes: code,
    });
    vcpu::block_argument(number, 1)
}

/// Returns true if QEMU gave an instruction up: for x86 it ends a block before an instruction that
/// reaches into another page, but 7.2 still lists that instruction, with the bytes that it had read
/// by then.
fn was_given_up(address: u64, code: &[u8]) -> bool {
    const LONGEST: u64 = 15;
    let end = address + code.len() as u64;
    let near_page_end = end.next_multiple_of(PAGE_BYTES) - end < LONGEST;
    if plugin().architecture != Architecture::X86_64 || !near_page_end {
        return false;
    }
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    decoder.decode().is_invalid() && decoder.last_error() == DecoderError::NoMoreBytes
}

extern "C" fn on_execute(index: c_uint, block: *mut c_void) {
    vcpu::execute(index, block as u64);
}

fn describe(code: &BlockCode<'_>) -> BlockId {
    let mut known = KNOWN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = known.get_or_insert_with(|| Known {
        numbers: HashMap::new(),
        hasher: RandomState::new(),
    });
    let key = (code.address.get(), known.hasher.hash_one(code.bytes));
    *known.numbers.entry(key).or_insert_with(|| {
        let described = plugin().producer.ring().describe(code);
        let number = described.unwrap_or_else(|error| crate::fail(&error.to_string()));
        clock::learn(number, code.lengths.len());
        number
    })
}
