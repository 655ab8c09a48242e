/* Four threads, each for itself, small objects in batches that are freed in another order. */
#include "bench.h"

static void *work(void *argument) {
    enum { BATCH = 500 };
    void *objects[BATCH];
    uint64_t random = 100 + (uintptr_t)argument;
    for (int round = 0; round < 12000; round++) {
        for (int i = 0; i < BATCH; i++) {
            size_t size = 8 + next_random(&random) % 120;
            objects[i] = use(malloc(size), size);
        }
        for (int i = 0; i < BATCH; i++) free(objects[i * 7 % BATCH]);
    }
    return NULL;
}
int main(void) { run_threads(4, work); }
