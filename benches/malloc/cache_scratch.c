/* Objects that one thread allocated and others free must not make new ones share a cache line. */
#include "bench.h"

static char *first[8];
static void *work(void *argument) {
    uintptr_t number = (uintptr_t)argument - 1;
    free(first[number]);
    for (int round = 0; round < 400; round++) {
        volatile char *mine = malloc(8);
        for (int i = 0; i < 100000; i++) mine[i % 8]++;
        free((void *)mine);
    }
    return NULL;
}
int main(void) {
    for (int i = 0; i < 2; i++) first[i] = malloc(8);
    run_threads(2, work);
}
