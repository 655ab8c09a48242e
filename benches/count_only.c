/* The least that a counting plugin can do: one callback for each block and one for each access,
 * counters in place of a ring. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t plugin_id;
struct block;
struct instruction;

int qemu_plugin_version = 1;

/* QEMU 10 wants another one, and has more functions. */
__attribute__((constructor)) static void choose_version(void) {
    if (dlsym(RTLD_DEFAULT, "qemu_plugin_read_memory_vaddr")) qemu_plugin_version = 4;
}

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_vcpu_mem_cb(struct instruction *,
                                      void (*)(unsigned, uint32_t, uint64_t, void *), int, int,
                                      void *);
size_t qemu_plugin_tb_n_insns(struct block *);
struct instruction *qemu_plugin_tb_get_insn(struct block *, size_t);

static uint64_t instructions, accesses;

static void on_block(unsigned vcpu, void *count) {
    (void)vcpu;
    instructions += (uintptr_t)count;
}

static void on_access(unsigned vcpu, uint32_t info, uint64_t address, void *data) {
    (void)vcpu;
    (void)info;
    (void)address;
    (void)data;
    accesses++;
}

static void on_translate(plugin_id id, struct block *block) {
    size_t count = qemu_plugin_tb_n_insns(block);
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, 0, (void *)(uintptr_t)count);
    for (size_t i = 0; i < count; i++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), on_access, 0, 3, NULL);
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    return 0;
}
