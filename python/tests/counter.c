/* Counts instructions, loads and stores with one callback each, independently of the plugin under
 * test: no blocks, no ring, nothing shared but QEMU's interface. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t plugin_id;
struct block;
struct instruction;

int qemu_plugin_version = 1;

/* QEMU 10 wants another one, and has more functions. */
__attribute__((constructor)) static void choose_version(void)
{
    if (dlsym(RTLD_DEFAULT, "qemu_plugin_read_memory_vaddr"))
        qemu_plugin_version = 4;
}

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
void qemu_plugin_register_vcpu_insn_exec_cb(struct instruction *, void (*)(unsigned, void *), int,
                                            void *);
void qemu_plugin_register_vcpu_mem_cb(struct instruction *,
                                      void (*)(unsigned, uint32_t, uint64_t, void *), int, int,
                                      void *);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
size_t qemu_plugin_tb_n_insns(struct block *);
struct instruction *qemu_plugin_tb_get_insn(struct block *, size_t);
bool qemu_plugin_mem_is_store(uint32_t);
unsigned qemu_plugin_mem_size_shift(uint32_t);
size_t qemu_plugin_insn_data(const struct instruction *, void *, size_t); /* as of version 3 */

static uint64_t instructions, loads, stores;
static bool is_aarch64;

static void on_instruction(unsigned vcpu, void *data)
{
    (void)vcpu;
    (void)data;
    instructions++;
}

static void on_memory(unsigned vcpu, uint32_t info, uint64_t address, void *data)
{
    (void)vcpu;
    (void)address;
    (void)data;
    /* QEMU 7.2 makes two accesses of one of 16 bytes, newer ones one. */
    unsigned accesses = qemu_plugin_mem_size_shift(info) == 4 ? 2 : 1;
    if (qemu_plugin_mem_is_store(info))
        stores += accesses;
    else
        loads += accesses;
}

/* QEMU 10 executes all iterations of a repeated string instruction at once, 7.2 one after the other
 * and then once more. An iteration begins with a load, or where there is none with a store. */
enum { ONCE, LOAD, STORE, TWO_LOADS };

static void on_iteration(unsigned vcpu, uint32_t info, uint64_t address, void *begin)
{
    static unsigned compared;
    bool store = qemu_plugin_mem_is_store(info);
    if ((uintptr_t)begin == TWO_LOADS ? compared++ % 2 == 0 : store == ((uintptr_t)begin == STORE))
        instructions++;
    on_memory(vcpu, info, address, NULL);
}

static int repeated(const struct instruction *instruction)
{
    unsigned char code[16] = {0};
    size_t i = 0, repeats = 0;
    if (qemu_plugin_version == 1)
        return ONCE;
    qemu_plugin_insn_data(instruction, code, 15);
    for (;; i++) {
        if (code[i] == 0xf2 || code[i] == 0xf3)
            repeats = 1;
        else if (code[i] != 0x66 && code[i] != 0x67 && code[i] / 16 != 4)
            break;
    }
    if (!repeats)
        return ONCE;
    switch (code[i] & 0xfe) {
    case 0xa4:
    case 0xac:
    case 0xae:
        return LOAD;
    case 0xa6:
        return TWO_LOADS;
    case 0xaa:
        return STORE;
    default:
        return ONCE;
    }
}

/* dc zva of aarch64, which QEMU tells nobody of, zeroes 64 bytes: a store. */
static void on_zeroing(unsigned vcpu, void *data)
{
    (void)vcpu;
    (void)data;
    stores++;
}

static int zeroes(const struct instruction *instruction)
{
    uint32_t code = 0;
    if (!is_aarch64)
        return 0;
    if (qemu_plugin_version == 1) {
        const void *(*data)(const struct instruction *);
        void *function = dlsym(RTLD_DEFAULT, "qemu_plugin_insn_data");
        memcpy(&data, &function, sizeof data);
        memcpy(&code, data(instruction), sizeof code);
    } else {
        qemu_plugin_insn_data(instruction, &code, sizeof code);
    }
    return (code & 0xffffffe0) == 0xd50b7420;
}

static void on_translate(plugin_id id, struct block *block)
{
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct instruction *instruction = qemu_plugin_tb_get_insn(block, i);
        qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_instruction, 0, NULL);
        if (zeroes(instruction))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_zeroing, 0, NULL);
        int begin = is_aarch64 ? ONCE : repeated(instruction);
        if (begin == ONCE)
            qemu_plugin_register_vcpu_mem_cb(instruction, on_memory, 0, 3, NULL);
        else
            qemu_plugin_register_vcpu_mem_cb(instruction, on_iteration, 0, 3,
                                             (void *)(uintptr_t)begin);
    }
}

static void on_exit_(plugin_id id, void *data)
{
    (void)id;
    (void)data;
    fprintf(stderr, "counter: instructions %llu\ncounter: loads %llu\ncounter: stores %llu\n",
            (unsigned long long)instructions, (unsigned long long)loads,
            (unsigned long long)stores);
}

/* Begins with the name of what is emulated. */
struct information {
    const char *target;
};

int qemu_plugin_install(plugin_id id, const struct information *info, int argc, char **argv)
{
    is_aarch64 = strcmp(info->target, "aarch64") == 0;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_atexit_cb(id, on_exit_, NULL);
    return 0;
}
