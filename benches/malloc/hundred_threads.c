/* A hundred threads on few CPUs: a little work each, objects handed on through a shared table. */
#include "bench.h"

enum { TABLE = 4096 };
static void *_Atomic table[TABLE];

static void *work(void *argument) {
    uint64_t random = 1000 + (uintptr_t)argument;
    for (int i = 0; i < 60000; i++) {
        size_t size = 16 + next_random(&random) % 300;
        void *mine = use(malloc(size), size);
        free(atomic_exchange(&table[next_random(&random) % TABLE], mine));
    }
    return NULL;
}
int main(void) { run_threads(100, work); }
